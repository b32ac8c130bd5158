// Package envoy finds an Envoy binary, writes its bootstrap, and keeps one Envoy running for a state directory.
//
// The Envoy belongs to the state directory, not to the process that started it: when Sluice dies or hands over, Envoy and all
// its streams go on, and the next Sluice adopts it, if it runs what that Sluice would start. Everything but the bootstrap
// reaches Envoy by xDS; this package knows nothing of listeners, routes and models.
package envoy

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	// RecordName is how the state directory knows the Envoy.
	RecordName = "envoy"
	// defaultDrainTime is above 30 minutes, the default longest stream: Envoy cuts the streams of a changed listener when
	// its drain time is over.
	defaultDrainTime    = 31 * time.Minute
	defaultReplaceDrain = 30 * time.Second

	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
	// stableAfter is how long an Envoy has to run for its end to count as the first one.
	stableAfter = 10 * time.Second

	// How often Envoy is asked for its state: soon after a start, less and less often until it is live, then every second.
	minPoll  = 20 * time.Millisecond
	maxPoll  = 250 * time.Millisecond
	livePoll = time.Second
)

// Config says which Envoy to run, and how.
type Config struct {
	// Binary is the path of the program, as Find returns it. Required.
	Binary string
	// Dir is the state directory that Envoy belongs to, claimed by this process before Run. Required.
	Dir *process.Dir
	// Bootstrap holds the sockets. Required.
	Bootstrap BootstrapConfig
	// DrainTime is how long the streams of a listener that xDS has changed may go on. It must be above the longest stream
	// that is allowed. 0 means 31 minutes.
	DrainTime time.Duration
	// ReplaceDrain is how long an adopted Envoy that runs something else than this Config says is given to finish its
	// streams before it is replaced. 0 means 30 s.
	ReplaceDrain time.Duration
	// Concurrency is the number of Envoy's worker threads. 0 means one for each hardware thread.
	Concurrency int
	// Log is where the life of the Envoy is told. nil is silent. (Envoy's own log is a file in the state directory.)
	Log *zap.Logger
}

// State is where an Envoy is in its life.
type State string

// The states of an Envoy.
const (
	StateStarting State = "starting" // it runs, and has not got its configuration yet
	StateLive     State = "live"     // it accepts requests
	StateDraining State = "draining" // it finishes what it has
	StateDown     State = "down"     // it does not run
)

// Status is what an operator may want to know of the Envoy.
type Status struct {
	State State
	// PID is 0 while it is down.
	PID int
	// Version of the binary, such as 1.40.0. Empty before Run.
	Version string
	// Adopted tells that it was running already when Run began.
	Adopted bool
	// Restarts counts how often it ended by itself.
	Restarts int
	// Reason tells why it is not live, or, when it is, how it ended the last time, with its last log lines.
	Reason string
}

// Envoy is one supervised Envoy process. Its methods are safe for concurrent use.
type Envoy struct {
	cfg   Config
	log   *zap.Logger
	admin Admin

	// life is held while the process is started or is taken to be stopped, so that none is started behind Stop's back.
	life    sync.Mutex
	proc    *process.Process // the last one; guarded by life
	stopped chan struct{}    // closed by the first Stop; closing is guarded by life

	mu     sync.Mutex
	status Status // guarded by mu
}

