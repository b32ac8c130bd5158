package local

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/supervise"
	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	// The keys of a process record, by which the next run of the gateway adopts the replica. They
	// are a file format.
	purpose         = "replica"
	metaModel       = "model"
	metaIndex       = "index"
	metaAddress     = "address"
	metaFingerprint = "fingerprint"
	metaRestarts    = "restarts"
	metaReady       = "ready"
	metaResources   = "resources" // as JSON
	metaGPUs        = "gpus"
	metaDrain       = "drain" // DrainTimeout, for when nobody knows the model any more
)

const (
	// maxPortRetries is how often a replica that lost its port to another program is started again
	// without back-off.
	maxPortRetries = 3
	// exitGrace is how long a process that refuses connections may take to end, because its exit
	// status says more.
	exitGrace = 100 * time.Millisecond
	// progressInterval is how often the log of a starting replica is read.
	progressInterval = time.Second
	// drainPollInterval is how often a draining replica's requests are counted.
	drainPollInterval = 20 * time.Millisecond
)

// runner starts the processes of one replica, one after another, until the replica is stopped or
// Run ends.
type runner struct {
	launcher *Launcher
	id       string
	index    int
	// model is the newest revision of the replica's model. The table writes it, the runner reads
	// it. For an adopted replica that is not desired it holds only what the record says.
	model atomic.Pointer[Model]

	// stopSignal tells the runner to stop the replica. The table writes it, the runner reads it.
	stopSignal stopSignal
	// suspected holds at most one token; see Launcher.Suspect.
	suspected chan struct{}
	// silent is true if the replica was called silent since the last probe began; see
	// Launcher.Suspect.
	silent atomic.Bool
	// restarted is true once an operator has restarted the replica. The table writes it, the runner
	// reads it.
	restarted atomic.Bool

	// The fields below belong to the runner's goroutine, before it starts to Adopt, after it to
	// Stop.

	// replica is what was last reported.
	replica engines.Replica
	// process is the running or just ended process; nil between two processes.
	process *process.Process
	// readySince is when the process became ready; zero while it is not.
	readySince time.Time
	// weights is the path of the fetched weights; empty if the model fetches none.
	weights string
	// fetchLoggedAt is when the progress of the fetch was last logged.
	fetchLoggedAt time.Time
	// cgroup is the directory of the process's own cgroup; empty if it has none.
	cgroup string
	// served: the process has been ready, maybe in an earlier run of the gateway, so it may have
	// requests.
	served bool
	// failures counts the failures in a row, for the back-off.
	failures int
	// collisions counts how often in a row the port was lost to another program.
	collisions int
	// suspectedAt is when a probe was last brought forward.
	suspectedAt time.Time
	// starts counts the processes so far, including those of earlier runs of the gateway.
	starts int
	// startedAt is when the process was started; zero for an adopted one.
	startedAt time.Time
}

// newRunner returns a runner that has not started.
func (l *Launcher) newRunner(m Model, index int) *runner {
	r := &runner{launcher: l, id: engines.ReplicaID(m.Name, index), index: index, replica: m.pending(index), suspected: make(chan struct{}, 1)}
	r.model.Store(&m)
	r.stopSignal.reset()
	return r
}

// setModel replaces the model. If its DrainTimeout has changed, the runner writes it into the
// record at once.
func (r *runner) setModel(m *Model) {
	if before := r.model.Swap(m); before != nil && before.DrainTimeout != m.DrainTimeout {
		r.suspect()
	}
}

// run runs the replica. It returns when the replica has stopped, or when ctx ends; then the process
// runs on.
func (r *runner) run(ctx context.Context) {
	for ctx.Err() == nil {
		signal := r.stopSignal.current()
		r.keepRunning(ctx, signal)
		if ctx.Err() == nil && r.drainAndStop(ctx, signal) {
			return
		}
	}
}

// keepRunning starts the replica again and again until it is told to stop or ctx ends.
func (r *runner) keepRunning(ctx context.Context, s *stopRequest) {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.requested, cancel)()
	if r.process != nil && r.process.ExitStatus() == "" {
		r.report(running, r.replica.State, r.replica.Reason) // adopted, or draining was cancelled: the table does not know its state
	}
	for running.Err() == nil && s.requested.Err() == nil {
		reason := r.runProcess(running)
		if running.Err() != nil {
			return
		}
		wait(running, r.fail(ctx, reason))
	}
}

