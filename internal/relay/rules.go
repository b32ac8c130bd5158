package relay

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

// Mode says how the streams of a model are carried.
type Mode string

// The modes.
const (
	// Auto: by Envoy alone, unless the request asks for more or will have to wait.
	Auto Mode = "auto"
	// Native: by Envoy alone, always.
	Native Mode = "native"
	// Managed: by the relay, always.
	Managed Mode = "managed"
)

// Policy is how the calls of one model are carried.
type Policy struct {
	// Mode is Auto when empty.
	Mode Mode
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
	// Sample is the share of Auto's streams that are managed to see the times between their tokens, from 0 to 1.
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

	// special: there are requests which need the relay though they neither stream nor have a name.
	special bool
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
func (r *Relay) SetRules(rules *Rules) {
	rules.special = len(rules.Moderation) > 0
	for _, p := range rules.Models {
		rules.special = rules.special || p.GRPC || p.Rerank != ""
	}
	r.rules.Store(rules)
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

// Way is how a request is to be carried.
type Way struct {
	Mode Mode
	// Patience is how long a request of mode Auto may wait for its turn before it is handed to the relay. Forever is for requests that the
	// relay has nothing to offer to.
	Patience time.Duration
	// Foreseen says that the client of a Managed request will have to wait.
	Foreseen bool
}

// Forever is longer than any request waits.
const Forever = 24 * time.Hour

// Way says how a request is to be carried: Managed, Native, or Auto, which is native unless it has to wait. asked is what dispatch
// will be asked.
func (r *Relay) Way(scan *openai.Request, asked *dispatch.Request) Way {
	rules := r.rules.Load()
	if !scan.Stream && scan.RequestID == "" && !rules.special {
		return Way{Mode: Native, Patience: Forever}
	}
	f := r.config.Dispatcher.Foresee(asked)
	way := Way{Mode: Native, Patience: Forever}
	for i, model := range f.Models {
		p := rules.policy(model)
		next := p.way(scan, f)
		if rules.mustManage(p, scan, model, asked.Tenant) {
			next.Mode = Managed
		}
		if i == 0 || next.Mode == Managed || way.Mode == Native {
			way = next
		}
		if way.Mode == Managed {
			break
		}
	}
	return way
}

// mustManage says whether a rule or the engine itself leaves no choice.
func (r *Rules) mustManage(p Policy, scan *openai.Request, model, tenant string) bool {
	if p.GRPC || p.Rerank != "" && scan.Endpoint == openai.Rerank {
		return true
	}
	if scan.Endpoint.NoOutput() {
		return false
	}
	return slices.ContainsFunc(r.Moderation, func(m Moderation) bool { return m.covers(model, tenant) })
}

func (p Policy) way(scan *openai.Request, f dispatch.Foresight) Way {
	switch {
	case p.Mode == Native:
		return Way{Mode: Native, Patience: Forever}
	case scan.RequestID != "":
		return Way{Mode: Managed, Foreseen: f.Cold} // a stream or not: it can be joined
	case !scan.Stream:
		return Way{Mode: Native, Patience: Forever}
	case p.Mode == Managed, scan.Timeout > 0, scan.MaxDuration > 0, p.TTFTTimeout > 0, p.StallTimeout > 0, p.InjectUsage, f.Cold:
		return Way{Mode: Managed, Foreseen: f.Cold}
	}
	patience := p.heartbeat() / 3
	if f.TTFT > patience || p.Sample > 0 && rand.Float64() < p.Sample {
		return Way{Mode: Managed, Foreseen: f.TTFT > patience}
	}
	return Way{Mode: Auto, Patience: patience}
}
