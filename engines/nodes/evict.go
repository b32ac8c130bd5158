package nodes

import (
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/engines/placement"
)

// evictionTimeout is how long a replica that was chosen for eviction may go on before another one
// is chosen in its place. Once it drains, it may take as long as it needs.
const evictionTimeout = 30 * time.Second

// needsEviction reports whether there is a pending replica for which others may be evicted.
func (p *plan) needsEviction() bool {
	return slices.ContainsFunc(p.pending, func(r pendingReplica) bool { return r.model.EvictIdle })
}

// evict chooses replicas of idle models to evict for pending replicas. It returns their models,
// once for each replica. The room of replicas that drain or were chosen before counts as free, and
// pending replicas get it in their order. So no replica is evicted for one that will have room
// anyway.
func (p *plan) evict(idle []string) (models []string) {
	assigned := make(map[location]bool, len(p.assignments))
	for _, a := range p.assignments {
		assigned[a.location] = true
	}
	later := p.nodesWithClaims(func(l location) bool { _, evicting := p.evicting[l]; return assigned[l] && !evicting })
	evictable := p.evictable(idle)
	hopeless := map[*revision]bool{} // one more replica of the model finds no room even so
	for _, r := range p.pending {
		candidates := p.candidates(r.model)
		if hopeless[r.model] || len(candidates) == 0 {
			continue
		}
		if r.model.EvictIdle {
			for _, a := range p.evictionsFor(r.model, selectNodes(later, candidates), evictable) {
				models = append(models, a.model)
				p.evicting[a.location] = p.now
				at := p.memberAt[a.node]
				later[at].Claims = slices.DeleteFunc(later[at].Claims, func(c placement.Claim) bool { return c.ID == a.id })
				evictable = slices.DeleteFunc(evictable, func(other assignment) bool { return other.location == a.location })
			}
		}
		hopeless[r.model] = !claimLater(r, later, candidates)
	}
	return models
}

// claimLater gives a pending replica room on one of the candidates. It returns false if none has
// room.
func claimLater(r pendingReplica, nodes []placement.Node, candidates []int) bool {
	want := wantOf(r.model)
	i := placement.PickNode(selectNodes(nodes, candidates), want)
	if i < 0 {
		return false
	}
	n := &nodes[candidates[i]]
	devices, _ := placement.PickDevices(n.Node, n.Claims, want)
	n.Claims = append(n.Claims, placement.Claim{ID: r.id, Model: r.model.Name, Resources: want.Resources, Devices: devices})
	return true
}

// evictionsFor returns the replicas that must be evicted for one more replica of the model. None of
// them belongs to the model itself, because a model with a pending replica has no evictable ones.
func (p *plan) evictionsFor(m *revision, nodes []placement.Node, evictable []assignment) (evicted []assignment) {
	var ids []string
	for _, a := range evictable {
		ids = append(ids, a.id)
	}
	ids = placement.PickEvictions(nodes, wantOf(m), ids)
	for _, a := range evictable {
		if slices.Contains(ids, a.id) {
			evicted = append(evicted, a)
		}
	}
	return evicted
}

// evictable returns the replicas that idle models may lose, in the order of eviction. A model loses
// as many as idle lists it, in the order in which it would lose them when scaled down. A replica
// with requests is not evictable. Nor are those of a model with pending replicas: scaling it down
// frees no room.
func (p *plan) evictable(idle []string) (evictable []assignment) {
	byModel := map[string][]assignment{}
	for _, a := range p.assignments {
		_, evicting := p.evicting[a.location]
		if slices.Contains(idle, a.model) && !evicting && !p.seen[a.location].isStopping() && p.inFlight(a.id) == 0 {
			byModel[a.model] = append(byModel[a.model], a)
		}
	}
	for _, r := range p.pending {
		delete(byModel, r.model.Name)
	}
	for _, list := range byModel {
		p.sortForStopping(list)
	}
	for _, model := range idle {
		if list := byModel[model]; len(list) > 0 {
			evictable, byModel[model] = append(evictable, list[0]), list[1:]
		}
	}
	return evictable
}

// nodesWithClaims returns a copy of the nodes with only those claims that stay.
func (p *plan) nodesWithClaims(stays func(location) bool) []placement.Node {
	nodes := slices.Clone(p.nodes)
	for i := range nodes {
		key := p.members[i].key
		nodes[i].Claims = slices.DeleteFunc(slices.Clone(nodes[i].Claims), func(c placement.Claim) bool { return !stays(location{c.ID, key}) })
	}
	return nodes
}
