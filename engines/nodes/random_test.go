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

// life is a controller over hosts that come, go, and are slow.
type life struct {
	t      *testing.T
	seed   uint64
	random *rand.Rand
	now    time.Time
	fleet  *engines.Fleet
	hosts  []*fakeHost
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
		l.hosts = append(l.hosts, newFakeHost(m, l.fleet, l.random))
	}
	var others []Host
	for _, h := range l.hosts[1:] {
		others = append(others, h)
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
		Fleet: l.fleet, Local: l.hosts[0], Others: func() []Host { return others },
		InFlight: func(string) int { return l.random.IntN(2) },
		Idle:     func() []string { return []string{l.models[l.random.IntN(len(l.models))].Name} },
		Evict:    l.evict,
	})
	l.set()
	return l
}

// evict obeys mostly.
func (l *life) evict(names []string) {
	for i := range l.models {
		if slices.Contains(names, l.models[i].Name) && l.models[i].Desired > 0 && l.random.IntN(3) > 0 {
			l.models[i].Desired--
		}
	}
	l.set()
}

func (l *life) set() { l.Set(slices.Clone(l.models)) }

// trouble changes the world.
func (l *life) trouble() {
	m := &l.models[l.random.IntN(len(l.models))]
	h := l.hosts[l.random.IntN(len(l.hosts))]
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
		if h != l.hosts[0] {
			h.Lost = !h.Lost
		}
	case 6:
		if h != l.hosts[0] {
			h.known = !h.known
		}
	}
}

func (l *life) tick() {
	l.now = l.now.Add(time.Second)
	for _, h := range l.hosts {
		h.tick()
	}
	l.step(l.now, true)
	l.check()
}

// check holds what must be true at any moment.
func (l *life) check() {
	l.t.Helper()
	ids := map[string]bool{}
	for _, s := range l.memory.seats {
		if ids[s.id] {
			l.t.Fatalf("seed %d: two seats of %s", l.seed, s.id)
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
	for _, h := range l.hosts {
		l.checkRoom(h.Name, h.member.Node, h.claims()) // of the fake itself
	}
	p := l.again()
	if len(p.acts) > 0 {
		l.t.Fatalf("seed %d: a second plan of the same moves: %+v", l.seed, p.acts)
	}
	for i, h := range p.hosts {
		if p.members[i].known {
			l.checkRoom(h.Name, h.Node, h.Claims)
		}
	}
	for _, v := range p.vacancies {
		if ids[v.id] {
			l.t.Fatalf("seed %d: %s has a seat and is pending: %s", l.seed, v.id, v.reason)
		}
	}
}

// again plans the world as it is.
func (l *life) again() *plan {
	_, members := l.roll(l.now)
	w := &world{now: l.now, models: l.Controller.models.list, editions: l.Controller.models.byName, members: members, shown: l.look(members),
		inFlight: func(string) int { return 0 }, waits: len(l.silent) > 0, keeps: l.now.Before(l.keepUntil)}
	return w.plan(l.memory)
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
			l.t.Fatalf("seed %d: %v of %s are taken: %+v", l.seed, taken, uuid, claims)
		}
	}
	if cpu > node.CPUs {
		l.t.Fatalf("seed %d: %v processors of %s are taken", l.seed, cpu, name)
	}
}

// settle lets the world be until everything is as wanted.
func (l *life) settle() {
	for _, h := range l.hosts {
		h.Lost, h.known = false, true
	}
	for range 300 {
		l.tick()
	}
	p := l.again()
	have := map[string]int{}
	for _, s := range p.seats {
		have[s.model]++
		if r := p.seen[s.spot]; r.state != engines.Ready {
			l.t.Fatalf("seed %d: %+v has a seat and is %+v", l.seed, s, r)
		}
	}
	for _, v := range p.vacancies {
		have[v.model.Name]++
		if places := p.candidates(v.model); len(places) > 0 {
			if at, missing := placement.Choose(p.only(p.hosts, places), wantOf(v.model)); missing == "" {
				l.t.Fatalf("seed %d: %s is pending, and %s has room", l.seed, v.id, p.members[places[at]].Name)
			}
		}
	}
	for _, m := range l.models {
		if have[m.Name] != m.Desired {
			l.t.Fatalf("seed %d: %d of %s, want %d", l.seed, have[m.Name], m.Name, m.Desired)
		}
	}
	if len(p.shown) != len(p.seats) {
		l.t.Fatalf("seed %d: there are %+v, and seats %+v", l.seed, p.shown, p.seats)
	}
}

// Whatever comes and goes: ids are unique, no host has more than it can give, a plan is where a second plan stays, what has room gets it,
// and a world in which nothing happens is left alone.
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
			moved += len(l.memory.released)
		}
		l.settle()
		before, sets := slices.Clone(l.memory.seats), 0
		for _, h := range l.hosts {
			sets += h.sets
		}
		for i := range l.models { // whoever is evicted for is content now
			l.models[i].EvictIdle = false
		}
		for range 40 {
			l.tick()
		}
		for _, h := range l.hosts {
			sets -= h.sets
		}
		if !slices.Equal(before, l.memory.seats) || sets != 0 {
			t.Fatalf("seed %d: a world in which nothing happens: %+v and then %+v, %d more wishes", seed, before, l.memory.seats, -sets)
		}
	}
	if moved < 300 || pending < 300 {
		t.Errorf("%d seats were taken, %d replicas pending: little has happened", moved, pending)
	}
}
