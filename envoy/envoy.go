// Package envoy finds an Envoy binary, writes its bootstrap, and keeps one Envoy running for a
// state directory. Package internal/gateway runs its Envoy and uses its Admin to ask Envoy for
// running requests.
//
// The Envoy belongs to the state directory and not to the process that started it. When Sluice dies
// or hands over, Envoy and all its streams continue. The next Sluice adopts the Envoy if it would
// start the same one. Everything except the bootstrap reaches Envoy by xDS, so this package knows
// nothing of listeners, routes and models.
package envoy

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/beat"
	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	// RecordName is the name of the Envoy's record in the state directory.
	RecordName = "envoy"
	// defaultDrainTime is longer than 30 minutes, the default limit of a stream: Envoy cuts the
	// streams of a changed listener when the drain time is over.
	defaultDrainTime          = 31 * time.Minute
	defaultPredecessorTimeout = time.Hour
	defaultHangTimeout        = 30 * time.Second

	// minBackoff and maxBackoff bound the time between the end of an Envoy and its next start.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
	// stableAfter is how long an Envoy must run for the back-off to begin anew after its end.
	stableAfter = 10 * time.Second

	// The intervals at which Envoy is asked for its state. After a start the interval grows from
	// minPoll to maxPoll; once Envoy is live it is livePoll.
	minPoll  = 20 * time.Millisecond
	maxPoll  = 250 * time.Millisecond
	livePoll = time.Second
)

// MostWorkers is how many workers Sluice's Envoy has at most unless the file says another number.
// One worker carries thousands of requests a second.
const MostWorkers = 8

// Config says which Envoy to run and how.
type Config struct {
	// Binary is the path of the program, as Find returns it. Required.
	Binary string
	// Dir is the state directory of the Envoy. This process must have claimed it before Run.
	// Required.
	Dir *process.Dir
	// Bootstrap holds the sockets. Required.
	Bootstrap BootstrapConfig
	// Listen is the address of the listener for clients. Without it, an Envoy that is replaced may
	// lose connections that are made at the moment in which it closes its listener.
	Listen netip.AddrPort
	// DrainTime is how long the streams of a listener that xDS has changed may continue. It must be
	// longer than the longest stream that is allowed. 0 means 31 minutes.
	DrainTime time.Duration
	// PredecessorTimeout is how long an Envoy that differs from this Config may go on with its
	// requests. Run starts another one beside it. nil means 1 h.
	PredecessorTimeout func() time.Duration
	// OnPredecessors is called with the nodes of the predecessors whenever these are others, and
	// before the successor of one is started. They connect with these names to the xDS server,
	// which must not change their listeners: what those have is for the successor. nil means that
	// nobody is told.
	OnPredecessors func(nodes []string)
	// Probe asks whether the Envoy answers clients, at its listener. An error means that it does
	// not. It is called only while the admin interface does not answer. nil: the admin interface
	// alone counts.
	Probe func(context.Context) error
	// HangTimeout is how long neither the admin interface nor Probe may answer before the Envoy is
	// ended and another one started. 0 means 30 s; below 0 it is never ended.
	HangTimeout time.Duration
	// Concurrency is the number of Envoy's worker threads. A running Envoy with another number is
	// replaced. 0 means one for each hardware thread, and that a running Envoy keeps its number.
	Concurrency int
	// Filter returns the path of the filter that the listener of a new Envoy loads, or "" for none.
	// Run calls it before each start, while no Envoy runs but predecessors, with the version of
	// the binary. The record of the Envoy keeps the path, see RunningFilter. nil: there is no
	// filter.
	Filter func(ctx context.Context, version string) (path string)
	// Keeps reports whether an Envoy of a version may keep the filter that it was started with. One
	// that may not is replaced. nil: each one may.
	Keeps func(ctx context.Context, version, path string) bool
	// Log receives the starts, ends and states of the Envoy. nil discards them. (Envoy's own log is
	// a file in the state directory.)
	Log *zap.Logger
}

// State is the state of an Envoy.
type State string

// The states of an Envoy.
const (
	StateStarting State = "starting" // it runs and has no configuration yet
	StateLive     State = "live"     // it accepts requests
	StateDraining State = "draining" // it finishes its requests and accepts no new ones
	StateDown     State = "down"     // it does not run
)

// Status describes the Envoy to an operator.
type Status struct {
	State State
	// PID is 0 while no Envoy runs.
	PID int
	// Version is the version of the binary, such as 1.40.0, or of the Envoy that was adopted while
	// the binary could not be used. It is empty before Run.
	Version string
	// Adopted means that the Envoy was already running when Run began.
	Adopted bool
	// Budget is the budget of the running Envoy. An adopted Envoy has the one that it was started
	// with.
	Budget Budget
	// Restarts counts how often the Envoy ended by itself.
	Restarts int
	// Reason says why the Envoy is not live. If it is live, Reason says how the previous one ended,
	// with its last log lines.
	Reason string
	// SilentSince is when the admin interface answered last, if it does not answer now and did not
	// for silentAfter. It is zero while the admin interface answers.
	SilentSince time.Time
	// Hung means that Probe fails too. It is false while SilentSince is zero.
	Hung bool
	// Predecessors are the Envoys that were replaced and still have requests, from the one that was
	// replaced first.
	Predecessors []Predecessor
}

