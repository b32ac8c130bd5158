package nodes

import (
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/engines/placement"
)

// evictAgain is how long those who are to make room have until somebody else is asked; one that leaves may take as long as it needs.
const evictAgain = 30 * time.Second

// wantsEviction tells that somebody without a host may have others make room.
func (p *plan) wantsEviction() bool {
	return slices.ContainsFunc(p.vacancies, func(v vacancy) bool { return v.model.EvictIdle })
}

// evict marks the replicas of idle models that must go for those without a host, and lists their models, each as often as it is to lose
// a replica. It reckons with the room of those that leave or are marked already, and gives it to those without a host in their order: nobody
// is evicted for whom there will be room anyhow.
func (p *plan) evict(idle []string) (models []string) {
	sitting := make(map[spot]bool, len(p.seats))
	for _, s := range p.seats {
		sitting[s.spot] = true
	}
	soon := p.withClaims(func(s spot) bool { _, marked := p.marked[s]; return sitting[s] && !marked })
	spare := p.evictable(idle)
	hopeless := map[*edition]bool{} // those of which one more has no room even so
	for _, v := range p.vacancies {
		candidates := p.candidates(v.model)
		if hopeless[v.model] || len(candidates) == 0 {
			continue
		}
		if v.model.EvictIdle {
			for _, s := range p.victims(p.only(soon, candidates), v.model, spare) {
				models = append(models, s.model)
				p.marked[s.spot] = p.now
				at := p.at[s.host]
				soon[at].Claims = slices.DeleteFunc(soon[at].Claims, func(c placement.Claim) bool { return c.ID == s.id })
				spare = slices.DeleteFunc(spare, func(other seat) bool { return other.spot == s.spot })
			}
		}
		want := wantOf(v.model)
		host := placement.Find(p.only(soon, candidates), want)
		if hopeless[v.model] = host < 0; host >= 0 {
			at := candidates[host]
			devices, _ := placement.Place(soon[at].Node, soon[at].Claims, want)
			soon[at].Claims = append(soon[at].Claims, placement.Claim{ID: v.id, Model: v.model.Name, Resources: want.Resources, Devices: devices})
		}
	}
	return models
}

// victims are those that must go for one more replica of the model, which is not among them: it has one without a host.
func (p *plan) victims(hosts []placement.Host, e *edition, spare []seat) (gone []seat) {
	var ids []string
	for _, s := range spare {
		ids = append(ids, s.id)
	}
	ids = placement.Victims(hosts, wantOf(e), ids)
	for _, s := range spare {
		if slices.Contains(ids, s.id) {
			gone = append(gone, s)
		}
	}
	return gone
}

// evictable lists the replicas that idle models may lose, as many of each as it is there often, the one to go first first: of each model
// those that go next when it is to have fewer. One that has requests is not among them. A model that itself has replicas without a host
// frees no room by having fewer.
func (p *plan) evictable(idle []string) (spare []seat) {
	seats := map[string][]seat{}
	for _, s := range p.seats {
		_, marked := p.marked[s.spot]
		if slices.Contains(idle, s.model) && !marked && !p.seen[s.spot].leaves() && p.inFlight(s.id) == 0 {
			seats[s.model] = append(seats[s.model], s)
		}
	}
	for _, v := range p.vacancies {
		delete(seats, v.model.Name)
	}
	for _, list := range seats {
		p.inOrderOfLeaving(list)
	}
	for _, model := range idle {
		if list := seats[model]; len(list) > 0 {
			spare, seats[model] = append(spare, list[0]), list[1:]
		}
	}
	return spare
}

// withClaims copies the hosts with those claims only that stay.
func (p *plan) withClaims(stays func(spot) bool) []placement.Host {
	hosts := slices.Clone(p.hosts)
	for i := range hosts {
		key := p.members[i].key
		hosts[i].Claims = slices.DeleteFunc(slices.Clone(hosts[i].Claims), func(c placement.Claim) bool { return !stays(spot{c.ID, key}) })
	}
	return hosts
}
