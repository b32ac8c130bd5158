package dispatch

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// A request takes one of two ways to its replica. Native: Envoy sends it there, and Sluice sees
// none of its response. Managed: Envoy sends it to the relay, which sends it to the replica and
// reads every event of the response. This file decides which, and nothing else does.

// Mode is the configured way of a model's streams.
type Mode string

// The modes.
const (
	// ModeAuto: streams are native, unless the request needs the relay or its client has to wait.
	// It is the default.
	ModeAuto Mode = "auto"
	// ModeNative: streams are native.
	ModeNative Mode = "native"
	// ModeManaged: streams are managed.
	ModeManaged Mode = "managed"
)

// WayPolicy is the part of a model's policy that decides the way of its requests. The zero value is
// that of a model in ModeAuto whose engine has the OpenAI API.
type WayPolicy struct {
	// Mode is ModeAuto when empty.
	Mode Mode
	// Heartbeat is the longest time without an event of a managed stream; 0 means 15 s. In ModeAuto
	// the client of a native stream may wait for a third of it.
	Heartbeat time.Duration
	// Supervised says that the model has a bound on the time to the first token or between two
	// events. It also says so if the relay asks the engine for its token usage. Envoy can do none
	// of that.
	Supervised bool
	// Sample is the share of the native streams, from 0 to 1, that are managed to measure the times
	// between their tokens.
	Sample float64
	// GRPC says that the replicas have the API llm.v1. RerankAPI says that they have their own API
	// for reranking. The relay translates.
	GRPC, RerankAPI bool
	// RefusesAsFailure says that the replicas answer 500 to an input that is too long to be
	// embedded or ranked. What a server of upstreams does is known from its news.
	RefusesAsFailure bool
	// Messages are the endpoints of the Messages API that the replicas have. The relay translates
	// requests to the others into chat completions.
	Messages openai.EndpointSet
}

// translated reports whether the relay translates some requests for the model's replicas.
func (p WayPolicy) translated() bool { return p.GRPC || p.RerankAPI }

const defaultHeartbeat = 15 * time.Second

// patience returns how long the client of a stream in ModeAuto may wait before the relay keeps it
// informed.
func (p WayPolicy) patience() time.Duration {
	if p.Heartbeat == 0 {
		return defaultHeartbeat / 3
	}
	return p.Heartbeat / 3
}

// way is the way of a request to its replica.
type way uint8

const (
	// native: Envoy sends the request, however long it waits.
	native way = iota
	// nativeUntilWait: Envoy sends the request, unless it waits for longer than the model's
	// patience.
	nativeUntilWait
	// managed: the relay sends the request.
	managed
)

// wayQuestion is the input of the rules: a request and one of its possible models.
type wayQuestion struct {
	*Request
	policy WayPolicy
	// moderated says that a rule may end the model's answers to the tenant early.
	moderated bool
	// closeDelimited says that a replica of the model ends responses by closing their connections.
	closeDelimited bool
	// refusesAsFailure says that a replica of the model answers 500 to an input that is too long to
	// be embedded or ranked.
	refusesAsFailure bool
	// cold says that a replica has to be started for the request. slow says that the first token
	// usually takes longer than the model's patience.
	cold, slow bool
}

// wayRule is one row of wayRules.
type wayRule struct {
	applies func(q *wayQuestion) bool
	way     way
	// always makes the request managed whatever a later rule says; the later rules then only say
	// whether the client has to wait.
	always bool
	// waits says that the client of a managed request will have to wait, so that the relay should
	// answer it at once.
	waits func(q *wayQuestion) bool
}

// wayRules are tried in this order. A row with always forces the managed way and does not end the
// search: later rows then only say whether the client has to wait. Of the other rows the first that
// applies decides; the last one always applies.
//
// A request for a pool is managed if it would be managed for one of the pool's models, else
// nativeUntilWait if it would be that for one. After the dispatch there is one more rule:
// arrivedBefore.
var wayRules = []wayRule{
	// Only the relay can call such replicas.
	{always: true, applies: func(q *wayQuestion) bool { return q.policy.GRPC }},
	{always: true, applies: func(q *wayQuestion) bool { return q.policy.RerankAPI && q.Endpoint == openai.Rerank }},
	{always: true, applies: func(q *wayQuestion) bool { return q.Endpoint.OfMessages() && !q.policy.Messages.Has(q.Endpoint) }},
	// Only the relay can tell the client that the engine lacks the call.
	{always: true, applies: func(q *wayQuestion) bool { return q.Endpoint.BesideResponses() }},
	// Only the relay notices that a response was cut which only the end of its connection ends.
	{always: true, applies: func(q *wayQuestion) bool { return q.closeDelimited }},
	// Only the relay tells such an answer from the failure of a replica.
	{always: true, applies: func(q *wayQuestion) bool {
		return q.refusesAsFailure && q.Endpoint.NoOutput() && !q.Endpoint.Free()
	}},
	// No answer may bypass moderation, streamed or not, of any endpoint.
	{always: true, applies: func(q *wayQuestion) bool { return q.moderated }},
	// The operator demands it, even if the request asks for what only the relay can do.
	{way: native, applies: func(q *wayQuestion) bool { return q.policy.Mode == ModeNative }},
	// A request with a client's request id can be joined and resumed, streamed or not; only the
	// relay does that.
	{way: managed, applies: func(q *wayQuestion) bool { return q.ID != "" }, waits: isCold},
	// A response without a stream has no events for the relay to read. Neither has speech, which
	// engines stream as audio: the relay would gather all of it before the client gets any.
	{way: native, applies: func(q *wayQuestion) bool { return !q.Stream || q.Endpoint == openai.Speech }},
	// The operator demands it, or Envoy cannot do what the request or the model needs. Envoy cannot
	// end a stream in time with a proper last event, retry until the first token, or count tokens.
	{way: managed, waits: isCold, applies: func(q *wayQuestion) bool {
		return q.policy.Mode == ModeManaged || q.Timeout > 0 || q.MaxDuration > 0 || q.policy.Supervised
	}},
	// The client would get no bytes for so long that it might give up; the relay sends heartbeats.
	{way: managed, applies: isCold, waits: isCold},
	{way: managed, applies: isSlow, waits: isSlow},
	// A share of the streams is measured.
	{way: managed, applies: func(q *wayQuestion) bool { return q.policy.Sample > 0 && rand.Float64() < q.policy.Sample }},
	{way: nativeUntilWait, applies: func(*wayQuestion) bool { return true }},
}

