package local

import (
	"context"
	"errors"
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

	// left ends when the replica is to leave; tellLeave ends it.
	left      context.Context
	tellLeave context.CancelFunc

	// The rest belongs to the runner's goroutine; before that to Adopt, after it to Stop.

	// replica is what was last reported.
	replica engines.Replica
	// process is the living or just ended one; nil between two.
	process *process.Process
	// readySince is when the process became ready; zero while it is not.
	readySince time.Time
	// served: the process has been ready, maybe in an earlier run of the gateway, so it may have requests.
	served bool
	// failures in a row, for the back-off.
	failures int
	// collisions is how often in a row the port was lost to somebody else.
	collisions int
	// starts of processes so far, in earlier runs of the gateway too.
	starts int
}

func (l *Launcher) newRunner(m Model, index int) *runner {
	r := &runner{launcher: l, id: replicaID(m.Name, index), index: index, replica: m.pending(index)}
	r.model.Store(&m)
	r.left, r.tellLeave = context.WithCancel(context.Background())
	return r
}

// run returns when ctx ends, and leaves the process running then, or when the replica has left.
func (r *runner) run(ctx context.Context) {
	staying, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.left, cancel)()
	for staying.Err() == nil && r.left.Err() == nil {
		reason := r.live(staying)
		if staying.Err() != nil {
			break
		}
		wait(staying, r.fail(ctx, reason))
	}
	if ctx.Err() != nil {
		return
	}
	if err := r.leave(ctx, orStandard(r.model.Load().DrainTimeout, r.launcher.config.DrainTimeout)); err != nil {
		r.launcher.config.Log.Error("replica cannot be ended", zap.String("replica", r.id), zap.Error(err))
	}
	r.report(ctx, engines.Stopped, "")
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
	if staying.Err() == nil {
		r.report(staying, engines.Failed, "its process has ended") // at once; how it ended takes some milliseconds to find out
	}
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
	command, err := m.render(int(address.Port()))
	if err != nil {
		return err
	}
	env, err := m.environment(int(address.Port()))
	if err != nil {
		return err
	}
	spec := process.Spec{
		Name: purpose + "/" + r.id, Purpose: purpose, Command: command, Env: append(env, r.devices(m)...),
		Meta: map[string]string{
			metaModel: m.Name, metaIndex: strconv.Itoa(r.index), metaAddress: address.String(),
			metaFingerprint: m.fingerprint(), metaRestarts: strconv.Itoa(r.starts),
			metaResources: r.resources(), metaGPUs: r.replica.GPUs,
			metaDrain: m.DrainTimeout.String(),
		},
	}
	_ = listener.Close() // from here on somebody else may take the port: then the engine ends early, and starts anew
	started, err := r.launcher.config.Dir.Start(spec)
	if err != nil {
		return err
	}
	r.process = started
	r.replica.PID, r.replica.Restarts, r.replica.Slots = started.PID(), r.starts, m.slots()
	r.starts++
	return nil
}

// awaitReady probes until the engine is ready and then returns nothing, as when alive ends. Otherwise it returns what is wrong.
func (r *runner) awaitReady(alive context.Context) string {
	m := r.model.Load()
	deadline := time.Now().Add(m.startTimeout())
	for {
		got, text := r.launcher.prober.ask(alive, r.replica.Address, m.Version.Ready.Path)
		if got == well || alive.Err() != nil {
			return ""
		}
		if time.Now().After(deadline) {
			return withLog(fmt.Sprintf("not ready after %v: %s", m.startTimeout(), text), r.process.Tail(strikes))
		}
		wait(alive, m.readyEvery())
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
		m := r.model.Load()
		wait(alive, m.healthEvery())
		if alive.Err() != nil {
			return ""
		}
		got, text := r.launcher.prober.ask(alive, r.replica.Address, m.Version.Health.Path)
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

// exitReason says how the process ended. Before it was ready its log tells why; what it logged while it served may hold
// what clients have sent, so then only the place of the log is named.
func (r *runner) exitReason() string {
	if !r.served {
		return r.process.ExitReason()
	}
	return r.process.ExitStatus() + "; its log is " + r.process.Record().LogFile
}

// fail takes the replica out at once, ends what is left of its process, and returns how long to wait before the next start.
func (r *runner) fail(ctx context.Context, reason string) time.Duration {
	pause := r.pause(reason)
	r.report(ctx, engines.Failed, fmt.Sprintf("%s; next start in %v", reason, pause))
	r.launcher.config.Log.Warn("replica failed", zap.String("replica", r.id), zap.String("reason", reason), zap.Duration("next_start", pause))
	if err := r.end(ctx); err != nil {
		r.launcher.config.Log.Error("failed replica cannot be ended", zap.String("replica", r.id), zap.Error(err))
	}
	return pause
}

// lostPort tells whether the engine ended because its port was somebody else's when it wanted it.
func (r *runner) lostPort(reason string) bool {
	ended := r.process != nil && r.process.ExitStatus() != ""
	return ended && !r.served && (saysInUse(reason) || occupied(r.replica.Address))
}

func saysInUse(reason string) bool {
	reason = strings.ToLower(reason)
	for _, words := range []string{"address already in use", "address in use", "eaddrinuse"} {
		if strings.Contains(reason, words) {
			return true
		}
	}
	return false
}

// pause is how long to wait before the next start.
func (r *runner) pause(reason string) time.Duration {
	b := r.launcher.config.BackOff
	if !r.readySince.IsZero() && time.Since(r.readySince) >= b.Reset {
		r.failures = 0
	}
	if !r.lostPort(reason) {
		r.collisions = 0
	} else if r.collisions++; r.collisions <= quickStarts {
		return 0
	}
	r.failures++
	return b.after(r.failures)
}

// leave waits until the replica's requests are done, if it has ever had any, but no longer than atMost, and ends the process.
func (r *runner) leave(ctx context.Context, atMost time.Duration) error {
	if r.process != nil && r.served {
		r.drain(ctx, atMost)
	}
	return r.end(ctx)
}

// drain returns when the replica has no requests, at the earliest after DrainSettle: until then somebody may still send it
// one on the strength of an older snapshot.
func (r *runner) drain(ctx context.Context, atMost time.Duration) {
	c := r.launcher.config
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	alive, cancel := whileAlive(ctx, r.process)
	defer cancel()
	wait(alive, c.DrainSettle)
	for c.InFlight != nil && alive.Err() == nil && c.InFlight(r.id) > 0 {
		wait(alive, drainLook)
	}
}

// end ends the process, if there is one, and gives its port and its turn to start back.
func (r *runner) end(ctx context.Context) error {
	defer r.launcher.turns.done(r.id)
	if r.replica.Address.IsValid() {
		defer r.launcher.ports.release(r.replica.Address.Port())
	}
	ended := r.process
	r.process, r.readySince, r.served = nil, time.Time{}, false
	r.replica.Address, r.replica.PID = netip.AddrPort{}, 0
	if ended == nil {
		return nil
	}
	if err := ended.Stop(ctx, r.launcher.config.StopGrace); err != nil && !errors.Is(err, process.ErrNotClaimed) {
		return err
	}
	return nil
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
