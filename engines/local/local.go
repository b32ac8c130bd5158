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
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/process"
)

// source is the launcher's name in the fleet.
const source = "local"

// Model is what the launcher keeps running: Desired replicas of one engine version.
type Model struct {
	// Model is reported to the fleet as it is. Its Desired is how many replicas there shall be.
	engines.Model
	// Version is how the engine is started and probed.
	Version engines.Version
	// Launch is what the command is rendered with. Host and Port are the launcher's to fill.
	Launch engines.Launch
	// Env is added to our own environment, and wins.
	Env map[string]string
	// Resources are what a replica takes of this host; one that does not fit waits. nil: the model is not placed, and its replicas see the
	// GPUs that we see.
	Resources *engines.Resources
	// Placement says which of several GPUs with room a replica gets; empty means Spread.
	Placement Placement
	// StartTimeout is how long a replica may take from its start to its readiness; 0 means 10 min.
	StartTimeout time.Duration
	// DrainTimeout is how long a replica that is wanted no longer may take to finish its requests while the gateway runs on: as long as a
	// response may take. 0 means Config.DrainTimeout.
	DrainTimeout time.Duration
}

// BackOff is how long a replica that failed waits for its next start.
type BackOff struct {
	// First is the pause after the first failure, doubled after each further one; 0 means 1 s.
	First time.Duration
	// Most is the longest pause; 0 means 300 s.
	Most time.Duration
	// Reset is how long a replica must have been ready for its earlier failures to be forgotten; 0 means 60 s.
	Reset time.Duration
}

// after is the pause after so many failures in a row.
func (b BackOff) after(failures int) time.Duration {
	pause := min(b.First, b.Most)
	for range failures - 1 {
		if pause *= 2; pause >= b.Most {
			return b.Most
		}
	}
	return pause
}

// Config says what the launcher works with. Dir and Fleet are needed.
type Config struct {
	// Dir holds the processes; it must be claimed.
	Dir   *process.Dir
	Fleet *engines.Fleet
	// Log may be nil: silent.
	Log *zap.Logger
	// InFlight tells how many requests a replica has. nil means that it is not known: then nothing is waited for when a replica
	// drains, and an engine that does not answer its probes is taken for busy.
	InFlight func(replicaID string) int
	// Inventory tells what this host has for replicas whose models name resources; nil: its processors and memory, and no GPUs.
	Inventory Inventory
	// ReadEvery is the pause between two readings of the inventory; 0 means 1 min.
	ReadEvery time.Duration

	BackOff BackOff
	// DrainTimeout is how long replicas may take to finish their requests when the gateway stops; 0 means 30 s.
	DrainTimeout time.Duration
	// DrainSettle is how long a leaving replica waits at least, for those who route by an older snapshot; 0 means 1 s.
	DrainSettle time.Duration
	// StopGrace is the time between SIGTERM and SIGKILL; 0 means 10 s.
	StopGrace time.Duration
	// ProbeTimeout is how long a probe waits for its answer; 0 means 5 s.
	ProbeTimeout time.Duration
}

// withDefaults fills in what zero stands for.
func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Inventory == nil {
		c.Inventory = processors{}
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&c.BackOff.First, time.Second},
		{&c.BackOff.Most, 300 * time.Second},
		{&c.BackOff.Reset, time.Minute},
		{&c.DrainTimeout, 30 * time.Second},
		{&c.DrainSettle, time.Second},
		{&c.StopGrace, 10 * time.Second},
		{&c.ProbeTimeout, 5 * time.Second},
		{&c.ReadEvery, readEvery},
	} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	return c
}

// Launcher keeps the wanted replicas running. Set, Run and Stop may be called from different goroutines.
type Launcher struct {
	config Config
	prober *prober
	ports  *ports
	turns  *turns
	events chan event
	// node is what the inventory said last; nil before the first reading.
	node atomic.Pointer[engines.Node]
	// read tells the loop that node is new.
	read chan struct{}
	// wake tells the loop that wanted has changed; it holds at most one token.
	wake chan struct{}
	// quit is closed to make the loop leave the table to Stop.
	quit chan struct{}

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
		ports:  newPorts(),
		turns:  newTurns(),
		events: make(chan event),
		read:   make(chan struct{}),
		wake:   make(chan struct{}, 1),
		quit:   make(chan struct{}),
		table:  newTable(c.Fleet, c.Log),
	}
}

// Set says which models there shall be, all of them, and how many replicas of each. A model whose command or environment has
// changed is replaced replica by replica: one leaves, its successor must be ready before the next one leaves. Replicas that are wanted
// no longer finish their requests first.
func (l *Launcher) Set(models []Model) {
	wishes := make([]wish, len(models))
	for i, m := range models {
		m.Launcher = engines.Local
		wishes[i] = wish{Model: m, fingerprint: m.fingerprint()}
	}
	l.mu.Lock()
	l.wanted = wishes
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Found tells how many replicas of each model an earlier run has left, counted up to the last one.
func (l *Launcher) Found() map[string]int {
	found := map[string]int{}
	for _, record := range l.config.Dir.Records() {
		if record.Purpose != purpose {
			continue
		}
		if index, err := strconv.Atoi(record.Meta[metaIndex]); err == nil {
			model := record.Meta[metaModel]
			found[model] = max(found[model], index+1)
		}
	}
	return found
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
	begin := func(r *runner) { runners.Go(func() { r.run(ctx) }) }
	runners.Go(func() { l.readInventory(ctx) })
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