// runProcess starts a process, or takes over the adopted one, and watches it until its end. It
// returns why the replica failed. If ctx has ended, the result means nothing.
func (r *runner) runProcess(running context.Context) string {
	if r.process == nil {
		if fault := r.model.Load().programFault(); fault != "" { // before weights are fetched, which may take hours
			return fault
		}
		if fault := r.fetchWeights(running); fault != "" {
			return fault
		}
		if r.awaitStartLock(running); running.Err() != nil {
			return ""
		}
		if err := r.start(); err != nil {
			return err.Error()
		}
		r.report(running, engines.Starting, "")
	}
	r.renew()
	alive, cancel := whileAlive(running, r.process)
	defer cancel()
	if r.readySince.IsZero() {
		if fault := r.awaitReady(alive); fault != "" {
			return fault
		}
		if alive.Err() == nil {
			r.becomeReady()
			r.report(running, engines.Ready, "")
		}
	}
	if alive.Err() == nil {
		if fault := r.serve(alive); fault != "" {
			return fault
		}
	}
	if running.Err() != nil {
		return ""
	}
	r.report(running, engines.Failed, "its process has ended") // at once, because reading the exit status takes some milliseconds
	return r.exitReason()
}

// start starts the next process on a free port.
func (r *runner) start() error {
	m := r.model.Load()
	listener, address, err := r.launcher.ports.hold()
	if err != nil {
		return err
	}
	defer listener.Close()
	r.replica.Address = address
	fetched := m.withWeights(r.weights)
	command, err := fetched.render(address)
	if err != nil {
		return err
	}
	env, err := fetched.environment(address)
	if err != nil {
		return err
	}
	spec := process.Spec{
		Name: purpose + "/" + r.id, Purpose: purpose, Command: command, Env: append(env, r.devices(m)...),
		Redactor: m.redactor(),
		Meta: map[string]string{
			metaModel: m.Name, metaIndex: strconv.Itoa(r.index), metaAddress: address.String(),
			metaFingerprint: m.fingerprint(address.Addr()), metaRestarts: strconv.Itoa(r.starts),
			metaResources: r.resources(), metaGPUs: r.replica.GPUs,
			metaDrain: m.DrainTimeout.String(),
		},
	}
	_ = listener.Close() // if another program takes the port now, the engine ends early and is started again
	if err := r.spawn(spec); err != nil {
		return err
	}
	r.replica.PID, r.replica.Restarts, r.replica.Slots = r.process.PID(), r.starts, m.Version.SlotsOf(m.Launch)
	r.replica.NextStart = time.Time{}
	r.starts++
	r.startedAt = time.Now()
	return nil
}

// spawn starts the process. A process that is to have limits gets a cgroup of its own. If that is
// not possible, it runs without limits.
func (r *runner) spawn(s process.Spec) error {
	c := r.launcher.config
	s.Cgroup = r.launcher.limits.create(r.id, r.replica.Resources)
	started, err := c.Dir.Start(s)
	if fault := err; err != nil && s.Cgroup != "" {
		r.launcher.limits.remove(s.Cgroup)
		s.Cgroup = ""
		if started, err = c.Dir.Start(s); err == nil {
			r.launcher.limits.recordFailure(fault)
		}
	}
	if err != nil {
		return err
	}
	r.process, r.cgroup = started, s.Cgroup
	return nil
}

// renew writes into the record what a reload has changed without a new process.
func (r *runner) renew() {
	drain := r.model.Load().DrainTimeout.String()
	if r.process.Record().Meta[metaDrain] == drain {
		return
	}
	if err := r.process.SetMeta(metaDrain, drain); err != nil && r.process.ExitStatus() == "" {
		r.launcher.config.Log.Warn("recording of a new drain timeout failed", zap.String("replica", r.id), zap.Error(err))
	}
}

// recordRestart writes into the record that an operator has restarted the replica, by a fingerprint
// that no command has. A process that adopts the replica before its end then replaces it.
func (r *runner) recordRestart() {
	if r.process == nil || !r.restarted.Load() {
		return
	}
	if err := r.process.SetMeta(metaFingerprint, ""); err != nil && r.process.ExitStatus() == "" {
		r.launcher.config.Log.Warn("recording of a restart failed", zap.String("replica", r.id), zap.Error(err))
	}
}

