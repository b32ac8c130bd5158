package nodes

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/engines/placement"
)

// life is a controller over slow nodes that come and go.
type life struct {
	t      *testing.T
	seed   uint64
	random *rand.Rand
	now    time.Time
	fleet  *engines.Fleet
	nodes  []*fakeNode
	models []local.Model
	*Controller
}

func newLife(t *testing.T, seed uint64) *life {
	l := &life{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 3)), now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), fleet: engines.NewFleet()}
	for i, name := range []string{here, "a", "b", "c"}[:2+l.random.IntN(3)] {
		m := with(name, l.random.IntN(5))
		if i > 0 && l.random.IntN(2) == 0 {
			m.Labels = []string{"west"}
		}
		l.nodes = append(l.nodes, newFakeNode(m, l.fleet, l.random))
	}
	var others []Node
	for _, n := range l.nodes[1:] {
		others = append(others, n)
	}
	for i := range 1 + l.random.IntN(5) {
		m := model(string(rune('p'+i)), l.random.IntN(4), []float64{0, 0, 0.3, 0.5, 1, 1, 2}[l.random.IntN(7)])
		m.Placement = []placement.Policy{placement.Spread, placement.Pack}[l.random.IntN(2)]
		m.EvictIdle = l.random.IntN(3) == 0
		if l.random.IntN(4) == 0 {
			m.Cluster = "west"
		}
		l.models = append(l.models, m)
	}
	l.Controller = New(Config{
		Fleet: l.fleet, Local: l.nodes[0], Joined: func() []Node { return others },
		InFlight: func(string) int { return l.random.IntN(2) },
		Idle:     func() []string { return []string{l.models[l.random.IntN(len(l.models))].Name} },
		Evict:    l.evict,
	})
	l.set()
	return l
}

// evict scales most of the models down.
func (l *life) evict(names []string) {
	for i := range l.models {
		if slices.Contains(names, l.models[i].Name) && l.models[i].Desired > 0 && l.random.IntN(3) > 0 {
			l.models[i].Desired--
		}
	}
	l.set()
}

func (l *life) set() { l.Set(slices.Clone(l.models)) }

// trouble makes a random change.
func (l *life) trouble() {
	m := &l.models[l.random.IntN(len(l.models))]
	n := l.nodes[l.random.IntN(len(l.nodes))]
	switch l.random.IntN(12) {
	case 0, 1, 2:
		m.Desired = l.random.IntN(5)
		l.set()
	case 3:
		if m.Resources != nil {
			m.Resources = &engines.Resources{CPU: 1, GPU: []float64{0.25, 1, 2}[l.random.IntN(3)]}
			l.set()
		}
	case 4, 5:
		if n != l.nodes[0] {
			n.Lost = !n.Lost
		}
	case 6:
		if n != l.nodes[0] {
			n.known = !n.known
		}
	}
}

func (l *life) tick() {
	l.now = l.now.Add(time.Second)
	for _, n := range l.nodes {
		n.tick()
	}
	l.reconcile(l.now, true)
	l.check()
}

// check checks what must be true at any moment.
func (l *life) check() {
	l.t.Helper()
	ids := map[string]bool{}
	for _, s := range l.state.assignments {
		if ids[s.id] {
			l.t.Fatalf("seed %d: two assignments of %s", l.seed, s.id)
		}
		ids[s.id] = true
	}
	for _, m := range l.fleet.Snapshot().Models {
		seen := map[string]engines.Replica{}
		for _, r := range m.Replicas {
			if other, ok := seen[r.ID]; ok {
				l.t.Fatalf("seed %d: two replicas of one id: %+v, %+v", l.seed, other, r)
			}
			seen[r.ID] = r
		}
	}
	for _, n := range l.nodes {
		l.checkRoom(n.Name, n.member.Node, n.claims()) // of the fake itself
	}
	p := l.again()
	if len(p.changes) > 0 {
		l.t.Fatalf("seed %d: a second plan of the same observation changes: %+v", l.seed, p.changes)
	}
	for i, n := range p.nodes {
		if p.members[i].known {
			l.checkRoom(n.Name, n.Node, n.Claims)
		}
	}
	for _, v := range p.pending {
		if ids[v.id] {
			l.t.Fatalf("seed %d: %s is assigned and is pending: %s", l.seed, v.id, v.reason)
		}
	}
}

