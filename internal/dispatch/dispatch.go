// Package dispatch takes the four steps that every request takes, whatever protocol it came by: resolve the model, admit the
// request (it may wait), pick a replica, settle when the response has ended.
//
// The world a request sees is immutable: a change of the fleet, of Envoy's view of it or of the policies makes a new one, and
// the request path loads a pointer. What changes under it are only counters: one per replica, shared by every world and, for
// an upstream that serves several models, by every model. A pick takes its slot in the same step, under the lock of the model's
// queue and by compare-and-swap on the counter, so that two requests of the same moment never see the same load.
package dispatch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Strategy is how a replica is chosen.
type Strategy string

// The strategies of a model's routing.
const (
	// Prefix keeps a conversation on its replica: consistent hashing with bounded loads and a floor under the bound.
	Prefix Strategy = "prefix"
	// CHWBL is consistent hashing with bounded loads and nothing else.
	CHWBL Strategy = "chwbl"
	// RoundRobin takes replicas in turn.
	RoundRobin Strategy = "round_robin"
	// LeastConnections takes the replica with the fewest requests; of equals the one that has served fewest.
	LeastConnections Strategy = "least_connections"
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
	// UserMessages is how many user messages the cache key of a chat takes in; 0 means none but the system prompt.
	UserMessages int
	// MaxPerReplica bounds the requests on one replica; 0 means what the engine says, and 1 for an upstream that says nothing.
	MaxPerReplica int
	// ColdStart bounds the wait for a model none of whose replicas is ready yet; 0 means 10 minutes.
	ColdStart time.Duration
	// MaxDuration bounds a response, from when the request leaves for a replica to its end; 0 leaves it to the route.
	MaxDuration time.Duration
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
}

// Dispatcher sends requests to replicas. Make one with New and keep it up to date with Run.
type Dispatcher struct {
	fleet     *engines.Fleet
	admission *admission.Controller
	world     atomic.Pointer[world]
	names     identities
	past      inheritance

	mu sync.Mutex
	// fallback and policies are the policies in force; guarded by mu
	fallback Policy
	policies map[string]Policy
	// routable holds, per model, the replicas that Envoy has acknowledged, with the address it knows; guarded by mu
	routable map[string]map[string]bool
	// counters by replica id, kept while any world names the replica or a ticket holds it; guarded by mu
	counters map[string]*counter
	// cursors of round robin by model; guarded by mu
	cursors map[string]*atomic.Uint64
}

