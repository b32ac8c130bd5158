package local

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/process"
)

// What a record keeps for the next run of the gateway.
const (
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
	// quickStarts is how often a replica that lost its port to somebody else starts anew without back-off.
	quickStarts = 3
	// strikes is how many bad probes in a row make a replica fail. One that nobody listens for fails at once.
	strikes = 3
	// lastMoment is how long a process that has stopped listening may take to end: how it ended says more.
	lastMoment = 100 * time.Millisecond
	// progressEvery is how often a starting replica looks for a new line in its log.
	progressEvery = time.Second
	// drainLook is how often a draining replica looks whether its requests are done.
	drainLook = 20 * time.Millisecond
)

// runner lives through the processes of one replica, one after another, until it is told to leave or its run ends.
type runner struct {
	launcher *Launcher
	id       string
	index    int
	// model is the newest wish for this replica; nil for an adopted one that nobody wants. The table writes, the runner reads.
	model atomic.Pointer[Model]

	// notice tells whether the replica is to leave. The table writes, the runner reads.
	notice notice
	// doubted has at most one token: see Launcher.Suspect.
	doubted chan struct{}

	// The rest belongs to the runner's goroutine; before that to Adopt, after it to Stop.

	// replica is what was last reported.
	replica engines.Replica
	// process is the living or just ended one; nil between two.
	process *process.Process
	// readySince is when the process became ready; zero while it is not.
	readySince time.Time
	// cgroup is the directory of the process' own cgroup; empty where it has none.
	cgroup string
	// served: the process has been ready, maybe in an earlier run of the gateway, so it may have requests.
	served bool
	// failures in a row, for the back-off.
	failures int
	// collisions is how often in a row the port was lost to somebody else.
	collisions int
	// doubtedAt is when a probe was last brought forward.
	doubtedAt time.Time
	// starts of processes so far, in earlier runs of the gateway too.
	starts int
}

func (l *Launcher) newRunner(m Model, index int) *runner {
	r := &runner{launcher: l, id: ReplicaID(m.Name, index), index: index, replica: m.pending(index), doubted: make(chan struct{}, 1)}
	r.model.Store(&m)
	r.notice.begin()
	return r
}

// heed takes the newest wish for this replica. What the record should say of it is due at once, not at the next probe.
func (r *runner) heed(m *Model) {
	if before := r.model.Swap(m); before != nil && before.DrainTimeout != m.DrainTimeout {
		r.doubt()
	}
}

// run returns when ctx ends, and leaves the process running then, or when the replica has left.
func (r *runner) run(ctx context.Context) {
	for ctx.Err() == nil {
		term := r.notice.current()
		r.keep(ctx, term)
		if ctx.Err() == nil && r.depart(ctx, term) {
			return
		}
	}
}

// keep keeps the replica running until it is told to leave or ctx ends.
func (r *runner) keep(ctx context.Context, t *term) {
	staying, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.left, cancel)()
	if r.process != nil && r.process.ExitStatus() == "" {
		r.report(staying, r.replica.State, r.replica.Reason) // adopted, or recalled: the table knows too little of it
	}
	for staying.Err() == nil && t.left.Err() == nil {
		reason := r.live(staying)
		if staying.Err() != nil {
			return
		}
		wait(staying, r.fail(ctx, reason))
	}
}

// live takes one process from its start to its end, or from wherever it was adopted. It returns why the replica failed, and nothing
// that matters when staying has ended.
func (r *runner) live(staying context.Context) string {
	if r.process == nil {
		if r.awaitTurn(staying); staying.Err() != nil {
			return ""
		}
		if err := r.start(); err != nil {
			return err.Error()
		}
		r.report(staying, engines.Starting, "")
	}
	r.renew()
	alive, cancel := whileAlive(staying, r.process)
	defer cancel()
	if r.readySince.IsZero() {
		if fault := r.awaitReady(alive); fault != "" {
			return fault
		}
		if alive.Err() == nil {
			r.becomeReady()
			r.report(staying, engines.Ready, "")
		}
	}
	if alive.Err() == nil {
		if fault := r.serve(alive); fault != "" {
			return fault
		}
	}
	if staying.Err() != nil {
		return ""
	}
	r.report(staying, engines.Failed, "its process has ended") // at once; how it ended takes some milliseconds to find out
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
	command, err := m.render(address)
	if err != nil {
		return err
	}
	env, err := m.environment(address)
	if err != nil {
		return err
	}
	spec := process.Spec{
		Name: purpose + "/" + r.id, Purpose: purpose, Command: command, Env: append(env, r.devices(m)...),
		Meta: map[string]string{
			metaModel: m.Name, metaIndex: strconv.Itoa(r.index), metaAddress: address.String(),
			metaFingerprint: m.fingerprint(address.Addr()), metaRestarts: strconv.Itoa(r.starts),
			metaResources: r.resources(), metaGPUs: r.replica.GPUs,
			metaDrain: m.DrainTimeout.String(),
		},
	}
	_ = listener.Close() // from here on somebody else may take the port: then the engine ends early, and starts anew
	if err := r.spawn(spec); err != nil {
		return err
	}
	r.replica.PID, r.replica.Restarts, r.replica.Slots = r.process.PID(), r.starts, m.slots()
	r.starts++
	return nil
}

