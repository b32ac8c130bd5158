// Package dispatch sends every request to a replica: it resolves the model, decides the way
// (way.go), admits the request, which may wait, and picks a replica. Package extproc and
// internal/relay call it for each request and correct its charge when the response has ended;
// internal/gateway runs it.
//
// A request reads an immutable routing table. A change of the fleet, of the replicas that Envoy has
// acknowledged, or of the rules makes a new table, and the request path loads a pointer. Only
// counters change under a table: one per replica. All tables share it, and so do all models of an
// upstream that serves several.
//
// A pick acquires its slot in the same step, by compare-and-swap on the counter. So two concurrent
// requests never see the same load. The pick runs inside admission, under the one lock of
// admission.Controller, so a request leaves its queue only with a slot.
//
// Lock order: Dispatcher.mu, recoveredRequests.mu, admission.Controller.mu, heldTickets.mu,
// Ticket.mu. The locks of the estimator and of the prefix index come last, and no other lock is
// taken under them.
//
// Dispatcher.mu is held by SetRules, SetRoutable, Failed, EndSuspension, and each rebuild of the
// routing table, all of which call admission. Controller.mu is held when admission calls the hooks
// of admission.LockedHooks (Allowed, ReserveSlot, WouldFreeSlot). These may lock a Ticket, and call
// neither Dispatcher nor Controller. The hooks of admission.UnlockedHooks run without
// Controller.mu, but possibly with Dispatcher.mu held.
package dispatch

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/failover"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/predict"
	"github.com/sluice-gateway/sluice/internal/prefix"
)

// Policy is how requests for one model are admitted and routed.
type Policy struct {
	// Strategy defaults to Prefix.
	Strategy Strategy
	// KeepStrategy keeps the strategy for a discovered model whose engine is not known. Otherwise
	// LeastConnections replaces Prefix then.
	KeepStrategy bool
	// VirtualNodes is the number of points of each replica on the hash ring; 0 means 100.
	VirtualNodes int
	// LoadFactor bounds a replica's load relative to the average; 0 means 1.25.
	LoadFactor float64
	// LoadFloor is the load up to which a replica is always within the bound; 0 means no floor.
	LoadFloor int
	// UserMessages is how many user messages the cache key of a chat covers; 0 means only the
	// system prompt.
	UserMessages int
	// MaxPerReplica bounds the requests on one replica; 0 means the engine's own number of slots,
	// and 1 for an upstream that reports none.
	MaxPerReplica int
	// MaxPrefillPerReplica bounds the requests on one replica that have no token yet; 0 means no
	// bound.
	MaxPrefillPerReplica int
	// ColdStart bounds the wait for a model without a ready replica. 0 means 10 minutes. NoWait
	// means that such a request is refused at once and the start goes on.
	ColdStart time.Duration
	// MaxDuration bounds a response, from when the request leaves for a replica to its end; 0 means
	// that the route of Envoy bounds it.
	MaxDuration time.Duration
	// BoundByRoute says that MaxDuration is also the bound of the route of Envoy, so no request has
	// to carry it.
	BoundByRoute bool
	// MaxPrefillTokensPerReplica bounds the uncached tokens of prompts that one replica has yet to
	// compute; 0 means no bound. A longer prompt goes to a replica that has nothing to compute.
	MaxPrefillTokensPerReplica int
	// PrefillRate is a guess of how many tokens of prompts a replica computes in a second, until
	// first tokens have taught better; 0 means that there is none.
	PrefillRate float64
	// SlowStart is how long the load of a new replica counts as higher than it is, while other
	// replicas serve; 0 means not at all.
	SlowStart time.Duration
	// UnhealthyOn are the failures that take a replica out of rotation. 0 means all failures for an
	// upstream, and Connect and FiveHundreds for a launched replica.
	UnhealthyOn Failure
	// FailOver are the statuses of a replica after which another one is tried; 0 means all of
	// package failover.
	FailOver failover.Statuses
	// Way decides which way the model's requests take.
	Way WayPolicy
	// Lacks are the endpoints that the model's engine does not have although its task is theirs.
	Lacks openai.EndpointSet
	// Guards are the fields of requests that the engine of a launched model obeys and that are
	// refused. Servers of upstreams may obey all such fields. Permitted are those that clients may
	// use all the same.
	Guards, Permitted openai.Guards
	// MediaHosts are the hosts from which clients may have the model's servers fetch media.
	MediaHosts openai.MediaHosts
	// Limits of the model.
	Limits admission.Limits
}

