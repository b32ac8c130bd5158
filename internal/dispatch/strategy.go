package dispatch

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/internal/predict"
	"github.com/sluice-gateway/sluice/ringhash"
)

// Strategy is the name of a way to choose a replica. Each has one row in strategies.
type Strategy string

// The strategies of a model's routing.
const (
	// Prefix picks the replica with the least predicted time to the first token (package predict).
	// That time depends on what waits there and on what its cache has of the prompt. A policy that
	// names no strategy has it.
	Prefix Strategy = "prefix"
	// CHWBL is consistent hashing with bounded loads and nothing else.
	CHWBL Strategy = "chwbl"
	// RoundRobin picks the replicas in turn.
	RoundRobin Strategy = "round_robin"
	// LeastConnections picks the replica with the fewest requests; of several such, the one that
	// has served the fewest.
	LeastConnections Strategy = "least_connections"
)

type strategy struct {
	name Strategy
	// pick returns the index of a replica whose load is not negative; -1: there is none.
	pick func(t *modelRoute, p *pickInput) int
	// cacheAware says that pick reads what the caches of the replicas hold.
	cacheAware bool
	// slowStart says that pick itself holds back the replicas that warm up. If it is false, their
	// loads are raised before the pick.
	slowStart bool
}

// pickInput is what a pick looks at beside the model route.
type pickInput struct {
	// key is the request's position on the hash ring.
	key uint64
	// loads of the replicas, in the order of modelRoute.replicas; -1 stands for a full replica. A
	// pick may change them.
	loads []int
	// now is zero while no replica warms up.
	now time.Time
	// peek says that the pick has no effect on later picks.
	peek bool
	// forecasts is what the replicas are expected to do with the request.
	forecasts *forecasts
	// why is set by a strategy that is cache-aware, and for a request that continues a response.
	// mustWait says that the only replica which can serve the request is full.
	why      predict.Reason
	mustWait bool
}

// strategies is the table of all strategies. To add one, add a row, and a row to the table of
// internal/config. The table is never changed.
var strategies = []strategy{
	{name: Prefix, pick: (*modelRoute).pickPrefix, cacheAware: true, slowStart: true},
	{name: CHWBL, pick: (*modelRoute).pickCHWBL},
	{name: RoundRobin, pick: (*modelRoute).pickRoundRobin, slowStart: true},
	{name: LeastConnections, pick: (*modelRoute).pickLeast},
}

// Strategies returns the names of all strategies.
func Strategies() []Strategy {
	names := make([]Strategy, len(strategies))
	for i := range strategies {
		names[i] = strategies[i].name
	}
	return names
}

// strategyOf returns the row of a name; nil: there is none. The empty name stands for Prefix.
func strategyOf(name Strategy) *strategy {
	name = cmp.Or(name, Prefix)
	if i := slices.IndexFunc(strategies, func(s strategy) bool { return s.name == name }); i >= 0 {
		return &strategies[i]
	}
	return nil
}

// Check refuses rules that name a strategy which does not exist.
func (r *Rules) Check() error {
	check := func(model string, p *Policy) error {
		if strategyOf(p.Strategy) == nil {
			return fmt.Errorf("%s: routing strategy %q does not exist: use one of %v", model, p.Strategy, Strategies())
		}
		return nil
	}
	if err := check("discovered models", &r.Default); err != nil {
		return err
	}
	for name, p := range r.Models {
		if err := check("model "+name, &p); err != nil {
			return err
		}
	}
	return nil
}

// pick returns the index of a replica whose load is not negative; -1 means that there is none. It
// picks no replica if the strategy does not exist; Rules.Check refuses such rules.
func (t *modelRoute) pick(p *pickInput) int {
	if t.strategy == nil {
		return -1
	}
	if p.forecasts.pinned {
		return p.pickPinned()
	}
	if !p.now.IsZero() && !t.strategy.slowStart {
		t.raiseWarmingLoads(p.loads, p.now)
	}
	return t.strategy.pick(t, p)
}

// pickPinned picks the replica that has the response which the request continues; -1: that replica
// is full.
func (p *pickInput) pickPinned() int {
	home := p.forecasts.session
	if p.why, p.mustWait = predict.Session, p.loads[home] < 0; p.mustWait {
		return -1
	}
	return home
}

// pickPrefix picks the replica with the least predicted time to the first token.
func (t *modelRoute) pickPrefix(p *pickInput) int {
	if !p.now.IsZero() {
		t.raiseWarming(p)
	}
	f := p.forecasts
	choice := predict.Choice{Ring: t.ring, Key: p.key, Session: f.session,
		Bound: ringhash.Bound{Factor: t.policy.LoadFactor, Floor: t.policy.LoadFloor},
		Hot:   &t.estimator.hot, Beginning: f.beginning, Now: f.at, Peek: p.peek}
	picked, why := choice.Choose(f.candidates, f.ties)
	p.why = why
	return picked
}

// pickCHWBL picks by consistent hashing with bounded loads.
func (t *modelRoute) pickCHWBL(p *pickInput) int {
	return t.ring.Pick(p.key, p.loads, ringhash.Bound{Factor: t.policy.LoadFactor})
}

// pickRoundRobin picks the next replica with a free slot. It skips a replica that warms up in some
// rounds, unless no other replica is free.
func (t *modelRoute) pickRoundRobin(p *pickInput) int {
	spare := -1
	warming := !p.now.IsZero() && t.anyWarm(p.now)
	for step := range p.loads {
		turn := t.cursor.Load() + uint64(step)
		if !p.peek {
			turn = t.cursor.Add(1) - 1
		}
		i := int(turn % uint64(len(p.loads)))
		switch {
		case p.loads[i] < 0:
		case warming && p.skipsRound(t.warmth(i, p.now), &t.replicas[i].rounds):
			spare = i
		default:
			return i
		}
	}
	return spare
}

// pickLeast picks the replica with the fewest requests.
func (t *modelRoute) pickLeast(p *pickInput) int {
	best := -1
	for i, load := range p.loads {
		if load < 0 {
			continue
		}
		if best < 0 || load < p.loads[best] || load == p.loads[best] && t.replicas[i].served.Load() < t.replicas[best].served.Load() {
			best = i
		}
	}
	return best
}