// again computes another plan from the present state.
func (l *life) again() *plan {
	_, members := l.listNodes(l.now)
	o := &observation{now: l.now, models: l.Controller.desired.list, revisions: l.Controller.desired.byName, members: members, shown: l.listReplicas(members),
		inFlight: func(string) int { return 0 }, bindingPaused: len(l.silent) > 0, shrinkingPaused: l.now.Before(l.keepUntil)}
	return o.plan(l.state)
}

func (l *life) checkRoom(name string, node engines.Node, claims []placement.Claim) {
	l.t.Helper()
	cpu, gpu := 0.0, map[string]float64{}
	for _, c := range claims {
		cpu += c.CPU
		for _, uuid := range c.Devices {
			gpu[uuid] += c.Share()
		}
	}
	for uuid, taken := range gpu {
		if taken > 1.000001 {
			l.t.Fatalf("seed %d: %v of %s are in use: %+v", l.seed, taken, uuid, claims)
		}
	}
	if cpu > node.CPUs {
		l.t.Fatalf("seed %d: %v CPUs of %s are in use", l.seed, cpu, name)
	}
}

// settle lets time pass without trouble, and checks that the nodes run what is desired.
func (l *life) settle() {
	for _, n := range l.nodes {
		n.Lost, n.known = false, true
	}
	for range 300 {
		l.tick()
	}
	p := l.again()
	have := map[string]int{}
	for _, s := range p.assignments {
		have[s.model]++
		if r := p.seen[s.location]; r.state != engines.Ready {
			l.t.Fatalf("seed %d: %+v is assigned and is %+v", l.seed, s, r)
		}
	}
	for _, v := range p.pending {
		have[v.model.Name]++
		if others := p.candidates(v.model); len(others) > 0 {
			if at, missing := placement.PickNodeOrExplain(selectNodes(p.nodes, others), wantOf(v.model)); missing == "" {
				l.t.Fatalf("seed %d: %s is pending, and %s has room", l.seed, v.id, p.members[others[at]].Name)
			}
		}
	}
	for _, m := range l.models {
		if have[m.Name] != m.Desired {
			l.t.Fatalf("seed %d: %d of %s, want %d", l.seed, have[m.Name], m.Name, m.Desired)
		}
	}
	if len(p.shown) != len(p.assignments) {
		l.t.Fatalf("seed %d: there are %+v, and assignments %+v", l.seed, p.shown, p.assignments)
	}
}

// TestLife makes random changes. At any moment ids are unique, no node is over-committed, and a
// second plan changes nothing. In the end each replica that fits has a node, and without changes
// nothing is set.
func TestLife(t *testing.T) {
	t.Parallel()
	moved, pending := 0, 0
	for seed := range uint64(20) {
		l := newLife(t, seed)
		for range 120 {
			if l.random.IntN(3) == 0 {
				l.trouble()
			}
			l.tick()
			pending += len(l.pending)
			moved += len(l.state.released)
		}
		l.settle()
		before, sets := slices.Clone(l.state.assignments), 0
		for _, n := range l.nodes {
			sets += n.sets
		}
		for i := range l.models { // whoever is evicted for is content now
			l.models[i].EvictIdle = false
		}
		for range 40 {
			l.tick()
		}
		for _, n := range l.nodes {
			sets -= n.sets
		}
		if !slices.Equal(before, l.state.assignments) || sets != 0 {
			t.Fatalf("seed %d: without any change: %+v, then %+v, and %d more sets", seed, before, l.state.assignments, -sets)
		}
	}
	if moved < 300 || pending < 300 {
		t.Errorf("%d assignments were released, %d replicas were pending: too few for a test", moved, pending)
	}
}