// Envoy supervises one Envoy process. Its methods are safe for concurrent use. Lock order:
// processMu before mu.
type Envoy struct {
	cfg Config
	log *zap.Logger
	// processMu is held while the process is started or fetched to be stopped, so that no process
	// is started after Stop has fetched the last one.
	processMu sync.Mutex
	// proc is the last process. Guarded by processMu.
	proc *process.Process
	// stopped is closed by the first Stop, with processMu held.
	stopped chan struct{}

	// reportMu is held while Config.OnPredecessors is called.
	reportMu sync.Mutex
	// sharesPort means that a predecessor may still accept connections.
	sharesPort atomic.Bool

	mu sync.Mutex
	// status is guarded by mu.
	status Status
	// lastExit is how the previous process ended by itself; empty: none has. Guarded by mu.
	lastExit string
}

// New returns an Envoy that is down. Call Run to start it.
func New(c Config) *Envoy {
	if c.DrainTime <= 0 {
		c.DrainTime = defaultDrainTime
	}
	if c.PredecessorTimeout == nil {
		c.PredecessorTimeout = func() time.Duration { return defaultPredecessorTimeout }
	}
	c.HangTimeout = cmp.Or(c.HangTimeout, defaultHangTimeout)
	c.Log = cmp.Or(c.Log, zap.NewNop())
	return &Envoy{
		cfg:     c,
		log:     c.Log,
		stopped: make(chan struct{}),
		status:  Status{State: StateDown},
	}
}

// Status returns the current status.
func (e *Envoy) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

// Run adopts the Envoy of the state directory, or validates the bootstrap and starts an Envoy.
// Whenever the Envoy ends, Run starts it again after a back-off. An Envoy that differs from the
// Config is replaced: Run starts another one beside it, which shares its port. Once that one
// accepts connections, the first one accepts none, and ends when its requests have ended.
//
// An Envoy that runs is kept while there is no usable binary. Run returns an error if there is
// neither of both, or if Envoy refuses the bootstrap; the error then has Envoy's own words. An
// Envoy that cannot be started for another reason, such as a full disk, is tried again. Run returns
// nil when ctx ends, which leaves the process running, and after Stop.
func (e *Envoy) Run(ctx context.Context) error {
	l, err := e.prepareLaunch()
	if err == nil {
		err = e.adoptOrStart(ctx, &l)
	}
	if err == nil {
		e.reportPredecessors()
		all := e.predecessors()
		e.sharesPort.Store(len(all) > 0)
		var draining sync.WaitGroup
		draining.Go(func() { e.drainPredecessors(ctx, all) })
		e.supervise(ctx, l)
		draining.Wait()
	}
	if ctx.Err() != nil || e.isStopped() {
		return nil
	}
	return err
}

// adoptOrStart sets e.proc to the adopted process or to a new one, and the version of l.
func (e *Envoy) adoptOrStart(ctx context.Context, l *launchSpec) error {
	if err := e.readVersion(ctx, l); err != nil {
		if ctx.Err() == nil && e.keep(err) {
			return nil
		}
		return err
	}
	if e.adopt(ctx, *l) {
		return nil
	}
	if err := e.writeBootstrap(*l); err != nil {
		e.startFailed(err) // supervise tries again
		return nil
	}
	if err := e.validate(ctx, *l); err != nil {
		return err
	}
	if err := e.start(ctx, *l); err != nil {
		e.startFailed(err)
	}
	return nil
}

// startFailed logs and shows why no Envoy could be started.
func (e *Envoy) startFailed(err error) {
	e.log.Error("Envoy start failed", zap.Error(err))
	e.updateStatus(func(s *Status) { s.State, s.PID, s.Reason = StateDown, 0, err.Error() })
}

// supervise watches the process and starts a new one when it ends, until ctx ends or Stop is
// called.
func (e *Envoy) supervise(ctx context.Context, l launchSpec) {
	backoff := minBackoff
	for {
		started := time.Now()
		p := e.currentProcess()
		if p != nil {
			e.watch(ctx, p)
		}
		if ctx.Err() != nil || e.isStopped() {
			return
		}
		if time.Since(started) >= stableAfter {
			backoff = minBackoff
		}
		if !e.sleep(ctx, backoff) {
			return
		}
		backoff = min(2*backoff, maxBackoff)
		if p != nil {
			e.updateStatus(func(s *Status) { s.Restarts++ })
		}
		if err := e.startAgain(ctx, &l); err != nil && ctx.Err() == nil && !e.isStopped() {
			e.startFailed(err)
		}
	}
}

// startAgain starts a process after another one has ended. The binary may have been replaced since.
// The end of the other one is told and counted once, also if no process can be started.
func (e *Envoy) startAgain(ctx context.Context, l *launchSpec) error {
	e.processMu.Lock()
	e.proc = nil
	e.processMu.Unlock()
	if err := e.readVersion(ctx, l); err != nil {
		return err
	}
	return e.start(ctx, *l)
}

