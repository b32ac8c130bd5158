package main

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/sluice-gateway/sluice/internal/bench/trace"
)

// point is one point of the sweep: a workload, a fleet, and how fast the requests come.
type point struct {
	workload *workload
	shape
	// load is the speed of the arrivals. At 1, eight replicas of 6,000 tokens a second get the
	// recorded ones, and other fleets as many more or fewer as they compute more or fewer tokens.
	load float64
	// outcomes are by the name of the rule.
	outcomes map[string]outcome
}

// The usual fleet, and two sizes of caches: about those of a small and of a large GPU.
const (
	usualReplicas = 8
	usualRate     = 6000
	smallCache    = 307_200
	largeCache    = 2_048_000
)

var caches = []int{smallCache, largeCache}

// demandedLoads are those for which the demands on the conversation trace hold.
var demandedLoads = []float64{0.5, 1, 1.3}

func newPoint(w *workload, cache int, load float64) *point {
	return &point{workload: w, shape: shape{replicas: usualReplicas, cache: cache, rate: usualRate}, load: load}
}

// speed is the factor by which the arrivals are faster than recorded.
func (p *point) speed() float64 {
	return p.load * float64(p.replicas) / usualReplicas * p.rate / usualRate
}

// run simulates the rules at the point.
func (p *point) run(rules []namedRule) {
	p.outcomes = map[string]outcome{}
	for _, r := range rules {
		f := newFleet(p.shape, p.workload)
		p.outcomes[r.name] = simulate(p.workload, f, r.new(f), p.speed())
	}
}

// fleetName says what is unusual about the fleet.
func (p *point) fleetName() string {
	name := strconv.Itoa(p.replicas) + " replicas"
	switch {
	case p.rate != usualRate:
		name += fmt.Sprintf(" of %g tokens/s", p.rate)
	case p.slow:
		name += ", one half as fast"
	case p.slowdown > 0:
		name += fmt.Sprintf(", each answer slows prompts by %g %%", 100*p.slowdown)
	}
	return name
}

func (p *point) cacheName() string {
	if p.cache >= 1_000_000 {
		return fmt.Sprintf("%.0fM", float64(p.cache)/1e6)
	}
	return fmt.Sprintf("%dk", p.cache/1000)
}

// isDemanded says that the demands on the conversation trace hold at the point.
func (p *point) isDemanded() bool {
	return p.workload.name == conversationName && p.shape == newPoint(nil, p.cache, 0).shape && slices.Contains(demandedLoads, p.load)
}

// conversationName is the name of the trace in the tables.
const conversationName = "conversation"

// sweep is all points.
type sweep struct {
	// trace are the points of the trace with the usual fleet, by cache and load. fleets have other
	// fleets, made the made-up workloads.
	trace, fleets, made []*point
}

// newSweep returns the points, without outcomes.
func newSweep(requests []trace.Request) *sweep {
	w := newWorkload(conversationName, requests)
	s := &sweep{}
	for _, cache := range caches {
		for _, load := range []float64{0.5, 0.7, 0.85, 1, 1.15, 1.3} {
			s.trace = append(s.trace, newPoint(w, cache, load))
		}
		for _, load := range demandedLoads {
			s.addFleets(w, cache, load)
		}
	}
	for _, c := range worstCases {
		w := madeWorkload(c.name, c.requests)
		for _, load := range []float64{0.5, 0.8, 1, 1.2} {
			s.made = append(s.made, newPoint(w, smallCache, load))
		}
		slow := newPoint(w, smallCache, 0.8)
		slow.slow = true
		s.made = append(s.made, slow)
	}
	return s
}

func (s *sweep) addFleets(w *workload, cache int, load float64) {
	for _, change := range []func(*shape){
		func(f *shape) { f.replicas = 2 },
		func(f *shape) { f.replicas = 4 },
		func(f *shape) { f.replicas = 16 },
		func(f *shape) { f.rate = 1500 },
		func(f *shape) { f.rate = 24_000 },
		func(f *shape) { f.slow = true },
		func(f *shape) { f.slowdown = 0.02 },
	} {
		p := newPoint(w, cache, load)
		change(&p.shape)
		s.fleets = append(s.fleets, p)
	}
}

// all returns all points in the order of the tables.
func (s *sweep) all() []*point { return slices.Concat(s.trace, s.fleets, s.made) }

// run simulates all points, as many at once as there are processors.
func (s *sweep) run() {
	points := make(chan *point)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for p := range points {
				p.run(rulesOf(p))
			}
		})
	}
	for _, p := range s.all() {
		points <- p
	}
	close(points)
	workers.Wait()
}

// rulesOf returns the rules that are simulated at a point.
func rulesOf(p *point) []namedRule {
	if p.isDemanded() {
		return slices.Concat(rules, variants)
	}
	return slices.DeleteFunc(slices.Clone(rules), func(r namedRule) bool { return !slices.Contains(compared, r.name) })
}