// spawn starts the process in a cgroup of its own if it is to have limits, and without one where that cannot be.
func (r *runner) spawn(s process.Spec) error {
	c := r.launcher.config
	s.Cgroup = r.launcher.limits.open(r.id, r.replica.Resources)
	started, err := c.Dir.Start(s)
	if fault := err; err != nil && s.Cgroup != "" {
		r.launcher.limits.remove(s.Cgroup)
		s.Cgroup = ""
		if started, err = c.Dir.Start(s); err == nil {
			r.launcher.limits.failed(fault)
		}
	}
	if err != nil {
		return err
	}
	r.process, r.cgroup = started, s.Cgroup
	return nil
}

// renew brings the record to what a reload has changed without a new process.
func (r *runner) renew() {
	drain := r.model.Load().DrainTimeout.String()
	if r.process.Record().Meta[metaDrain] == drain {
		return
	}
	if err := r.process.SetMeta(metaDrain, drain); err != nil && r.process.ExitStatus() == "" {
		r.launcher.config.Log.Warn("a new drain timeout cannot be recorded", zap.String("replica", r.id), zap.Error(err))
	}
}

// awaitReady probes until the engine is ready and then returns nothing, as when alive ends. Otherwise it returns what is wrong.
func (r *runner) awaitReady(alive context.Context) string {
	m := r.model.Load()
	deadline := time.Now().Add(m.startTimeout())
	progress := time.NewTicker(progressEvery)
	defer progress.Stop()
	for {
		got, text := r.askReady(alive, m.Version.Ready.Path, progress.C)
		if got == well || alive.Err() != nil {
			return ""
		}
		if time.Now().After(deadline) {
			return withLog(fmt.Sprintf("not ready after %v: %s", m.startTimeout(), text), r.process.Tail(strikes))
		}
		next := time.NewTimer(m.readyEvery())
		for due := false; !due; {
			select {
			case <-alive.Done():
				due = true
			case <-next.C:
				due = true
			case <-progress.C:
				r.showProgress(alive)
			}
		}
		next.Stop()
	}
}

// askReady probes once, and shows progress while the engine takes its time to answer.
func (r *runner) askReady(alive context.Context, path string, progress <-chan time.Time) (got answer, text string) {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		got, text = r.launcher.prober.ask(alive, r.replica.Address, path)
	}()
	for {
		select {
		case <-answered:
			return got, text
		case <-progress:
			r.showProgress(alive)
		}
	}
}

// showProgress tells the last log line of a starting process, when it is a new one. There are no prompts in it: nobody could send any yet.
// One that has served in an earlier run of the gateway may have logged some.
func (r *runner) showProgress(alive context.Context) {
	if r.served {
		return
	}
	if lines := r.process.Tail(1); len(lines) > 0 && lines[0] != r.replica.Reason {
		r.report(alive, engines.Starting, lines[0])
	}
}

func (r *runner) becomeReady() {
	r.readySince, r.served = time.Now(), true
	r.launcher.turns.done(r.id)
	if err := r.process.SetMeta(metaReady, "true"); err != nil {
		r.launcher.config.Log.Warn("a ready replica cannot be recorded as ready", zap.String("replica", r.id), zap.Error(err))
	}
}

// serve watches over a ready engine until alive ends; then it returns nothing. Otherwise it returns what is wrong.
func (r *runner) serve(alive context.Context) string {
	bad := 0
	for {
		doubted := r.awaitProbe(alive)
		if alive.Err() != nil {
			return ""
		}
		r.renew()
		got, text := r.launcher.prober.ask(alive, r.replica.Address, r.model.Load().Version.Health.Path)
		switch {
		case alive.Err() != nil:
			return ""
		case got == gone:
			if wait(alive, lastMoment); alive.Err() != nil {
				return ""
			}
			return text
		case got == well, got == busy && r.mayBeBusy():
			bad = 0
			r.clear(doubted)
		default:
			if bad++; bad == strikes {
				return fmt.Sprintf("%d times in a row: %s", strikes, text)
			}
		}
	}
}

// mayBeBusy: only work excuses silence.
func (r *runner) mayBeBusy() bool {
	inFlight := r.launcher.config.InFlight
	return inFlight == nil || inFlight(r.id) > 0
}

// report tells the loop. It gives up when ctx ends: then the loop is gone as well.
func (r *runner) report(ctx context.Context, state engines.State, reason string) {
	r.replica.State, r.replica.Reason = state, reason
	told := r.replica
	if state == engines.Failed {
		told.PID, told.Address = 0, netip.AddrPort{} // whoever has them next is somebody else
	}
	select {
	case r.launcher.events <- event{runner: r, replica: told}:
	case <-ctx.Done():
	}
}

// whileAlive is a context that ends with the process. The cancel function must be called; it leaves nothing behind.
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

// wait returns after d or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func withLog(text string, lines []string) string {
	if len(lines) == 0 {
		return text
	}
	return text + "; its log ends: " + strings.Join(lines, " | ")
}