// Config is the configuration of a Dispatcher.
type Config struct {
	Fleet     *engines.Fleet
	Admission *admission.Controller
	// Demand is called with the model when a request waits for it. It may be nil.
	Demand func(model string)
	// Shared says that Admission shares its state with other gateways, so that leases outlive this
	// process.
	Shared bool
	// ExplainPicks adds all candidates of each pick to its Prediction. Otherwise the first
	// explainedPerSecond picks of a second have the best maxExplained of theirs.
	ExplainPicks bool
	// NoSamples says that Envoy reads no response for its figures.
	NoSamples bool
	// Host is the name of this machine. Gateways on one machine have the same servers at loopback
	// addresses. "" means that all gateways are on one.
	Host string
	// OnPlaced is told of each request that was given to a replica by its beginning, unless the
	// replica is a process of this gateway. It must not block. It may be nil.
	OnPlaced func(Placement)
	// Failed is told of a replica that is Silent or Stuck, with the reason in words. It may be nil.
	Failed func(model, replica string, kind Failure, reason string)
	// Doubted is told of a replica that has told a usage that cannot be true, at most once a
	// minute. It must not block. It may be nil.
	Doubted func(model, replica string, prompt, completion int64)
}

func (c Config) withDefaults() Config {
	if c.Demand == nil {
		c.Demand = func(string) {}
	}
	if c.OnPlaced == nil {
		c.OnPlaced = func(Placement) {}
	}
	if c.Failed == nil {
		c.Failed = func(string, string, Failure, string) {}
	}
	if c.Doubted == nil {
		c.Doubted = func(string, string, int64, int64) {}
	}
	return c
}

// Dispatcher sends requests to replicas. Make one with New and keep it up to date with Run.
type Dispatcher struct {
	// config never changes.
	config Config
	// indexes bounds the memory of all prefix indexes
	indexes *prefix.Budget
	// rates are those of replicas of unknown models
	rates *predict.Model
	// table is the routing table in force
	table atomic.Pointer[routingTable]
	// samples bounds the responses that Envoy reads.
	samples sampleCredit
	// explained counts the picks whose candidates are recorded.
	explained sampleBudget
	// ids are the request ids and tasks that are in use now.
	ids idClaims
	// recovered holds the requests that still run from before a restart
	recovered recoveredRequests
	// held lists the tickets that are held
	held heldTickets
	// retired says that another process dispatches from now on
	retired atomic.Bool
	// late are the responses whose usage is told later
	late lateCharges
	// onResponse is told of each response that is learned; nil while nobody watches
	onResponse atomic.Pointer[func(ReplicaResponses)]
	// nextWoken rotates the models in wakeOthers when a slot was freed that none of them had
	nextWoken atomic.Uint64

	mu sync.Mutex
	// rules are the policies in force; guarded by mu
	rules Rules
	// leaving has the last policies of models that are no longer in the rules and still in the
	// fleet; guarded by mu
	leaving map[string]Policy
	// special is the value of rules.special; guarded by mu
	special bool
	// rulesChanged says that the rules are not in the routing table yet. dirty lists the models
	// with other changes that are not in it; guarded by mu
	rulesChanged bool
	dirty        map[string]struct{}
	// routable holds, per cluster of Envoy, the replicas that it has acknowledged there, with the
	// address it knows; guarded by mu
	routable map[string]map[string]netip.AddrPort
	// suspensions by replica id; guarded by mu
	suspensions map[string]*suspension
	// drains are what an operator has taken out of rotation; guarded by mu
	drains drains
	// closeDelimited has the replicas that end responses by closing their connections, by id;
	// guarded by mu
	closeDelimited map[string]process
	// counters by replica id. They are kept while the fleet has the replica or a ticket holds a
	// slot on it; guarded by mu
	counters map[string]*counter
	// earlyNews are the news of replicas of the fleet that have no counter yet, by replica id.
	earlyNews map[string]*EngineNews
	// unplaced are restored responses whose replicas are not known yet; guarded by mu
	unplaced []ReplicaResponses
	// unplacedChanges counts the calls of RestoreResponses that have left some of them; guarded by
	// mu
	unplacedChanges uint64
	// unpickable maps the ids of those counters whose replica may not be picked to the model that
	// the replica had last; guarded by mu
	unpickable map[string]string
	// cursors of round robin, and estimators, by model; guarded by mu
	cursors    map[string]*atomic.Uint64
	estimators map[string]*estimator
}

