// Package local runs replicas as processes on the machine of the gateway or of an agent. The
// gateway (internal/gateway) and the agents of joined nodes (engines/join) use its Launcher.
//
// One goroutine, Launcher.Run, owns the table of replicas. It compares the table with the desired
// models, decides which replicas start and stop, and alone reports to the fleet. Each replica has a
// runner: a goroutine that starts one process of the replica after another and reports to Run. The
// processes belong to the state directory (internal/process). They outlive a crash of the gateway,
// and Adopt takes them over.
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
	"github.com/sluice-gateway/sluice/engines/supervise"
	"github.com/sluice-gateway/sluice/internal/beat"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/weights"
)

// source is the launcher's name in the fleet.
const source = "local"

// rotateInterval is how often the launcher rotates the logs of its processes. A process that logs
// without end can write some hundred megabytes a second.
const rotateInterval = time.Second

// Model is a model that the launcher runs: Desired replicas of one version of an engine.
type Model struct {
	// Model is reported to the fleet as it is. Its Desired is the number of replicas.
	engines.Model
	// Indices are the numbers of the replicas on this node. nil means from 0 up to Desired.
	Indices []int
	// Version says how the engine is started and probed.
	Version engines.Version
	// Launch is what the command is rendered with. The launcher sets Host and Port.
	Launch engines.Launch
	// Weights is what the launcher fetches before it starts a replica. The command then gets the
	// path of what was fetched as the model, in the place of the id in Launch. nil: nothing is
	// fetched. A node of an older release does not know the field, and there the engine fetches by
	// the id.
	Weights *weights.Source `json:",omitempty"`
	// Env is added to what engines get of the launcher's own environment, and overrides it.
	Env map[string]string
	// SecretEnv lists the names in Env whose values are hidden in the log lines of the replicas.
	// Values whose names say that they are secrets are hidden anyway.
	SecretEnv []string `json:",omitempty"`
	// Resources are what a replica needs of the node. A replica that does not fit stays pending.
	// nil means that nothing is counted, and that the replicas see the GPUs that the launcher sees.
	Resources *engines.Resources
	// Placement says which of several nodes and GPUs with room a replica gets. Empty means Spread.
	Placement Placement
	// Cluster is a label that the node must have. Empty means any node.
	Cluster string
	// EvictIdle: if a replica fits nowhere, replicas of models that nobody uses are evicted for it.
	EvictIdle bool
	// StartTimeout is how long a replica may take from its start until it is ready. 0 means 30 min.
	StartTimeout time.Duration
	// StartStall is how long a replica may load without a new line in its log and without reading
	// or writing data. 0 means 5 min.
	StartStall time.Duration `json:",omitempty"`
	// DrainTimeout is how long a replica that is stopped while the gateway runs may take to finish
	// its requests: as long as a response may take. 0 means Config.DrainTimeout.
	DrainTimeout time.Duration
}

// Launcher keeps the desired replicas running. Set, Run and Stop may be called from any goroutine.
type Launcher struct {
	config     Config
	prober     *supervise.Prober
	ports      *ports
	startLocks *startLocks
	events     chan event
	fetcher    weights.Fetcher
	// limits gives processes their limits of CPU and memory.
	limits *cgroups
	// suspected maps the id of a replica to its runner while the runner runs; see Suspect.
	suspected sync.Map
	// node is the last reading of the inventory; nil before the first one.
	node atomic.Pointer[reading]
	// read gives the loop what was read of the inventory.
	read chan reading
	// renew asks for a new reading of the inventory. It holds at most one token.
	renew chan struct{}
	// wake tells the loop that wanted has changed. It holds at most one token.
	wake chan struct{}
	// quit is closed to make the loop give the table to Stop.
	quit chan struct{}

	// Tests replace these: how a process is stopped, how long a reading of the inventory may take,
	// and the interval between rotations of logs.
	stop           func(p *process.Process, ctx context.Context, grace time.Duration) error
	readTimeout    time.Duration
	rotateInterval time.Duration

	mu sync.Mutex
	// wanted are the desired models; guarded by mu
	wanted []desiredModel
	// restarts are the ids of the replicas to restart; guarded by mu
	restarts map[string]bool
	// running is closed when Run has returned, and nil before Run is called; guarded by mu
	running chan struct{}
	// stopped: quit is closed; guarded by mu
	stopped bool

	// table is owned by Run's loop while it runs, before that by Adopt, after that by Stop.
	table *table
}

