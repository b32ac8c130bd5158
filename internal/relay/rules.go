package relay

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

// Policy is how the calls of one model are carried.
type Policy struct {
	// Heartbeat is the longest silence of a managed stream; 0 means 15 s.
	Heartbeat time.Duration
	// EmptyChunks makes heartbeats chunks without content, for clients that cannot read comments.
	EmptyChunks bool
	// Resume is how long the events of a call with a request id are kept for a client that comes back, and how long a call goes on that
	// nobody listens to; 0: not at all.
	Resume time.Duration
	// TTFTTimeout is how long one replica has for its first token before another is tried; 0: as long as it takes.
	TTFTTimeout time.Duration
	// StallTimeout is the longest time between two events of an engine after the first token; 0: none.
	StallTimeout time.Duration
	// InjectUsage asks the engine for the token usage of every stream, and keeps it from clients that did not.
	InjectUsage bool
	// Sample is the share of the streams that come here to see the times between their tokens, from 0 to 1. More than 0: all that come are measured.
	Sample float64
	// GRPC says that its replicas speak llm.v1.
	GRPC bool
	// Rerank is the dialect in which its replicas rerank; empty: that of the API.
	Rerank Dialect
}

// heartbeat is the interval.
func (p Policy) heartbeat() time.Duration {
	if p.Heartbeat == 0 {
		return defaultHeartbeat
	}
	return p.Heartbeat
}

const defaultHeartbeat = 15 * time.Second

// Rules are the policies in force. They are not changed once they are set, nor copied.
type Rules struct {
	// Default is the policy of discovered models, Models holds those of configured ones by name.
	Default Policy
	Models  map[string]Policy
	// Moderation lists what ends streams early.
	Moderation []Moderation

	// sets are the compiled rules, by which of Moderation they are
	sets sync.Map // string → *moderation.Set
}

// Moderation is rules for the answers of some models to some tenants. "*" is all; so is an empty list.
type Moderation struct {
	Models, Tenants []string
	Rule            moderation.Rule
}

func (m *Moderation) covers(model, tenant string) bool {
	return among(m.Models, model) && among(m.Tenants, tenant)
}

func among(names []string, name string) bool {
	return len(names) == 0 || slices.Contains(names, "*") || slices.Contains(names, name)
}

// SetRules replaces the rules, effective on the next call.
func (r *Relay) SetRules(rules *Rules) { r.rules.Store(rules) }

// Moderated says whether a rule may end the model's answers to the tenant early.
func (r *Rules) Moderated(model, tenant string) bool {
	return slices.ContainsFunc(r.Moderation, func(m Moderation) bool { return m.covers(model, tenant) })
}

func (r *Rules) policy(model string) Policy {
	if p, ok := r.Models[model]; ok {
		return p
	}
	return r.Default
}

// moderated finds the rules for a model's answers to a tenant; nil: there are none.
func (r *Rules) moderated(model, tenant string) *moderation.Set {
	var rules []moderation.Rule
	var which []byte
	for i := range r.Moderation {
		if m := &r.Moderation[i]; m.covers(model, tenant) {
			rules, which = append(rules, m.Rule), strconv.AppendInt(append(which, ' '), int64(i), 10)
		}
	}
	if len(rules) == 0 {
		return nil
	}
	if set, ok := r.sets.Load(string(which)); ok {
		return set.(*moderation.Set)
	}
	set, _ := r.sets.LoadOrStore(string(which), moderation.New(rules))
	return set.(*moderation.Set)
}
