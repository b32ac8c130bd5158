// Package local is the launcher whose replicas are processes on this host.
//
// One goroutine, Run's loop, owns the table of replicas: it compares it with what is wanted, decides which replicas begin and
// leave, and alone reports to the fleet. Each replica has a runner, a goroutine that lives through the replica's processes one after
// another and tells the loop what became of them. The processes belong to the state directory (internal/process): they outlive
// a crash, and Adopt takes them over.
package local

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/process"
)

// source is the launcher's name in the fleet.
const source = "local"

// rotateEvery is the pause between two looks at the logs of what runs.
const rotateEvery = time.Minute

// Model is what the launcher keeps running: Desired replicas of one engine version.
type Model struct {
	// Model is reported to the fleet as it is. Its Desired is how many replicas there shall be.
	engines.Model
	// Indices are the numbers of the replicas that there shall be on this host. nil: from 0 up to Desired.
	Indices []int
	// Version is how the engine is started and probed.
	Version engines.Version
	// Launch is what the command is rendered with. Host and Port are the launcher's to fill.
	Launch engines.Launch
	// Env is added to our own environment, and wins.
	Env map[string]string
	// Resources are what a replica takes of this host; one that does not fit waits. nil: the model is not placed, and its replicas see the
	// GPUs that we see.
	Resources *engines.Resources
	// Placement says which of several hosts and GPUs with room a replica gets; empty means Spread.
	Placement Placement
	// Cluster is a label that the host must have; empty: any host will do.
	Cluster string
	// EvictIdle lets a replica that fits nowhere take the place of replicas of models that nobody uses.
	EvictIdle bool
	// StartTimeout is how long a replica may take from its start to its readiness; 0 means 10 min.
	StartTimeout time.Duration
	// DrainTimeout is how long a replica that is wanted no longer may take to finish its requests while the gateway runs on: as long as a
	// response may take. 0 means Config.DrainTimeout.
	DrainTimeout time.Duration
}

// Launcher keeps the wanted replicas running. Set, Run and Stop may be called from different goroutines.
type Launcher struct {
	config Config
	prober *prober
	ports  *ports
	turns  *turns
	events chan event
	// limits holds replicas to what they may take.
	limits *cgroups
	// doubted holds a channel by replica id, for every runner that runs: see Suspect.
	doubted sync.Map
	// node is what the inventory said last; nil before the first reading.
	node atomic.Pointer[reading]
	// read tells the loop that node is new.
	read chan struct{}
	// wake tells the loop that wanted has changed; it holds at most one token.
	wake chan struct{}
	// quit is closed to make the loop leave the table to Stop.
	quit chan struct{}

	// What tests replace: how a process is ended, how long a reading of the inventory may take, and the pause between looks at the logs.
	stop        func(p *process.Process, ctx context.Context, grace time.Duration) error
	readTimeout time.Duration
	rotateEvery time.Duration

	mu sync.Mutex
	// wanted is the desired state; guarded by mu
	wanted []wish
	// running is closed when Run has returned, and nil before it is called; guarded by mu
	running chan struct{}
	// stopped: quit is closed; guarded by mu
	stopped bool

	// table is owned by Run's loop while it runs; before that by Adopt, after it by Stop.
	table *table
}

// New returns a launcher that does nothing yet.
func New(c Config) *Launcher {
	c = c.withDefaults()
	return &Launcher{
		config: c,
		prober: newProber(c.ProbeTimeout),
		ports:  newPorts(c.Address),
		turns:  newTurns(),
		events: make(chan event),
		read:   make(chan struct{}),
		wake:   make(chan struct{}, 1),
		quit:   make(chan struct{}),
		limits: newCgroups(c.Dir, c.Log),
		table:  newTable(c),

		stop:        (*process.Process).Stop,
		readTimeout: readTimeout,
		rotateEvery: rotateEvery,
	}
}

// Set says which models there shall be, all of them, and how many replicas of each. A model whose command or environment has
// changed is replaced replica by replica: one leaves, its successor must be ready before the next one leaves. Replicas that are wanted
// no longer finish their requests first.
func (l *Launcher) Set(models []Model) {
	wishes := make([]wish, len(models))
	for i, m := range models {
		m.Launcher = engines.Local
		wishes[i] = wish{Model: m, fingerprint: m.fingerprint(l.config.Address)}
	}
	l.mu.Lock()
	l.wanted = wishes
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *Launcher) desired() []wish {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wanted
}

// Run keeps the replicas as Set says until ctx ends, and then returns nil and leaves the processes running for the next
// Adopt. It is called once.
func (l *Launcher) Run(ctx context.Context) error {
	finished, err := l.enter()
	if finished == nil {
		return err
	}
	defer close(finished)
	ctx, cancel := context.WithCancel(ctx)
	var runners sync.WaitGroup
	defer runners.Wait()
	defer cancel()
	begin := func(r *runner) { runners.Go(func() { l.watch(r, func() { r.run(ctx) }) }) }
	runners.Go(func() { l.readInventory(ctx) })
	runners.Go(func() { l.rotateLogs(ctx) })
	for {
		wanted := l.desired()
		l.table.reconcile(wanted, l.newRunner)
		l.table.place(wanted)
		l.table.publish(wanted)
		// Only now: what leaves must be out of the fleet before it is told to.
		l.table.carryOut(begin)
		select {
		case <-ctx.Done():
			return nil
		case <-l.quit:
			return nil
		case <-l.wake:
		case <-l.read:
			l.table.node = l.node.Load()
		case e := <-l.events:
			l.table.apply(e)
		}
	}
}

// rotateLogs keeps the logs of this directory's processes from growing without bound: a replica may run for months.
func (l *Launcher) rotateLogs(ctx context.Context) {
	for wait(ctx, l.rotateEvery); ctx.Err() == nil; wait(ctx, l.rotateEvery) {
		if err := l.config.Dir.RotateLogs(); err != nil {
			l.config.Log.Warn("not all logs could be rotated", zap.Error(err))
		}
	}
}

// enter makes Run the owner of the table. It returns nil when Run must not run.
func (l *Launcher) enter() (chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return nil, nil
	}
	if l.running != nil {
		return nil, errors.New("the local launcher was run before")
	}
	l.running = make(chan struct{})
	return l.running, nil
}

// quitLoop makes Stop the owner of the table.
func (l *Launcher) quitLoop() {
	l.mu.Lock()
	if !l.stopped {
		l.stopped = true
		close(l.quit)
	}
	running := l.running
	l.mu.Unlock()
	if running != nil {
		<-running
	}
}

// Stop takes all replicas out of the fleet's rotation, waits until each has finished its requests or until DrainTimeout or
// ctx is over, and ends the processes. Run, if it is running, returns nil first; if it is called later, it returns nil at once.
// The errors name what could not be ended.
func (l *Launcher) Stop(ctx context.Context) error {
	l.quitLoop()
	wanted := l.desired()
	replicas := l.table.allLeave()
	l.table.publish(wanted)
	errs := make([]error, len(replicas))
	var stopping sync.WaitGroup
	for i, r := range replicas {
		stopping.Go(func() {
			if err := r.leave(ctx, l.config.DrainTimeout); err != nil {
				errs[i] = fmt.Errorf("replica %s: %w", r.id, err)
			}
		})
	}
	stopping.Wait()
	l.table.clear()
	l.table.publish(wanted)
	return errors.Join(errs...)
}