func isCold(q *wayQuestion) bool { return q.cold }

func isSlow(q *wayQuestion) bool { return q.slow }

// decide applies wayRules. waits says that the client of a managed request will have to wait.
func (q *wayQuestion) decide() (w way, waits bool) {
	always := false
	for i := range wayRules {
		rule := &wayRules[i]
		if !rule.applies(q) {
			continue
		}
		if rule.always {
			always = true
			continue
		}
		if w, waits = rule.way, rule.waits != nil && rule.waits(q); always {
			w = managed
		}
		break
	}
	return w, waits
}

type decision struct {
	way way
	// waits is as in wayRule. patience is how long a nativeUntilWait request may wait.
	waits    bool
	patience time.Duration
	// wanted says that the operator wants the stream native.
	wanted bool
}

// way decides which way a request takes. A request that cannot be resolved is native: its dispatch
// returns the error.
func (d *Dispatcher) way(r *Request) (all decision) {
	table := d.table.Load()
	if !r.Stream && r.ID == "" && !table.special && !r.Endpoint.OfMessages() && !r.Endpoint.BesideResponses() {
		return decision{} // only native is possible
	}
	table, c, fault := d.resolve(r)
	if fault != nil {
		return decision{}
	}
	cold, ttft := c.starts() && !c.refusesCold(), time.Duration(0)
	if r.Stream {
		ttft = c.firstToken(r.PromptBytes)
	}
	for i, m := range c.members {
		policy := m.policy.Way
		q := wayQuestion{Request: r, policy: policy, cold: cold, slow: ttft > policy.patience(), closeDelimited: m.closeDelimited,
			refusesAsFailure: m.refusesAsFailure, moderated: table.moderated != nil && table.moderated(m.Name, r.Tenant)}
		one := decision{patience: policy.patience(), wanted: r.Stream && policy.Mode == ModeNative}
		one.way, one.waits = q.decide()
		if i == 0 || one.way == managed || all.way == native {
			all = one
		}
		if all.way == managed {
			break
		}
	}
	return all
}

// arrivedBefore is the one rule that needs the ticket: a request that was waiting when its replica
// became pickable is managed, unless the operator wants the stream native.
//
// The reason: Envoy's workers learn of a replica one iteration of their event loops after Envoy's
// main thread has acknowledged it. Until then they may route all waiting requests to a cluster
// without an endpoint. The ext_proc answer to a request that arrives later takes the workers
// through two iterations first.
func arrivedBefore(t *Ticket, came time.Time, how decision) bool {
	return t.Age() < time.Since(came) && !(how.way == native && how.wanted)
}

// Managed is a request that goes to the relay.
type Managed struct {
	// Pending is the request's wait in the queue, or its ticket; nil means that the relay
	// dispatches the request.
	Pending *Pending
	// ClientWaits says that the client will have to wait or is waiting already.
	ClientWaits bool
}

// DispatchOrHandOff decides which way a request from ext_proc takes. Exactly one result is not nil.
// A native request has a ticket, as Dispatch returns it. The Managed is for the offer to the relay.
// A refused request has an error. The caller must not change r afterwards, since a request that is
// handed off may still wait with it.
func (d *Dispatcher) DispatchOrHandOff(ctx context.Context, r *Request) (*Ticket, *Managed, *openai.Error) {
	if d.retired.Load() {
		return nil, nil, retiredFault()
	}
	came, how := time.Now(), d.way(r)
	if how.way == managed {
		return nil, &Managed{ClientWaits: how.waits}, nil
	}
	if how.way == nativeUntilWait {
		r.Watch = new(Wait)
	}
	ticket, pending, fault := d.Begin(ctx, r)
	if pending != nil {
		if how.way == nativeUntilWait && !pending.awaitFor(ctx, how.patience) {
			return nil, &Managed{Pending: pending, ClientWaits: true}, nil
		}
		ticket, fault = pending.Await(ctx)
	}
	switch {
	case fault != nil:
		return nil, nil, fault
	case arrivedBefore(ticket, came, how):
		return nil, &Managed{Pending: Granted(ticket)}, nil
	}
	return ticket, nil, nil
}
