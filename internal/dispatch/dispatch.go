// Package dispatch takes every request to a replica: it resolves the model, decides the way
// (way.go), admits the request, which may wait, and picks a replica. Package extproc and
// internal/relay call it for each request and correct its charge when the response has ended;
// internal/gateway runs it.
//
// A request reads an immutable routing table. A change of the fleet, of the replicas that Envoy has
// acknowledged, or of the rules makes a new table, and the request path loads a pointer. Only
// counters change under a table: one per replica, which all tables share and, for an upstream that
// serves several models, all models.
//
// A pick acquires its slot in the same step, by compare-and-swap on the counter, so two requests of
// the same moment never see the same load. The pick runs inside admission, under the one lock of
// admission.Controller, so a request leaves its queue only with a slot.
//
// Lock order: Dispatcher.mu, recoveredRequests.mu, admission.Controller.mu, Ticket.mu; the
// estimator's and the prefix index's locks come last and nothing is called under them. Under
// Dispatcher.mu: SetRules, SetRoutable, Failed, EndSuspension, and each rebuild of the routing
// table, which call admission. Under Controller.mu: the callbacks Allowed, ReserveSlot and
// WouldFreeSlot of admission.LockedHooks, which may lock a Ticket and call neither Dispatcher nor
// Controller. Without Controller.mu, but possibly under Dispatcher.mu: ReleaseSlot and OnPreempt of
// admission.UnlockedHooks.
package dispatch

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Policy is how requests for one model are admitted and routed.
type Policy struct {
	// Strategy defaults to Prefix.
	Strategy Strategy
	// VirtualNodes per replica on the ring; 0 means 100.
	VirtualNodes int
	// LoadFactor bounds a replica's load relative to the average; 0 means 1.25.
	LoadFactor float64
	// LoadFloor is a load that is never "too much"; 0 means none.
	LoadFloor int
	// UserMessages is how many user messages the cache key of a chat takes in; 0 means none but the
	// system prompt.
	UserMessages int
	// MaxPerReplica bounds the requests on one replica; 0 means what the engine says, and 1 for an
	// upstream that says nothing.
	MaxPerReplica int
	// MaxPrefillPerReplica bounds the requests on one replica that have no token yet; 0 means no
	// bound.
	MaxPrefillPerReplica int
	// ColdStart bounds the wait for a model none of whose replicas is ready yet; 0 means 10
	// minutes.
	ColdStart time.Duration
	// MaxDuration bounds a response, from when the request leaves for a replica to its end; 0
	// leaves it to the route.
	MaxDuration time.Duration
	// SlowStart is how long a replica that becomes pickable beside others that serve counts as
	// having more to do than it has; 0 means not at all.
	SlowStart time.Duration
	// UnhealthyOn are the failures that take a replica out of rotation. 0 means, of an upstream,
	// all; of a launched one Connect and FiveHundreds.
	UnhealthyOn Failure
	// Way says which way the model's requests take.
	Way WayPolicy
	// Limits of the model.
	Limits admission.Limits
}

// Config is what a Dispatcher works on.
type Config struct {
	Fleet     *engines.Fleet
	Admission *admission.Controller
	// Default is the policy of discovered models.
	Default Policy
	// Models holds the policies of configured models, by name.
	Models map[string]Policy
	// Demand is told that a request waits for the model; nil: nobody is.
	Demand func(model string)
	// Shared says that Admission shares its state with other gateways, so that leases outlive this
	// process.
	Shared bool
}

// Dispatcher sends requests to replicas. Make one with New and keep it up to date with Run.
type Dispatcher struct {
	fleet     *engines.Fleet
	admission *admission.Controller
	shared    bool
	demand    func(model string)
	// table is what requests read.
	table atomic.Pointer[routingTable]
	// ids are the request ids and tasks that are in use now.
	ids idClaims
	// recovered has the requests that run since before a restart.
	recovered recoveredRequests
	// turn counts the slots that were freed for models of which none had the slot before: it says
	// which of them is woken first.
	turn atomic.Uint64

	mu sync.Mutex
	// rules are the policies in force; guarded by mu
	rules Rules
	// special is what rules.special says; guarded by mu
	special bool
	// ruled says that they are not in the world yet, dirty lists the models of which something else
	// is not; guarded by mu
	ruled bool
	dirty map[string]struct{}
	// routable holds, per cluster of Envoy, the replicas that it has acknowledged there, with the
	// address it knows; guarded by mu
	routable map[string]map[string]netip.AddrPort
	// suspensions by replica id; guarded by mu
	suspensions map[string]*suspension
	// counters by replica id, kept while the fleet names the replica or a ticket holds it; guarded
	// by mu
	counters map[string]*counter
	// leaving are those of counters whose replica may not be picked, with the model that it was of
	// last; guarded by mu
	leaving map[string]string
	// cursors of round robin, and what responses have taught, by model; guarded by mu
	cursors    map[string]*atomic.Uint64
	estimators map[string]*estimator
}