// Rules are the configured part of dispatch: policies, pools and limits.
type Rules struct {
	// Default is the policy of discovered models, Models holds those of configured ones by name.
	Default Policy
	Models  map[string]Policy
	// Pools holds the models of each pool by its name. FirstPool is the pool of tasks that name
	// neither a pool nor a model; empty means all models.
	Pools     map[string][]string
	FirstPool string
	// DefaultModel is the model, alias or pool of requests that name none; empty means that there
	// is none.
	DefaultModel string
	// Tenants holds the limits of the tenants that have any.
	Tenants map[string]admission.TenantLimits
	// TaskLease is how long a task lasts without a renewal; 0 means 15 minutes.
	TaskLease time.Duration
	// TaskLifetime is how long a task lasts at most, however often it is renewed; 0 means 4 hours.
	TaskLifetime time.Duration
	// Moderated reports whether a rule may end the model's answers to the tenant early. nil means
	// that there are no such rules.
	Moderated func(model, tenant string) bool
}

// special reports whether a request may need the relay although it neither streams nor has a
// request id.
func (r *Rules) special() bool {
	special := r.Moderated != nil || r.Default.Way.translated()
	for _, p := range r.Models {
		special = special || p.Way.translated()
	}
	return special
}

// New returns a Dispatcher that knows the fleet as it is now, no replica as routable, and no Rules.
func New(c Config) *Dispatcher {
	d := &Dispatcher{
		config:      c.withDefaults(),
		indexes:     prefix.NewBudget(indexBytes),
		rates:       predict.NewModel(predict.DefaultRates),
		leaving:     map[string]Policy{},
		dirty:       map[string]struct{}{},
		routable:    map[string]map[string]netip.AddrPort{},
		suspensions: map[string]*suspension{},
		counters:    map[string]*counter{},
		earlyNews:   map[string]*EngineNews{},
		unpickable:  map[string]string{},
		cursors:     map[string]*atomic.Uint64{},
		estimators:  map[string]*estimator{},

		closeDelimited: map[string]process{},
	}
	d.special = d.rules.special()
	d.table.Store(&routingTable{snapshot: &engines.Snapshot{}})
	d.rebuild()
	return d
}

