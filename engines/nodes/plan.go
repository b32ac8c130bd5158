package nodes

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/placement"
)

// unseenFor is how long the number of a seat that was released before the fleet showed its replica is not used elsewhere: the host
// may have begun it.
const unseenFor = 10 * time.Second

// refusedFor is how long a replica that should fit may wait on its host before it goes to another one.
const refusedFor = 5 * time.Second

// vacancy is a replica that has no host.
type vacancy struct {
	id     string
	model  *edition
	reason string
}

// act is for the log.
type act struct {
	spot
	what string
}

// plan is which replica runs on which host.
type plan struct {
	*world
	memory
	vacancies []vacancy
	acts      []act

	// hosts are the members with what is taken of them, at their places by key.
	hosts []placement.Host
	at    map[string]int
	seen  map[spot]replica
	// taken are the ids that are in use anywhere, next the lowest number of a model that may be free, have the seats of a model.
	taken map[string]bool
	next  map[string]int
	have  map[string]int
	// avoid are hosts that have refused replicas of a model.
	avoid map[refusal]bool
}

// refusal is a host that had no room for a model, though there should be.
type refusal struct{ model, host string }

// plan says which replica runs on which host from now on. Replicas that have a host stay there as long as they can.
func (w *world) plan(before memory) *plan {
	p := &plan{
		world: w, hosts: make([]placement.Host, len(w.members)), at: map[string]int{}, seen: make(map[spot]replica, len(w.shown)),
		taken: make(map[string]bool, len(w.shown)), next: map[string]int{}, have: map[string]int{}, avoid: map[refusal]bool{},
	}
	p.released, p.marked, p.refused = map[spot]release{}, map[spot]time.Time{}, map[spot]time.Time{}
	p.survey(before)
	p.keep(before.seats)
	p.adopt()
	if !w.keeps {
		p.shrink()
	}
	p.reserve()
	p.relieve(before.refused)
	for i := range w.models {
		p.grow(w.editions[w.models[i].Name])
	}
	return p
}

// survey counts what the fleet shows, and forgets what is over.
func (p *plan) survey(before memory) {
	for i, m := range p.members {
		p.hosts[i].Node = m.Node
		p.at[m.key] = i
	}
	for _, r := range p.shown {
		p.seen[r.spot] = r
		p.taken[r.id] = true
		if i, ok := p.at[r.host]; ok && p.placed(r) {
			p.claim(i, r.seat(), r.resources, engines.Replica{GPUs: r.gpus}.Devices())
		}
	}
	for s, r := range before.released {
		_, there := p.seen[s]
		if there || !r.seen && p.now.Sub(r.at) < unseenFor {
			r.seen = r.seen || there
			p.released[s] = r
			p.taken[s.id] = true
		}
	}
	for s, since := range before.marked {
		if r, there := p.seen[s]; there && (r.leaves() || p.now.Sub(since) < evictAgain) {
			p.marked[s] = since
		}
	}
}

// placed tells that the replica has what it takes of its host.
func (p *plan) placed(r replica) bool {
	e := p.editions[r.model]
	return r.resources != engines.Resources{} || wantOf(e).Resources == engines.Resources{}
}

func (p *plan) claim(host int, s seat, taken engines.Resources, devices []string) {
	p.hosts[host].Claims = append(p.hosts[host].Claims, placement.Claim{ID: s.id, Model: s.model, Resources: taken, Devices: devices})
}

// may tells whether replicas of the model may be on the host as far as its label goes, and whether it answers.
func (p *plan) may(e *edition, host int) bool {
	m := &p.members[host]
	return !m.Lost && !m.shut && (e.Cluster == "" || !m.known || slices.Contains(m.Labels, e.Cluster))
}

// sit gives a replica a host.
func (p *plan) sit(s seat, what string) {
	p.seats = append(p.seats, s)
	p.have[s.model]++
	p.taken[s.id] = true
	delete(p.released, s.spot)
	if what != "" {
		p.acts = append(p.acts, act{s.spot, what})
	}
}

// let takes its host from a replica. The caller takes it off seats.
func (p *plan) let(s seat, what string) {
	p.have[s.model]--
	_, seen := p.seen[s.spot]
	p.released[s.spot] = release{p.editions[s.model].spec, p.now, seen}
	p.taken[s.id] = true
	p.acts = append(p.acts, act{s.spot, what})
}