// readVersion sets the version of l to that of the binary.
func (e *Envoy) readVersion(ctx context.Context, l *launchSpec) error {
	version, err := Version(ctx, e.cfg.Binary)
	if err != nil {
		return err
	}
	l.version = version
	e.updateStatus(func(s *Status) { s.Version = version })
	return nil
}

// start starts a process, unless Stop was called.
func (e *Envoy) start(ctx context.Context, l launchSpec) error {
	l.ordinal = e.freeOrdinal()
	e.reportPredecessors() // one that had this ordinal may have ended
	if e.cfg.Filter != nil {
		l.filter = e.cfg.Filter(ctx, l.version)
	}
	if err := l.render(e.cfg.Bootstrap); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	e.processMu.Lock()
	defer e.processMu.Unlock()
	if e.isStopped() {
		return nil
	}
	e.proc = nil
	if err := e.writeBootstrap(l); err != nil {
		return err
	}
	p, err := e.cfg.Dir.Start(process.Spec{
		Name:    RecordName,
		Purpose: RecordName,
		Command: l.command,
		WorkDir: e.cfg.Dir.Path(),
		Meta:    l.meta(),
	})
	if err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	e.proc = p
	e.updateStatus(func(s *Status) { s.State, s.PID, s.Adopted, s.Budget = StateStarting, p.PID(), false, l.budget })
	e.log.Info("Envoy started", zap.Int("pid", p.PID()), zap.String("version", l.version),
		zap.String("log", p.Record().LogFile))
	return nil
}

// watch updates the status until the process ends, ctx ends, or Stop is called. It ends a process
// that hangs.
func (e *Envoy) watch(ctx context.Context, p *process.Process) {
	poll := minPoll
	dog := newWatchdog()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.stopped:
			return
		case <-p.Done():
			e.recordExit(p)
			return
		case <-timer.C:
		}
		state := e.refreshState(ctx, &dog)
		if dog.bites(e.cfg.HangTimeout) && ctx.Err() == nil {
			e.endHung(ctx, p) // supervise starts another one
		}
		if state == StateLive {
			poll = maxPoll
			timer.Reset(beat.Until(livePoll))
		} else {
			poll = min(2*poll, maxPoll)
			timer.Reset(poll)
		}
	}
}

// refreshState asks Envoy for its state, stores the state in the status and returns it. When the
// admin interface does not answer, it asks the listener: an Envoy that was live stays live while
// its listener answers.
func (e *Envoy) refreshState(ctx context.Context, dog *watchdog) State {
	reported, err := e.Admin().ServerState(ctx)
	listener := err
	if err != nil && !e.sharesPort.Load() { // else a predecessor may answer
		listener = e.probe(ctx)
	}
	if ctx.Err() == nil {
		dog.observe(err, listener)
	}
	state, reason := StateStarting, "envoy has no configuration yet"
	switch {
	case err != nil && listener == nil && e.Status().State == StateLive:
		state = StateLive
	case err != nil:
		reason = err.Error()
	case reported == serverLive:
		state = StateLive
	case reported == serverDraining:
		state, reason = StateDraining, "an operator told envoy to drain"
	}
	e.updateStatus(func(s *Status) {
		if ctx.Err() != nil || e.isStopped() {
			// Stop sets the status from now on.
			return
		}
		if s.State != state {
			e.log.Info("Envoy state changed", zap.String("state", string(state)), zap.Int("pid", s.PID))
		}
		s.State, s.SilentSince, s.Hung = state, dog.silentSince(), dog.hung()
		if s.Reason = reason; state == StateLive {
			s.Reason = e.lastExit
		}
	})
	return state
}

// recordExit stores and logs the end of a process, unless Stop caused the end.
func (e *Envoy) recordExit(p *process.Process) {
	e.updateStatus(func(s *Status) {
		if e.isStopped() {
			return
		}
		e.log.Error("Envoy ended", zap.Int("pid", p.PID()), zap.String("reason", p.ExitReason()))
		e.lastExit = p.ExitReason()
		s.State, s.PID, s.Reason = StateDown, 0, e.lastExit
	})
}

// sleep waits for d. It returns false if ctx ended or Stop was called before.
func (e *Envoy) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
	case <-e.stopped:
	}
	return false
}

// currentProcess returns the last process, or nil if none was started.
func (e *Envoy) currentProcess() *process.Process {
	e.processMu.Lock()
	defer e.processMu.Unlock()
	return e.proc
}

// Admin returns the admin interface of the last process, or of the next one if there was none.
func (e *Envoy) Admin() Admin {
	if p := e.currentProcess(); p != nil {
		return adminOf(p.Record())
	}
	return Admin{Socket: e.cfg.Bootstrap.AdminSocket}
}

// isStopped reports whether Stop was called.
func (e *Envoy) isStopped() bool {
	select {
	case <-e.stopped:
		return true
	default:
		return false
	}
}

// updateStatus calls f with mu held.
func (e *Envoy) updateStatus(f func(*Status)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f(&e.status)
}