// Run keeps the routing table up to date with the fleet until ctx ends. Its error is nil.
func (d *Dispatcher) Run(ctx context.Context) error {
	for {
		_, changed := d.config.Fleet.Watch()
		d.rebuild()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// SetRules replaces the rules. They apply to the next request and to the requests that wait.
func (d *Dispatcher) SetRules(r Rules) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setLeavingLocked(r)
	d.rules, d.rulesChanged, d.special = r, true, r.special()
	d.config.Admission.SetTenants(r.Tenants)
	d.rebuildLocked()
}

// SetRoutable sets the replicas that Envoy has acknowledged in a cluster, with their addresses. An
// empty map means that Envoy has no such cluster, or no replica in it.
//
// A replica is picked only if the fleet calls it ready and Envoy knows it at its present address. A
// request released sooner would reach a cluster without that endpoint, and fail. The caller must
// not change the map afterwards.
func (d *Dispatcher) SetRoutable(cluster string, replicas map[string]netip.AddrPort) {
	model, ok := headers.ClusterModel(cluster)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(replicas) == 0 {
		delete(d.routable, cluster)
	} else {
		d.routable[cluster] = replicas
	}
	d.dirty[model] = struct{}{}
	d.rebuildLocked()
}

// Dispatch resolves and admits a request and picks its replica. It blocks while the request waits,
// and returns at once when ctx ends. The caller must Release the ticket when the response has ended
// in any way. It must call Correct when the usage of the response is known.
func (d *Dispatcher) Dispatch(ctx context.Context, r *Request) (*Ticket, *openai.Error) {
	ticket, pending, fault := d.Begin(ctx, r)
	if pending != nil {
		return pending.Await(ctx)
	}
	return ticket, fault
}

// Retire refuses every request from now on, and those that wait, because another process dispatches
// them. Tickets stay until they are released.
func (d *Dispatcher) Retire() {
	d.retired.Store(true)
	d.config.Admission.Close()
}

// retiredFault is what a request is refused with after Retire. The caller passes the request on to
// the other process, so no client reads it.
func retiredFault() *openai.Error {
	return openai.Errorf(openai.CodeGatewayUnavailable, "Another process of the gateway serves this request.")
}

// admissionRequest makes the request to admission. Admission calls ReserveSlot, which picks, when
// all other limits allow the request. ReserveSlot reads the newest routing table, because several
// tables may have replaced each other while the request waited.
func (d *Dispatcher) admissionRequest(c choice, r *Request, ticket *Ticket) admission.Request {
	first := c.members[0]
	ticket.task, ticket.apiKey = r.Task, r.APIKey
	ticket.wantsResponseID = r.Endpoint == openai.Responses
	ticket.tokenByToken = r.Stream || r.NoOutput
	ticket.estimate = first.estimator.estimate(r)
	ticket.watch = c.watched(d.tenant(r.Tenant))
	ticket.prompt = c.promptOf(r, ticket.estimate.tokens.prompt)
	keys := c.keys(r, &ticket.prompt)
	request := admission.Request{
		Model:     c.model(),
		Pool:      c.pool,
		Tenant:    r.Tenant,
		APIKey:    r.APIKey,
		Priority:  r.Priority,
		Tokens:    ticket.estimate.tokens.total(),
		Guessed:   ticket.estimate.guessed(),
		Bytes:     r.Bytes,
		Timeout:   c.patience(r.Timeout),
		Prefill:   ticket.watch,
		UnderTask: r.Task,
		Locked: admission.LockedHooks{
			Allowed: func(model string) bool { return d.serves(model, r) },
			ReserveSlot: func(model string) (admission.Slot, bool) {
				now, ok := d.table.Load().routes[model]
				if !ok {
					return admission.Slot{}, false
				}
				return now.reserve(keys.of(now.policy.UserMessages), ticket)
			},
			HoldsOut: func() bool { return ticket.holdsOut },
		},
		Unlocked: admission.UnlockedHooks{
			OnWait:      func() { d.reportWait(c, r) },
			OnBlock:     r.OnBlock,
			ReleaseSlot: ticket.returnSlot,
		},
		Preempted: r.Preempted > 0,
	}
	if r.Preempt != nil && r.Preempted < MaxPreempted {
		ticket.preemptible = true
		request.Unlocked.OnPreempt, request.Locked.WouldFreeSlot = ticket.onPreempt(r.Preempt), ticket.wouldFreeSlot
	}
	if r.Watch != nil {
		request.WaitHandle = r.Watch.open(c)
	}
	return request
}

// reportWait reports to the scaler and to the caller that the request is about to wait.
func (d *Dispatcher) reportWait(c choice, r *Request) {
	for _, t := range c.members {
		d.config.Demand(t.Name)
	}
	if r.OnWait != nil {
		r.OnWait()
	}
}

// serves reports whether a request that waits for a pool may go to this model of the pool. It reads
// the newest routing table, because the model may have gained its first replica or lost its last
// one.
func (d *Dispatcher) serves(model string, r *Request) bool {
	w := d.table.Load()
	t, ok := w.routes[model]
	return ok && !w.drained[model] && t.serves() && t.isCapable(r.Endpoint) && mayUse(r.Allowed, t.PermittedAs(r.Model)) &&
		t.refuses(r, "pool", r.Model) == nil
}

func (d *Dispatcher) tenant(name string) admission.TenantLimits {
	return d.table.Load().tenants[name]
}