// keep takes over the seats of the plan before.
func (p *plan) keep(seats []seat) {
	p.seats = make([]seat, 0, len(seats))
	for _, s := range seats {
		e := p.editions[s.model]
		if e == nil {
			continue // the fleet does not show it either
		}
		if i, ok := p.at[s.host]; ok && p.may(e, i) {
			p.sit(s, "")
		} else {
			p.have[s.model]++ // let counts it out
			p.let(s, "must go: its host is lost or not for it")
		}
	}
}

// adopt gives seats to replicas that are there, do not leave, and have none: they were begun by an earlier run.
func (p *plan) adopt() {
	sits := make(map[string]bool, len(p.seats))
	for _, s := range p.seats {
		sits[s.id] = true
	}
	for _, r := range p.shown {
		i, ok := p.at[r.host]
		_, released := p.released[r.spot]
		if ok && r.index >= 0 && !r.leaves() && !released && !sits[r.id] && p.may(p.editions[r.model], i) {
			sits[r.id] = true
			p.sit(r.seat(), "is taken over")
		}
	}
}

// shrink takes the seats of models that have too many.
func (p *plan) shrink() {
	var most []seat
	for _, s := range p.seats {
		if p.have[s.model] > max(p.editions[s.model].Desired, 0) {
			most = append(most, s)
		}
	}
	if len(most) == 0 {
		return
	}
	p.inOrderOfLeaving(most)
	gone := map[spot]bool{}
	for _, s := range most {
		if p.have[s.model] > max(p.editions[s.model].Desired, 0) {
			gone[s.spot] = true
			p.let(s, "is wanted no longer")
		}
	}
	p.seats = slices.DeleteFunc(p.seats, func(s seat) bool { return gone[s.spot] })
}

// inOrderOfLeaving sorts seats, of each model the one first that goes first.
func (p *plan) inOrderOfLeaving(seats []seat) {
	busy := make(map[string]int, len(seats))
	for _, s := range seats {
		busy[s.id] = p.inFlight(s.id)
	}
	slices.SortFunc(seats, func(a, b seat) int {
		return cmp.Or(
			cmp.Compare(p.worth(a, busy[a.id]), p.worth(b, busy[b.id])), cmp.Compare(busy[a.id], busy[b.id]),
			cmp.Compare(b.index, a.index), cmp.Compare(a.id, b.id))
	})
}

// worth is the lower the less is lost with the replica. One that is to make room for another goes first, unless it is in use again.
func (p *plan) worth(s seat, busy int) int {
	if _, marked := p.marked[s.spot]; marked && busy == 0 {
		return 0
	}
	switch p.seen[s.spot].state {
	case engines.Failed:
		return 1
	case engines.Ready:
		return 4
	case engines.Starting:
		return 3
	default: // pending, leaving, or not shown yet
		return 2
	}
}

// reserve counts what seats take whose replicas have not got it yet. One that does not fit any more loses its seat.
func (p *plan) reserve() {
	p.seats = slices.DeleteFunc(p.seats, func(s seat) bool {
		i := p.at[s.host]
		if r, ok := p.seen[s.spot]; ok && p.placed(r) {
			return false
		}
		want := wantOf(p.editions[s.model])
		if want.Resources != (engines.Resources{}) && !p.members[i].known {
			return false
		}
		devices, missing := placement.Place(p.hosts[i].Node, p.hosts[i].Claims, want)
		if missing != "" {
			p.let(s, "must go: it does not fit on its host any more")
			return true
		}
		p.claim(i, s, want.Resources, devices)
		return false
	})
}

// relieve takes their seats from replicas that should fit and still have no room on their hosts, if there is room elsewhere. The fleet does
// not show all that takes room: not what leaves of a model that is wanted no longer, nor what a host that was lost has left over.
func (p *plan) relieve(before map[spot]time.Time) {
	p.seats = slices.DeleteFunc(p.seats, func(s seat) bool {
		r, seen := p.seen[s.spot]
		if !seen || r.state != engines.Pending || p.placed(r) || !p.members[p.at[s.host]].known {
			return false
		}
		since, ok := before[s.spot]
		if !ok {
			since = p.now
		}
		p.refused[s.spot] = since
		if p.now.Sub(since) < refusedFor {
			return false
		}
		e := p.editions[s.model]
		p.avoid[refusal{s.model, s.host}] = true
		if places := p.candidates(e); len(places) == 0 || placement.Find(p.only(p.hosts, places), wantOf(e)) < 0 {
			delete(p.avoid, refusal{s.model, s.host})
			return false
		}
		p.let(s, "must go: its host has no room for it")
		return true
	})
}