// Rules say how requests are treated, beside what the fleet is.
type Rules struct {
	// Default is the policy of discovered models, Models holds those of configured ones by name.
	Default Policy
	Models  map[string]Policy
	// Pools holds the models of each pool by its name. FirstPool is the one that tasks are taken
	// from when they name none; empty means all models.
	Pools     map[string][]string
	FirstPool string
	// Tenants holds the limits of those that have any.
	Tenants map[string]admission.TenantLimits
	// TaskLease is how long a task lasts without a word; 0 means 15 minutes.
	TaskLease time.Duration
	// Moderated says whether a rule may end the model's answers to the tenant early; nil: there are
	// no such rules.
	Moderated func(model, tenant string) bool
}

// special says that there are requests which need the relay though they neither stream nor have a
// name.
func (r *Rules) special() bool {
	special := r.Moderated != nil || r.Default.Way.translated()
	for _, p := range r.Models {
		special = special || p.Way.translated()
	}
	return special
}

// New returns a Dispatcher that knows the fleet as it is now and no replica as routable.
func New(c Config) *Dispatcher {
	d := &Dispatcher{
		fleet:       c.Fleet,
		admission:   c.Admission,
		shared:      c.Shared,
		demand:      c.Demand,
		rules:       Rules{Default: c.Default, Models: c.Models},
		dirty:       map[string]struct{}{},
		routable:    map[string]map[string]netip.AddrPort{},
		suspensions: map[string]*suspension{},
		counters:    map[string]*counter{},
		leaving:     map[string]string{},
		cursors:     map[string]*atomic.Uint64{},
		estimators:  map[string]*estimator{},
	}
	d.special = d.rules.special()
	d.table.Store(&routingTable{snapshot: &engines.Snapshot{}})
	d.rebuild()
	return d
}