// New returns a Dispatcher that knows the fleet as it is now and no replica as routable.
func New(c Config) *Dispatcher {
	d := &Dispatcher{
		fleet:     c.Fleet,
		admission: c.Admission,
		fallback:  c.Default,
		policies:  c.Models,
		routable:  map[string]map[string]bool{},
		counters:  map[string]*counter{},
		cursors:   map[string]*atomic.Uint64{},
	}
	d.world.Store(&world{snapshot: &engines.Snapshot{}})
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

// SetPolicies replaces the policies, effective on the next request and on those that wait.
func (d *Dispatcher) SetPolicies(fallback Policy, models map[string]Policy) {
	d.mu.Lock()
	d.fallback, d.policies = fallback, models
	d.mu.Unlock()
	d.rebuild()
}

// SetRoutable tells which replicas of a model Envoy knows. A replica is picked only when the fleet calls it ready and Envoy
// knows it: a request released sooner meets a cluster without the host and fails.
func (d *Dispatcher) SetRoutable(model string, replicas []string) {
	known := make(map[string]bool, len(replicas))
	for _, id := range replicas {
		known[id] = true
	}
	d.mu.Lock()
	d.routable[model] = known
	if len(known) == 0 {
		delete(d.routable, model)
	}
	d.mu.Unlock()
	d.rebuild()
}

// Request is what dispatch needs to know of a request.
type Request struct {
	// Model as the client named it.
	Model string
	// Tenant is who calls.
	Tenant string
	// Allowed says whether the tenant may use the model of this name; nil allows all.
	Allowed func(model string) bool
	// Key is the cache key over so many user messages (package ringhash: XXH64).
	Key func(userMessages int) uint64
	// ID is the client's own request id; empty when it gave none.
	ID string
	// PromptBytes and MaxTokens estimate the cost. MaxTokens 0 means the client set no bound.
	PromptBytes, MaxTokens int
	// Bytes are held by somebody while the request waits.
	Bytes int
	// Timeout is the client's own; 0 means none.
	Timeout time.Duration
	// OnWait is called once before the request starts to wait. May be nil.
	OnWait func()
}

// Dispatch resolves, admits and picks. It blocks while the request waits and returns at once when ctx ends. The caller must
// Release the ticket when the response has ended, however it ended.
func (d *Dispatcher) Dispatch(ctx context.Context, r *Request) (*Ticket, *openai.Error) {
	target, fault := d.resolve(r)
	if fault != nil {
		return nil, fault
	}
	release, ok := d.names.take(r.Tenant, r.ID)
	if !ok {
		return nil, &openai.Error{Code: openai.CodeRequestIDConflict, Param: "request_id",
			Message: "A request with this request_id is still running."}
	}
	t := &Ticket{Model: target.Name, MaxDuration: target.policy.MaxDuration, dispatcher: d, unname: release}
	lease, err := d.admission.Admit(ctx, d.admissionRequest(target, r, t))
	if err != nil {
		release()
		return nil, d.explain(ctx, target.Name, r, err)
	}
	t.lease = lease
	return t, nil
}

func (d *Dispatcher) resolve(r *Request) (*target, *openai.Error) {
	w := d.world.Load()
	m, ok := w.snapshot.Resolve(r.Model)
	if !ok {
		return nil, &openai.Error{Code: openai.CodeModelNotFound, Param: "model",
			Message: "The model `" + clip(r.Model) + "` does not exist."}
	}
	if r.Allowed != nil && !r.Allowed(m.Name) {
		return nil, &openai.Error{Code: openai.CodeForbiddenModel, Param: "model",
			Message: "This API key may not use the model `" + m.Name + "`."}
	}
	t := w.targets[m.Name]
	if len(t.replicas) == 0 && !t.hope {
		return nil, openai.Errorf(openai.CodeNoReplica, "The model `%s` has no replica.", m.Name)
	}
	return t, nil
}

// admissionRequest makes the request for a slot. The pick happens in it: it always looks at the newest world, because the
// request may have waited through several.
func (d *Dispatcher) admissionRequest(t *target, r *Request, ticket *Ticket) admission.Request {
	key := r.Key(t.policy.UserMessages)
	return admission.Request{
		Model:   t.Name,
		Tenant:  r.Tenant,
		Tokens:  estimate(r),
		Bytes:   r.Bytes,
		Timeout: t.patience(r.Timeout),
		OnWait:  r.OnWait,
		Place: func() bool {
			now, ok := d.world.Load().targets[t.Name]
			return ok && now.place(key, ticket)
		},
		Unplace: ticket.unplace,
	}
}

// Tokens per request are estimated from these until a model has taught better ones.
const (
	bytesPerToken  = 4
	expectedOutput = 256
)

func estimate(r *Request) int {
	output := r.MaxTokens
	if output == 0 {
		output = expectedOutput
	}
	return r.PromptBytes/bytesPerToken + output
}

// explain turns what admission said into what the client reads.
func (d *Dispatcher) explain(ctx context.Context, model string, r *Request, err error) *openai.Error {
	var limited *admission.RateLimited
	switch {
	case ctx.Err() != nil:
		return &openai.Error{Code: openai.CodeRequestTimeout, Status: 499, Message: "The client left."}
	case errors.As(err, &limited):
		return &openai.Error{Code: openai.CodeRateLimited, RetryAfter: limited.RetryAfter,
			Message: "The model `" + model + "` has no tokens left in this minute."}
	case errors.Is(err, admission.ErrNeverFits):
		return &openai.Error{Code: openai.CodeInvalidRequest,
			Message: "The request needs more tokens than the model `" + model + "` is given in a minute."}
	case errors.Is(err, admission.ErrQueueFull):
		return openai.Errorf(openai.CodeQueueFull, "The queue of the model `%s` is full.", model)
	case errors.Is(err, admission.ErrTimeout):
		return d.explainTimeout(model, r)
	}
	return openai.Errorf(openai.CodeNoReplica, "The model `%s` is no longer served.", model)
}

func (d *Dispatcher) explainTimeout(model string, r *Request) *openai.Error {
	t, ok := d.world.Load().targets[model]
	switch {
	case r.Timeout > 0 && (!ok || r.Timeout <= t.patience(0)):
		return &openai.Error{Code: openai.CodeRequestTimeout, Param: "timeout_ms",
			Message: "The request's own timeout ended before it could start."}
	case !ok || len(t.replicas) == 0 && !t.starting:
		return openai.Errorf(openai.CodeNoReplica, "No replica of the model `%s` is ready.", model)
	case len(t.replicas) == 0:
		return openai.Errorf(openai.CodeColdStartTimeout, "No replica of the model `%s` became ready in time.", model)
	}
	return openai.Errorf(openai.CodeQueueTimeout, "All replicas of the model `%s` stayed busy for too long.", model)
}

// clip keeps a client's text short enough to be repeated to it.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	for i := range s {
		if i > most-4 {
			return s[:i] + "…"
		}
	}
	return s
}