// grow gives the model the replicas that it lacks.
func (p *plan) grow(e *edition) {
	lack := e.Desired - p.have[e.Name]
	if lack <= 0 {
		return
	}
	for _, s := range p.recallable(e) {
		if lack > 0 && p.recall(e, s) {
			lack--
		}
	}
	want, reason := wantOf(e), ""
	candidates := p.candidates(e)
	for ; lack > 0; lack-- {
		var host int
		if host, reason = p.choose(e, candidates, want); reason != "" {
			break
		}
		index := p.free(e.Name)
		s := seat{spot{idOf(e.Name, index), p.members[host].key}, e.Name, index}
		devices, _ := placement.Place(p.hosts[host].Node, p.hosts[host].Claims, want)
		p.claim(host, s, want.Resources, devices)
		p.sit(s, "has a host")
	}
	for ; lack > 0; lack-- {
		p.vacancies = append(p.vacancies, vacancy{idOf(e.Name, p.free(e.Name)), e, reason})
	}
}

// free is the lowest number that no replica of the model has anywhere. It is in use then.
func (p *plan) free(model string) int {
	for index := p.next[model]; ; index++ {
		if id := idOf(model, index); !p.taken[id] {
			p.taken[id] = true
			p.next[model] = index + 1
			return index
		}
	}
}

// recallable lists seats that the model has lost and that it may have again: the replica has hardly left, and is still what it
// should be.
func (p *plan) recallable(e *edition) []seat {
	var list []seat
	for s, r := range p.released {
		index := indexOf(e.Name, s.id)
		if index < 0 || r.spec != e.spec {
			continue
		}
		list = append(list, seat{s, e.Name, index})
	}
	slices.SortFunc(list, func(a, b seat) int { return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(a.host, b.host)) })
	return list
}

// recall gives a seat back. It tells false when the host is not there, has no room, or the replica is to make room for another.
func (p *plan) recall(e *edition, s seat) bool {
	i, ok := p.at[s.host]
	_, marked := p.marked[s.spot]
	if !ok || marked || !p.may(e, i) || p.avoid[refusal{e.Name, s.host}] || p.sits(s.id) {
		return false
	}
	if r, ok := p.seen[s.spot]; !ok || !p.placed(r) {
		want := wantOf(e)
		devices, missing := placement.Place(p.hosts[i].Node, p.hosts[i].Claims, want)
		if missing != "" {
			return false
		}
		p.claim(i, s, want.Resources, devices)
	}
	p.sit(s, "is called back")
	return true
}

// sits tells that a replica of this id has a seat somewhere.
func (p *plan) sits(id string) bool {
	return slices.ContainsFunc(p.seats, func(s seat) bool { return s.id == id })
}

// candidates are the members that a replica of the model may be on. This host is no candidate for one with resources before it says
// what it has, nor for one with a label.
func (p *plan) candidates(e *edition) []int {
	var list []int
	for i := range p.members {
		m := &p.members[i]
		free := e.Cluster == "" && wantOf(e).Resources == engines.Resources{}
		if !m.shut && !p.avoid[refusal{e.Name, m.key}] && (m.known || free) && (e.Cluster == "" || slices.Contains(m.Labels, e.Cluster)) {
			list = append(list, i)
		}
	}
	return list
}

// choose finds the host for one more replica, or says why there is none.
func (p *plan) choose(e *edition, candidates []int, want placement.Want) (host int, missing string) {
	if p.waits {
		return -1, "waits until the hosts that had joined before have said what runs there"
	}
	if len(candidates) > 0 {
		if host, missing = placement.Choose(p.only(p.hosts, candidates), want); missing == "" {
			return candidates[host], ""
		}
	} else if missing = "there is no host"; e.Cluster != "" {
		missing = fmt.Sprintf("no host has the label %q", e.Cluster)
	}
	if len(p.members) > 0 && p.members[0].key == thisHost && !p.members[0].known {
		if len(candidates) == 0 {
			return -1, "waits until it is known what this host has"
		}
		missing += "; it is not known yet what this host has"
	}
	return -1, missing
}
