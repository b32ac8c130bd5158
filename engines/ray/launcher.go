package ray

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/supervise"
)

const (
	// fleetSource is the source under which the launcher reports to the fleet.
	fleetSource = "ray"
	// steadyInterval is how often jobs and nodes are read while nothing changes. busyInterval is
	// how often while a replica starts or stops, or Ray does not answer.
	steadyInterval = 5 * time.Second
	busyInterval   = time.Second
)

// Ports is the range of the ports of replicas, both ends included.
type Ports struct{ First, Last int }

// Config is the configuration of a Launcher. Address, Ports and Fleet are required.
type Config struct {
	// Address is the URL of the cluster's dashboard, such as http://head:8265.
	Address string
	// Token is sent to Ray with every call. Empty means none.
	Token string
	// Name is the name of this installation. It distinguishes the installation's jobs from others
	// in the same cluster. Empty means "sluice".
	Name string
	// Identity is this gateway's name. It is the same after a restart, and differs from those of
	// other gateways.
	Identity string
	// Redis is where gateways of the same Address and Name elect the one that writes, and tell each
	// other their load and requests. nil: this is the only gateway of that name.
	Redis redis.UniversalClient
	// Lease is for how long the writer may write without an answer of Redis. After that time
	// another gateway writes. 0 means 10 s.
	Lease time.Duration
	// Ports are the ports that replicas listen on.
	Ports Ports
	// Fleet gets the models and replicas under the source "ray".
	Fleet *engines.Fleet
	// InFlight returns how many requests there are on a replica. It must be fast. nil means none.
	InFlight func(replica string) int
	// Load returns how much work this gateway has for a model. nil means none.
	Load func(model string) engines.Load
	// OnFound is called after the jobs were first read, and each time after this gateway has become
	// the writer. It gets the number of replicas of each model that do not drain. The launcher
	// starts and stops nothing until Set is called after that, so a gateway that starts does not
	// stop running replicas. nil means that every Set suffices.
	OnFound func(replicas map[string]int)
	// OnDemand is called when another gateway reports waiting requests for a model. It must not
	// block. nil means no call.
	OnDemand func(model string)
	// OnHealthy is called when a replica that was suspected (Suspect) is found healthy. It must not
	// block. nil means no call.
	OnHealthy func(replica string)
	// BackOff is the pause between a failure of a replica and its next start.
	BackOff supervise.BackOff
	// DrainSettle is the minimum time for which a replica drains, because readers of an older
	// snapshot may still send it requests. 0 means 1 s.
	DrainSettle time.Duration
	// DrainTimeout is the drain timeout of models that have none. 0 means 30 minutes.
	DrainTimeout time.Duration
	// ProbeTimeout is how long a probe waits for its answer. 0 means 5 s.
	ProbeTimeout time.Duration
	// MaxBusy is how long requests without an answer excuse a replica whose probes have none
	// either. 0 means supervise.MaxBusy.
	MaxBusy time.Duration
	// RefusalsTolerated is how long Ray may refuse all calls before Status says so. A head that was
	// just started does so for some seconds. 0 means 30 s.
	RefusalsTolerated time.Duration
	// Log receives the launcher's log. nil means no log.
	Log *zap.Logger
}

func (c Config) withDefaults() Config {
	c.Log = cmp.Or(c.Log, zap.NewNop())
	c.Name = cmp.Or(c.Name, "sluice")
	if c.InFlight == nil {
		c.InFlight = func(string) int { return 0 }
	}
	if c.OnHealthy == nil {
		c.OnHealthy = func(string) {}
	}
	if c.Load == nil {
		c.Load = func(string) engines.Load { return engines.Load{} }
	}
	if c.OnDemand == nil {
		c.OnDemand = func(string) {}
	}
	c.Lease = cmp.Or(c.Lease, defaultLease)
	c.BackOff = c.BackOff.WithDefaults()
	c.RefusalsTolerated = cmp.Or(c.RefusalsTolerated, 30*time.Second)
	c.DrainSettle = cmp.Or(c.DrainSettle, time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Minute)
	c.ProbeTimeout = cmp.Or(c.ProbeTimeout, 5*time.Second)
	c.MaxBusy = cmp.Or(c.MaxBusy, supervise.MaxBusy)
	return c
}

