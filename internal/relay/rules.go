package relay

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

// Policy says how the calls of one model are carried.
type Policy struct {
	// Heartbeat is the interval after which a stream without events gets a heartbeat. 0: 15 s.
	Heartbeat time.Duration
	// EmptyChunks says that heartbeats are chunks without content, for clients that cannot read
	// comments.
	EmptyChunks bool
	// Resume is how long a named call goes on without a subscriber, and how long its events are
	// kept after its end for a client that comes back. 0: neither.
	Resume time.Duration
	// TTFTTimeout is how long one replica has for its first token before another one is tried.
	// 0: there is no limit.
	TTFTTimeout time.Duration
	// StallTimeout is the longest time between two events of an engine after the first token.
	// 0: there is no limit.
	StallTimeout time.Duration
	// Usage says which counts of tokens the engine is asked for in every stream. A client gets
	// those that it has asked for itself.
	Usage engines.UsageReports
	// Sample is the share of streams that are managed only to observe the times between their
	// tokens, from 0 to 1. If it is greater than 0, every managed stream is observed.
	Sample float64
	// GRPC says that the replicas speak llm.v1.
	GRPC bool
	// Rerank is the dialect of the replicas for reranking. Empty: that of the API.
	Rerank Dialect
}

func (p Policy) heartbeat() time.Duration {
	return cmp.Or(p.Heartbeat, defaultHeartbeat)
}

// defaultHeartbeat is the default of Policy.Heartbeat.
const defaultHeartbeat = 15 * time.Second

// Rules are the policies of all models. They must be neither changed after SetRules nor copied.
type Rules struct {
	// Default is the policy of discovered models. Models has the policies of configured models by
	// name.
	Default Policy
	Models  map[string]Policy
	// Moderation lists the rules that can end streams early.
	Moderation []Moderation

	// compiled has the compiled rules for each subset of Moderation that was needed so far. The key
	// lists their indexes.
	compiled sync.Map // string → *moderation.Set
}

// Moderation is a rule for the answers of some models to some tenants. "*" means all, and so does
// an empty list.
type Moderation struct {
	Models  []string
	Tenants []string
	Rule    moderation.Rule
}

func (m *Moderation) covers(model, tenant string) bool {
	return among(m.Models, model) && among(m.Tenants, tenant)
}

// among reports whether the list contains the name, or means all.
func among(names []string, name string) bool {
	return len(names) == 0 || slices.Contains(names, "*") || slices.Contains(names, name)
}

// SetRules replaces the rules. They apply to calls that come later.
func (r *Relay) SetRules(rules *Rules) { r.rules.Store(rules) }

// Moderated reports whether a rule may end the model's answers to the tenant early.
func (r *Rules) Moderated(model, tenant string) bool {
	return slices.ContainsFunc(r.Moderation, func(m Moderation) bool { return m.covers(model, tenant) })
}

func (r *Rules) policy(model string) Policy {
	if p, ok := r.Models[model]; ok {
		return p
	}
	return r.Default
}

// policyOf returns the policy of the model of a ticket. The rules no longer name a model that has
// been removed. Its replicas answer what waits for them, and still speak as they did.
func (r *Rules) policyOf(t *dispatch.Ticket) Policy {
	p := r.policy(t.Model)
	p.GRPC = p.GRPC || t.GRPC
	if t.RerankAPI {
		p.Rerank = RerankTEI
	}
	return p
}

// moderated returns the compiled rules for a model's answers to a tenant. nil: there are none.
func (r *Rules) moderated(model, tenant string) *moderation.Set {
	var rules []moderation.Rule
	var indexes []byte
	for i := range r.Moderation {
		if m := &r.Moderation[i]; m.covers(model, tenant) {
			rules, indexes = append(rules, m.Rule), strconv.AppendInt(append(indexes, ' '), int64(i), 10)
		}
	}
	if len(rules) == 0 {
		return nil
	}
	if set, ok := r.compiled.Load(string(indexes)); ok {
		return set.(*moderation.Set)
	}
	set, _ := r.compiled.LoadOrStore(string(indexes), moderation.New(rules))
	return set.(*moderation.Set)
}