// awaitReady probes until the engine is ready or alive ends, then returns "". Otherwise it returns
// what is wrong.
func (r *runner) awaitReady(alive context.Context) string {
	m := r.model.Load()
	load := newLoading(r.process, m)
	progress := time.NewTicker(progressInterval)
	defer progress.Stop()
	for {
		got, text := r.probeReady(alive, m.Version.Ready.Path, progress.C)
		if got == supervise.Healthy || alive.Err() != nil {
			return ""
		}
		m = r.model.Load() // a reload may have changed how long the engine may take
		load.timeout, load.stall = m.startTimeout(), m.startStall()
		if fault := load.fault(time.Now()); fault != "" {
			return supervise.WithLog(fault+": "+text, r.process.Tail(supervise.MaxBadProbes))
		}
		next := time.NewTimer(m.readyInterval())
		for due := false; !due; {
			select {
			case <-alive.Done():
				due = true
			case <-next.C:
				due = true
			case <-progress.C:
				r.reportProgress(alive)
			}
		}
		next.Stop()
	}
}

// probeReady probes once. It reports progress while the engine takes its time to answer.
func (r *runner) probeReady(alive context.Context, path string, progress <-chan time.Time) (got supervise.Result, text string) {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		got, text = r.launcher.prober.Probe(alive, r.replica.Address, path)
	}()
	for {
		select {
		case <-answered:
			return got, text
		case <-progress:
			r.reportProgress(alive)
		}
	}
}

// reportProgress reports the last log line of a starting process if it is new. The line holds no
// prompts, because nobody could send any yet. A process that has served in an earlier run of the
// gateway may have logged prompts, so its lines are not reported.
func (r *runner) reportProgress(alive context.Context) {
	if r.served {
		return
	}
	if lines := r.process.Tail(1); len(lines) > 0 && lines[0] != r.replica.Reason {
		r.report(alive, engines.Starting, lines[0])
	}
}

func (r *runner) becomeReady() {
	r.readySince, r.served = time.Now(), true
	r.replica.FailedStarts, r.replica.Failure = 0, ""
	if !r.startedAt.IsZero() {
		r.replica.LoadTime = r.readySince.Sub(r.startedAt)
	}
	r.launcher.startLocks.unlock(r.id)
	if err := r.process.SetMeta(metaReady, "true"); err != nil {
		r.launcher.config.Log.Warn("recording of a ready replica failed", zap.String("replica", r.id), zap.Error(err))
	}
}

// serve probes a ready engine until alive ends, then returns "". Otherwise it returns what is
// wrong.
func (r *runner) serve(alive context.Context) string {
	bad, healthy := 0, time.Now()
	for {
		suspected := r.awaitProbe(alive)
		if alive.Err() != nil {
			return ""
		}
		r.renew()
		silent := r.silent.Swap(false)
		got, text := r.launcher.prober.Probe(alive, r.replica.Address, r.model.Load().Version.Health.Path)
		switch {
		case alive.Err() != nil:
			return ""
		case got == supervise.Refused:
			if wait(alive, exitGrace); alive.Err() != nil {
				return ""
			}
			return text
		case got == supervise.Healthy:
			bad, healthy = 0, time.Now()
			r.reportHealthy(suspected)
		case got == supervise.Busy && silent && time.Since(healthy) >= r.launcher.config.MaxBusy:
			return supervise.SilentTooLong(r.launcher.config.MaxBusy, text)
		case got == supervise.Busy && r.mayBeBusy():
			if bad = 0; !silent {
				r.reportHealthy(suspected)
			}
		case got == supervise.Untold:
		default:
			if bad++; bad == supervise.MaxBadProbes {
				return fmt.Sprintf("%d times in a row: %s", supervise.MaxBadProbes, text)
			}
		}
	}
}

// mayBeBusy reports whether the replica has requests. Only requests excuse a probe without an
// answer, and those that have no answer either only for MaxBusy.
func (r *runner) mayBeBusy() bool {
	inFlight := r.launcher.config.InFlight
	return inFlight == nil || inFlight(r.id) > 0
}

// report sends the replica's state to Run's loop. It gives up when ctx ends, because the loop ends
// too.
func (r *runner) report(ctx context.Context, state engines.State, reason string) {
	r.replica.State, r.replica.Reason = state, reason
	reported := r.replica
	if state == engines.Failed {
		reported.PID, reported.Address = 0, netip.AddrPort{} // another process may get them
	}
	select {
	case r.launcher.events <- event{runner: r, replica: reported}:
	case <-ctx.Done():
	}
}

// whileAlive returns a context that ends with the process. The caller must call the cancel
// function, which waits for the goroutine that whileAlive has started.
func whileAlive(ctx context.Context, p *process.Process) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-p.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); <-watched }
}

// wait returns after d, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