// Launcher runs models as jobs of a Ray cluster and reports them as replicas. Its methods may be
// called from any goroutine.
type Launcher struct {
	config Config
	client *client
	prober *supervise.Prober
	// group is nil if Config.Redis is.
	group *group
	// wake tells Run that something has changed, and changed tells share. Their capacity is 1.
	wake, changed chan struct{}
	// watching waits for the goroutines that probe. Run owns it.
	watching sync.WaitGroup

	mu sync.Mutex
	// started is true once Run was called. Guarded by mu.
	started bool
	// models is the argument of the last Set, by name. order lists their names. Guarded by mu.
	models map[string]desiredModel
	order  []string
	// setCount counts the calls of Set. setsBeforeFound is its value when OnFound was last called,
	// nil before that. foundTerm is the number of the writer's lease at that time. Guarded by mu.
	setCount        uint64
	setsBeforeFound *uint64
	foundTerm       uint64
	// nodes are the nodes of the cluster at the last reading. Guarded by mu.
	nodes []rayNode
	// replicas are all replicas that exist or are wanted. Guarded by mu.
	replicas map[key]*replica
	// roomMade counts the replicas that were drained to make room for a revision of a model.
	// Guarded by mu.
	roomMade map[roomKey]int
	// ours are the ids of jobs that were there at the first reading or that this gateway submitted.
	// Guarded by mu.
	ours map[string]bool
	// superseded are the ids of jobs after which this gateway has seen or submitted a newer one of
	// the same replica. Guarded by mu.
	superseded map[string]bool
	// stale are jobs of replicas that have a newer one. stopAsked is when one of them was last told
	// to stop. Guarded by mu.
	stale     []rayJob
	stopAsked map[string]time.Time
	// fault says why Ray cannot be used, and rival names another gateway that writes. Both are
	// empty if all is well. Guarded by mu.
	fault, rival string
	// unsure says that a job is of a gateway of which the group has not heard yet: it may be a
	// rival's. Guarded by mu.
	unsure bool
	// refused says why Ray has refused the last call, and refusedSince when it began to refuse. The
	// former is empty if Ray has taken the last call. Guarded by mu.
	refused      string
	refusedSince time.Time
}

// roomKey is a revision of a model.
type roomKey struct{ model, spec string }

// desiredModel is a model of the last Set.
type desiredModel struct {
	Model
	specHash string
}

// New returns a Launcher. It starts nothing.
func New(c Config) *Launcher {
	c = c.withDefaults()
	l := &Launcher{
		config: c, client: newClient(c.Address, c.Token), prober: supervise.NewProber(c.ProbeTimeout),
		wake: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		models: map[string]desiredModel{}, replicas: map[key]*replica{}, ours: map[string]bool{},
		roomMade: map[roomKey]int{}, stopAsked: map[string]time.Time{}, superseded: map[string]bool{},
	}
	if c.Redis != nil {
		l.group = newGroup(c)
	}
	return l
}

// Set sets all models and their numbers of replicas. It does not block.
func (l *Launcher) Set(models []Model) {
	desired, order := map[string]desiredModel{}, []string{}
	for _, m := range models {
		m.Launcher = engines.Ray
		desired[m.Name] = desiredModel{m, m.spec()}
		order = append(order, m.Name)
	}
	l.mu.Lock()
	l.models, l.order = desired, order
	maps.DeleteFunc(l.roomMade, func(r roomKey, _ int) bool { return desired[r.model].specHash != r.spec })
	l.setCount++
	l.publishLocked()
	l.mu.Unlock()
	notify(l.wake)
}

// Run runs the launcher until ctx ends, and then returns nil. The jobs stay. It is no error that
// Ray does not answer: the fleet keeps what was known last. Run may be called once.
func (l *Launcher) Run(ctx context.Context) error {
	l.mu.Lock()
	ran := l.started
	l.started = true
	l.mu.Unlock()
	if ran {
		return errors.New("the launcher for Ray has been started already")
	}
	defer l.leave()
	defer l.watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if l.group != nil {
		l.exchange(ctx) // first: what the writer drains must not be used
		l.watching.Go(func() { l.share(ctx) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-l.wake:
		}
		timer.Reset(l.cycle(ctx))
	}
}

// cycle reads what exists, and starts and stops what differs from what is wanted. It returns how
// long to wait for the next one.
func (l *Launcher) cycle(ctx context.Context) time.Duration {
	term := l.group.heldTerm()
	jobs, nodes, err := l.read(ctx)
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		l.setFault(err)
		return busyInterval
	}
	l.observe(ctx, jobs, nodes)
	l.reportFound(term)
	if steady := l.act(ctx); steady {
		return steadyInterval
	}
	return busyInterval
}