// New returns a launcher. It does nothing until Adopt or Run is called.
func New(c Config) *Launcher {
	c = c.withDefaults()
	return &Launcher{
		config:     c,
		prober:     supervise.NewProber(c.ProbeTimeout),
		ports:      newPorts(c.Address),
		startLocks: newStartLocks(),
		events:     make(chan event),
		read:       make(chan reading),
		renew:      make(chan struct{}, 1),
		wake:       make(chan struct{}, 1),
		quit:       make(chan struct{}),
		limits:     newCgroups(c.Dir, c.Log),
		table:      newTable(c),

		stop:           (*process.Process).Stop,
		readTimeout:    readTimeout,
		rotateInterval: rotateInterval,
	}
}

// Set replaces the desired models. If the command or the environment of a model has changed, its
// replicas are replaced one by one. The next one stops only when the successor of the last one is
// ready. A replica that is not wanted any more first finishes its requests.
func (l *Launcher) Set(models []Model) {
	desired := make([]desiredModel, len(models))
	for i, m := range models {
		m.Launcher = engines.Local
		desired[i] = desiredModel{Model: m, fingerprint: m.fingerprint(l.config.Address)}
	}
	l.mu.Lock()
	l.wanted = desired
	l.mu.Unlock()
	notify(l.wake)
}

func (l *Launcher) desired() []desiredModel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wanted
}

// Run keeps the replicas as Set says until ctx ends, then returns nil. It leaves the processes
// running for the next Adopt. It is called once.
func (l *Launcher) Run(ctx context.Context) error {
	finished, err := l.claimTable()
	if finished == nil {
		return err
	}
	defer close(finished)
	ctx, cancel := context.WithCancel(ctx)
	var runners sync.WaitGroup
	defer runners.Wait()
	defer cancel()
	begin := func(r *runner) { runners.Go(func() { l.runRegistered(r, func() { r.run(ctx) }) }) }
	runners.Go(func() { l.readInventory(ctx) })
	runners.Go(func() { l.rotateLogs(ctx) })
	for {
		wanted := l.desired()
		l.table.restart(l.takeRestarts())
		l.table.reconcile(wanted, l.newRunner)
		if l.table.allocateAll(wanted) {
			notify(l.renew)
		}
		l.table.publish(wanted)
		// This comes after publish: a replica must have left the fleet before its runner stops it.
		l.table.signalRunners(begin)
		select {
		case <-ctx.Done():
			return nil
		case <-l.quit:
			return nil
		case <-l.wake:
		case now := <-l.read:
			l.apply(now)
		case e := <-l.events:
			l.table.apply(e)
		}
	}
}

// rotateLogs keeps the logs of the processes from growing without bound. A replica may run for
// months. It logs that rotations fail once, until all succeed again.
func (l *Launcher) rotateLogs(ctx context.Context) {
	failed := false
	for wait(ctx, beat.Until(l.rotateInterval)); ctx.Err() == nil; wait(ctx, beat.Until(l.rotateInterval)) {
		err := l.config.Dir.RotateLogs()
		if err != nil && !failed {
			l.config.Log.Warn("log rotation failed for some replicas", zap.Error(err))
		}
		failed = err != nil
	}
}

// claimTable makes Run the owner of the table. It returns nil if Stop was called before.
func (l *Launcher) claimTable() (chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return nil, nil
	}
	if l.running != nil {
		return nil, errors.New("the local launcher was already run: Run may be called only once")
	}
	l.running = make(chan struct{})
	return l.running, nil
}

// stopLoop makes Stop the owner of the table. It waits until Run has returned.
func (l *Launcher) stopLoop() {
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

// Stop drains all replicas, waits until each has finished its requests or until DrainTimeout or ctx
// is over, and ends the processes. If Run is running, it returns nil first. If Run is called later,
// it returns nil at once. The errors name the replicas that could not be stopped.
func (l *Launcher) Stop(ctx context.Context) error { return l.stopAll(ctx, l.config.DrainSettle) }

// StopUnread is Stop, but does not wait for DrainSettle. The caller knows that nothing sends new
// requests to the replicas. StopUnread still waits for the requests that the replicas have.
func (l *Launcher) StopUnread(ctx context.Context) error { return l.stopAll(ctx, 0) }

// stopAll drains all replicas, each at least for settle, and ends their processes.
func (l *Launcher) stopAll(ctx context.Context, settle time.Duration) error {
	l.stopLoop()
	wanted := l.desired()
	replicas := l.table.drainAll()
	l.table.publish(wanted)
	errs := make([]error, len(replicas))
	var stopping sync.WaitGroup
	for i, r := range replicas {
		stopping.Go(func() {
			if err := r.shutdown(ctx, settle, l.config.DrainTimeout); err != nil {
				errs[i] = fmt.Errorf("replica %s: %w", r.id, err)
			}
		})
	}
	stopping.Wait()
	l.table.clear()
	l.table.publish(wanted)
	return errors.Join(errs...)
}