// New starts nothing.
func New(c Config) *Envoy {
	if c.DrainTime <= 0 {
		c.DrainTime = defaultDrainTime
	}
	if c.ReplaceDrain <= 0 {
		c.ReplaceDrain = defaultReplaceDrain
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	return &Envoy{
		cfg:     c,
		log:     c.Log,
		admin:   Admin{Socket: c.Bootstrap.AdminSocket},
		stopped: make(chan struct{}),
		status:  Status{State: StateDown},
	}
}

// Status returns how the Envoy is now.
func (e *Envoy) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

// Admin is the admin interface of the Envoy.
func (e *Envoy) Admin() Admin { return e.admin }

// Run adopts the Envoy that the state directory has, or validates the bootstrap and starts one, and starts it again, with
// back-off, whenever it ends. It fails when there is no usable binary or Envoy refuses the bootstrap, in Envoy's own words. It
// returns nil when ctx ends, and then leaves the process running, or after Stop.
func (e *Envoy) Run(ctx context.Context) error {
	l, err := e.prepare(ctx)
	if err == nil {
		e.change(func(s *Status) { s.Version = l.version })
		err = e.begin(ctx, l)
	}
	if err == nil {
		e.keep(ctx, l)
	}
	if ctx.Err() != nil || e.isStopped() {
		return nil
	}
	return err
}

// begin leaves a process in e.proc: the adopted one, or the first one of ours.
func (e *Envoy) begin(ctx context.Context, l launch) error {
	adopted, err := e.adopt(ctx, l)
	if err != nil || adopted {
		return err
	}
	if err := l.validate(ctx); err != nil {
		return err
	}
	return e.start(l)
}

// keep watches the process and starts it again until ctx ends or Stop is called.
func (e *Envoy) keep(ctx context.Context, l launch) {
	backoff := minBackoff
	for {
		began := time.Now()
		if p := e.process(); p != nil {
			e.watch(ctx, p)
		}
		if ctx.Err() != nil || e.isStopped() {
			return
		}
		if time.Since(began) >= stableAfter {
			backoff = minBackoff
		}
		if !e.pause(ctx, backoff) {
			return
		}
		backoff = min(2*backoff, maxBackoff)
		e.change(func(s *Status) { s.Restarts++ })
		if err := e.start(l); err != nil {
			e.log.Error("envoy does not start", zap.Error(err))
			e.change(func(s *Status) { s.Reason = err.Error() })
		}
	}
}

// start runs the command, unless Stop was called.
func (e *Envoy) start(l launch) error {
	e.life.Lock()
	defer e.life.Unlock()
	if e.isStopped() {
		return nil
	}
	e.proc = nil
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
	e.change(func(s *Status) { s.State, s.PID, s.Adopted = StateStarting, p.PID(), false })
	e.log.Info("envoy started", zap.Int("pid", p.PID()), zap.String("version", l.version),
		zap.String("log", p.Record().LogFile))
	return nil
}

// watch keeps the status true until the process ends, ctx ends, or Stop is called.
func (e *Envoy) watch(ctx context.Context, p *process.Process) {
	poll := minPoll
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.stopped:
			return
		case <-p.Done():
			e.ended(p)
			return
		case <-timer.C:
		}
		if e.look(ctx) == StateLive {
			poll = livePoll
		} else {
			poll = min(2*poll, maxPoll)
		}
		timer.Reset(poll)
	}
}

// look asks Envoy for its state and notes it.
func (e *Envoy) look(ctx context.Context) State {
	said, err := e.admin.ServerState(ctx)
	state, reason := StateStarting, "it waits for its configuration"
	switch {
	case err != nil:
		reason = err.Error()
	case said == stateLive:
		state = StateLive
	case said == stateDraining:
		state, reason = StateDraining, "somebody has told it to drain"
	}
	e.change(func(s *Status) {
		if ctx.Err() != nil || e.isStopped() {
			return // Stop has the say now
		}
		if s.State != state {
			e.log.Info("envoy is "+string(state), zap.Int("pid", s.PID))
		}
		s.State = state
		if state != StateLive {
			s.Reason = reason
		}
	})
	return state
}

func (e *Envoy) ended(p *process.Process) {
	e.change(func(s *Status) {
		if e.isStopped() {
			return
		}
		e.log.Error("envoy ended", zap.Int("pid", p.PID()), zap.String("reason", p.ExitReason()))
		s.State, s.PID, s.Reason = StateDown, 0, p.ExitReason()
	})
}

// pause reports false when ctx ended or Stop was called before the time was over.
func (e *Envoy) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-e.stopped:
	}
	return false
}

func (e *Envoy) process() *process.Process {
	e.life.Lock()
	defer e.life.Unlock()
	return e.proc
}

func (e *Envoy) isStopped() bool {
	select {
	case <-e.stopped:
		return true
	default:
		return false
	}
}

func (e *Envoy) change(f func(*Status)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f(&e.status)
}