// read reads the jobs and the nodes of the cluster.
func (l *Launcher) read(ctx context.Context) ([]rayJob, []rayNode, error) {
	jobs, err := l.client.jobs(ctx)
	if err != nil {
		return nil, nil, err
	}
	nodes, err := l.client.nodes(ctx)
	return jobs, nodes, err
}

// setFault stores why Ray cannot be used; nil means that it can.
func (l *Launcher) setFault(err error) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	l.mu.Lock()
	before := l.fault
	l.fault = now
	l.mu.Unlock()
	switch {
	case before == now:
	case now == "":
		l.config.Log.Info("Ray answers again", zap.String("address", l.config.Address))
	case before == "":
		l.config.Log.Warn("Ray does not answer, the replicas that answer stay", zap.String("address", l.config.Address), zap.Error(err))
	}
}

// reportFound calls Config.OnFound with the number of replicas of each model: once, and once for
// each lease of the writer that this gateway gets. term is the lease that it held before the jobs
// were read.
func (l *Launcher) reportFound(term uint64) {
	l.mu.Lock()
	if l.setsBeforeFound != nil && (term == 0 || term == l.foundTerm) {
		l.mu.Unlock()
		return
	}
	l.foundTerm = term
	before, counts := l.setCount, map[string]int{}
	if l.config.OnFound == nil {
		before = 0
	}
	l.setsBeforeFound = &before
	for k, r := range l.replicas {
		if !r.ended && r.draining.IsZero() {
			counts[k.model]++
		}
	}
	l.mu.Unlock()
	if l.config.OnFound != nil {
		l.config.OnFound(counts)
	}
}

// mayWriteLocked reports whether this gateway may start and stop jobs now. mu is held.
func (l *Launcher) mayWriteLocked() bool {
	return l.rival == "" && !l.unsure && l.setsBeforeFound != nil && l.setCount > *l.setsBeforeFound && l.group.heldTerm() == l.foundTerm &&
		l.group.mayWrite()
}

// publishLocked reports the models and all replicas to the fleet. mu is held, so that reports stay
// in order.
func (l *Launcher) publishLocked() {
	part := engines.Part{}
	for _, name := range l.order {
		part.Models = append(part.Models, l.models[name].Model.Model)
	}
	for _, r := range l.replicas {
		part.Replicas = append(part.Replicas, r.Replica)
	}
	slices.SortFunc(part.Replicas, func(a, b engines.Replica) int { return cmp.Compare(a.ID, b.ID) })
	l.config.Fleet.Set(fleetSource, part)
}

// HasPublished reports whether the fleet has the replicas that an earlier run has left. It is false
// until Ray has answered and each of them was probed once.
func (l *Launcher) HasPublished() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.setsBeforeFound == nil {
		return false
	}
	for _, r := range l.replicas {
		if r.watch != nil && !r.watch.probed {
			return false
		}
	}
	return true
}

// Suspect brings the next probe of the replica forward. Call it after a request has failed in a way
// that may be the replica's fault. silent says that the replica has left several requests in a row
// without an answer. Suspect never blocks.
func (l *Launcher) Suspect(id string, silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.replicas {
		if r.ID == id && r.watch != nil {
			r.watch.silent = r.watch.silent || silent
			notify(r.watch.suspected)
		}
	}
}

// Status is the state of the launcher for the operator.
type Status struct {
	// Fault says why Ray cannot be used. It is empty if Ray answers.
	Fault string
	// Rival says which other gateway starts and stops jobs of this installation. This gateway then
	// starts and stops none. It is empty if there is none.
	Rival string
	// Redis says why Redis cannot be used, without which no gateway writes. It is empty if Redis
	// answers, or is not configured.
	Redis string
	// Refused says why Ray, which answers, has refused every call that starts or ends a job for
	// some time. It is empty if Ray takes calls.
	Refused string
}

// Status returns the state of the launcher.
func (l *Launcher) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Status{Fault: l.fault, Rival: l.rival, Redis: l.group.fault()}
	if l.refused != "" && time.Since(l.refusedSince) >= l.config.RefusalsTolerated {
		s.Refused = l.refused
	}
	return s
}

// notify puts a token into the channel, unless there is one.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