// Run follows the fleet until ctx ends.
func (d *Dispatcher) Run(ctx context.Context) error {
	for {
		_, changed := d.fleet.Watch()
		d.rebuild()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// SetRules replaces the rules, effective on the next request and on those that wait.
func (d *Dispatcher) SetRules(r Rules) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rules, d.ruled, d.special = r, true, r.special()
	d.admission.SetTenants(r.Tenants)
	d.rebuildLocked()
}

// SetRoutable tells which replicas Envoy has in a cluster, and at which addresses; none when it has
// not, or has no such cluster. A replica is picked only when the fleet calls it ready and Envoy
// knows it there, where it is now: a request released sooner meets a cluster that Envoy does not
// know or that has not the host, and fails. The map must not be changed afterwards.
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

// Request is what dispatch needs to know of a request.
type Request struct {
	// Model or pool, as the client named it.
	Model string
	// Tenant is who calls, Priority how urgent it is.
	Tenant   string
	Priority admission.Priority
	// Allowed says whether the tenant may use the model of this name; nil allows all.
	Allowed func(model string) bool
	// Key is the cache key over so many user messages (package ringhash: XXH64).
	Key func(userMessages int) uint64
	// ID is the client's own request id; empty when it gave none.
	ID string
	// Task is the id of the task that the request belongs to, which was admitted before; empty:
	// none.
	Task string
	// PromptBytes, MaxTokens and Choices estimate the cost. MaxTokens 0 means the client set no
	// bound, Choices 0 means one answer. NoOutput says that the answer is no text.
	PromptBytes, MaxTokens, Choices int
	NoOutput                        bool
	// Endpoint and Stream say what the client asked for.
	Endpoint openai.Endpoint
	Stream   bool
	// Bytes are held by somebody while the request waits.
	Bytes int
	// Timeout is the client's own bound on the whole request, MaxDuration that on the response; 0
	// means none.
	Timeout, MaxDuration time.Duration
	// OnWait is called once before the request starts to wait. May be nil.
	OnWait func()
	// Keys are the keys over all user messages of a conversation, over all but the last, and so on,
	// at most so many of them and none without a user message. nil: it is no conversation.
	Keys func(most int) []uint64
	// Watch lets another goroutine ask what the request waits for; nil: no goroutine asks.
	Watch *Wait
	// Preempt, unless it is nil, says that the request may be preempted while it is in prefill.
	// Dispatch calls Preempt once, from any goroutine and possibly with Dispatcher.mu held, when a
	// request of a higher priority waits for its slot; Preempt must not call the Dispatcher. Its
	// caller then ends the request at the replica and releases the ticket; nothing that the attempt
	// has cost is charged. The caller may dispatch the request again, with Preempted one higher.
	// Preempt may be called a moment before Dispatch has returned the ticket, but never once
	// FirstToken has returned true.
	Preempt func()
	// Preempted is how often the request was preempted. It goes before the others of its tenant, is
	// not refused for want of room or quota, and after the third time it is not preempted again.
	Preempted int
}

// Caller is who makes a request.
type Caller struct {
	Tenant   *authz.Tenant
	Priority admission.Priority
	// Task is the client's task that the request belongs to; empty: none.
	Task string
}

// NewRequest returns what dispatch needs to know of a request, from the scan of its body. The
// request keeps scan and body until its Key and Keys are nil.
func NewRequest(c Caller, scan *openai.Request, body []byte) *Request {
	return &Request{
		Model:       scan.Model,
		Tenant:      c.Tenant.Name,
		Priority:    c.Priority,
		Allowed:     c.Tenant.Allows,
		Key:         func(userMessages int) uint64 { return scan.CacheKey(body, userMessages) },
		Keys:        func(most int) []uint64 { return scan.PrefixKeys(body, most) },
		ID:          scan.RequestID,
		Task:        c.Task,
		PromptBytes: scan.PromptBytes(),
		MaxTokens:   scan.MaxTokens,
		Choices:     scan.Choices,
		NoOutput:    scan.Endpoint.NoOutput(),
		Endpoint:    scan.Endpoint,
		Stream:      scan.Stream,
		Bytes:       scan.Size,
		Timeout:     scan.Timeout,
		MaxDuration: scan.MaxDuration,
	}
}

// Dispatch resolves, admits and picks. It blocks while the request waits and returns at once when
// ctx ends. The caller must Release the ticket when the response has ended, however it ended, and
// Settle it when more is known of the response.
func (d *Dispatcher) Dispatch(ctx context.Context, r *Request) (*Ticket, *openai.Error) {
	ticket, pending, fault := d.Begin(ctx, r)
	if pending != nil {
		return pending.Await(ctx)
	}
	return ticket, fault
}

// admissionRequest makes the request to admission. Admission calls ReserveSlot, which picks, when
// everything else is granted. ReserveSlot always reads the newest routing table, because the
// request may have waited through several.
func (d *Dispatcher) admissionRequest(c choice, r *Request, ticket *Ticket) admission.Request {
	first := c.members[0]
	ticket.estimate = first.estimator.estimate(r)
	ticket.watch = c.watched(d.tenant(r.Tenant))
	keys := c.keys(r.Key)
	ticket.findAffinity(c, r)
	request := admission.Request{
		Model:    c.model(),
		Pool:     c.pool,
		Tenant:   r.Tenant,
		Priority: r.Priority,
		Tokens:   ticket.estimate.tokens.total(),
		Bytes:    r.Bytes,
		Timeout:  c.patience(r.Timeout),
		Prefill:  ticket.watch,
		SlotOnly: r.Task != "",
		Locked: admission.LockedHooks{
			Allowed: func(model string) bool { return d.serves(model, r.Allowed) },
			ReserveSlot: func(model string) (admission.Slot, bool) {
				now, ok := d.table.Load().routes[model]
				if !ok {
					return admission.Slot{}, false
				}
				return now.reserve(keys.of(now.policy.UserMessages), ticket)
			},
		},
		Unlocked: admission.UnlockedHooks{
			OnWait:      func() { d.waits(c, r) },
			ReleaseSlot: ticket.returnSlot,
		},
		Preempted: r.Preempted > 0,
	}
	if r.Preempt != nil && r.Preempted < mostPreempted {
		ticket.preemptible = true
		request.Unlocked.OnPreempt, request.Locked.WouldFreeSlot = ticket.preempts(r.Preempt), ticket.helps
	}
	if r.Watch != nil {
		request.WaitHandle = r.Watch.begin(c)
	}
	return request
}

// waits tells the scaler and the caller that the request is about to wait.
func (d *Dispatcher) waits(c choice, r *Request) {
	if d.demand != nil {
		for _, t := range c.members {
			d.demand(t.Name)
		}
	}
	if r.OnWait != nil {
		r.OnWait()
	}
}

// serves reports whether a request that waits for a pool may go to this model of the pool. It reads
// the newest routing table: a model may have got its first replica, or lost its last, since the
// request came.
func (d *Dispatcher) serves(model string, allowed func(string) bool) bool {
	t, ok := d.table.Load().routes[model]
	return ok && t.serves() && (allowed == nil || allowed(model))
}

// tenant is the limits of a tenant.
func (d *Dispatcher) tenant(name string) admission.TenantLimits {
	return d.table.Load().tenants[name]
}
