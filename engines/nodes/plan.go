package nodes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/placement"
)

const (
	// unseenTimeout is how long the id of a released replica stays in use if the fleet has never
	// shown the replica. Its node may have started it.
	unseenTimeout = 10 * time.Second
	// refusedTimeout is how long an assigned replica may wait for resources on its node, although
	// there should be some, before it is assigned to another node.
	refusedTimeout = 5 * time.Second
	// minRemovedTimeout is how long the replicas of a removed model are kept in mind at least. The
	// fleet does not show them.
	minRemovedTimeout = time.Minute
)

// pendingReplica is a replica that no node has room for.
type pendingReplica struct {
	id     string
	model  *revision
	reason string
}

// change is a change of an assignment, for the log.
type change struct {
	location
	message, reason string
}

// plan says which replica shall run on which node.
type plan struct {
	*observation
	planState
	// pending are the replicas that are wanted and have no node.
	pending []pendingReplica
	changes []change

	// nodes are the members with the claims of their replicas, in the same order. memberAt maps a
	// member's key to its index.
	nodes    []placement.Node
	memberAt map[string]int
	// seen are the replicas that the fleet shows.
	seen map[location]replica
	// usedIDs are the replica ids in use on any node. nextIndex is by model the lowest number that
	// may be free. assigned counts the assignments by model.
	usedIDs   map[string]bool
	nextIndex map[string]int
	assigned  map[string]int
	// avoid are nodes that have refused a replica of a model.
	avoid map[refusal]bool
}

// refusal is a node that had no room for a replica of the model although there should have been
// some.
type refusal struct{ model, node string }

// plan computes which replica runs on which node. A replica that has a node keeps it as long as
// possible.
func (o *observation) plan(before planState) *plan {
	p := &plan{
		observation: o, nodes: make([]placement.Node, len(o.members)), memberAt: map[string]int{},
		seen: make(map[location]replica, len(o.shown)), usedIDs: make(map[string]bool, len(o.shown)),
		nextIndex: map[string]int{}, assigned: map[string]int{}, avoid: map[refusal]bool{},
	}
	p.released, p.evicting, p.refused = map[location]release{}, map[location]time.Time{}, map[location]time.Time{}
	p.observe(before)
	p.keepAssignments(before.assignments)
	p.adopt()
	if !o.shrinkingPaused {
		p.shrink()
	}
	p.reserveResources()
	p.unbindRefused(before.refused)
	for i := range o.models {
		p.grow(o.revisions[o.models[i].Name])
	}
	return p
}

// observe takes over what the fleet shows, and those parts of the previous state that still matter.
func (p *plan) observe(before planState) {
	for i, m := range p.members {
		p.nodes[i].Node = m.Node
		p.memberAt[m.key] = i
	}
	for _, r := range p.shown {
		p.seen[r.location] = r
		p.usedIDs[r.id] = true
		if i, ok := p.memberAt[r.node]; ok && p.holdsResources(r) {
			p.addClaim(i, r.assignment(), r.resources, engines.Replica{GPUs: r.gpus}.Devices())
		}
	}
	for l, r := range before.released {
		_, runs := p.seen[l]
		if runs || p.mayDrain(r) || !r.seen && p.now.Sub(r.at) < unseenTimeout {
			r.seen = r.seen || runs
			p.released[l] = r
			p.usedIDs[l.id] = true
		}
	}
	for l, since := range before.evicting {
		if r, runs := p.seen[l]; runs && (r.isStopping() || p.now.Sub(since) < evictionTimeout) {
			p.evicting[l] = since
		}
	}
}

// mayDrain reports whether the replica of a removed model may still have requests.
func (p *plan) mayDrain(r release) bool {
	m := p.removed[r.model]
	return m != nil && p.now.Sub(r.at) < max(m.DrainTimeout, minRemovedTimeout)
}

// holdsResources reports whether the node has given the replica its resources, or the replica needs
// none.
func (p *plan) holdsResources(r replica) bool {
	return r.resources != engines.Resources{} || wantOf(p.revisions[r.model]).Resources == engines.Resources{}
}

func (p *plan) addClaim(node int, a assignment, used engines.Resources, devices []string) {
	claim := placement.Claim{ID: a.id, Model: a.model, Resources: used, Devices: devices}
	p.nodes[node].Claims = append(p.nodes[node].Claims, claim)
}

// claim claims what the replica of an assignment asks its node for. It returns false if the node
// has no room.
func (p *plan) claim(node int, a assignment, want placement.Want) bool {
	devices, missing := placement.PickDevices(p.nodes[node].Node, p.nodes[node].Claims, want)
	if missing != "" {
		return false
	}
	p.addClaim(node, a, want.Resources, devices)
	return true
}

// isEligible reports whether the node answers and has the label that the model requires.
func (p *plan) isEligible(m *revision, node int) bool {
	n := &p.members[node]
	return !n.Lost && !n.nameTaken && (m.Cluster == "" || !n.known || slices.Contains(n.Labels, m.Cluster))
}

// bind adds an assignment. An empty message is not logged.
func (p *plan) bind(a assignment, message string) {
	p.assignments = append(p.assignments, a)
	p.assigned[a.model]++
	p.usedIDs[a.id] = true
	delete(p.released, a.location)
	if message != "" {
		p.changes = append(p.changes, change{a.location, message, ""})
	}
}

// unbind releases an assignment. The caller removes it from p.assignments.
func (p *plan) unbind(a assignment, reason string) {
	p.assigned[a.model]--
	_, seen := p.seen[a.location]
	p.released[a.location] = release{a.model, p.revisions[a.model].spec, p.now, seen}
	p.usedIDs[a.id] = true
	p.changes = append(p.changes, change{a.location, "replica unassigned", reason})
}

// keepAssignments takes over the assignments of the previous plan whose nodes are still eligible.
func (p *plan) keepAssignments(before []assignment) {
	p.assignments = make([]assignment, 0, len(before))
	for _, a := range before {
		m := p.revisions[a.model]
		if m == nil { // the model is gone, and the fleet does not show the replica either
			if gone := p.removed[a.model]; gone != nil {
				p.released[a.location] = release{a.model, gone.spec, p.now, true}
			}
			continue
		}
		if i, ok := p.memberAt[a.node]; ok && p.isEligible(m, i) {
			p.bind(a, "")
		} else {
			p.assigned[a.model]++ // unbind subtracts it
			p.unbind(a, "its node is lost or lacks the label")
		}
	}
}

// adopt assigns replicas that run without an assignment to the nodes where they run. An earlier run
// of the gateway started them.
func (p *plan) adopt() {
	assigned := make(map[string]bool, len(p.assignments))
	for _, a := range p.assignments {
		assigned[a.id] = true
	}
	for _, r := range p.shown {
		i, ok := p.memberAt[r.node]
		_, released := p.released[r.location]
		if ok && r.index >= 0 && !r.isStopping() && !released && !assigned[r.id] && p.isEligible(p.revisions[r.model], i) {
			assigned[r.id] = true
			p.bind(r.assignment(), "replica adopted")
		}
	}
}

// shrink unbinds the surplus replicas of models that have more than they should.
func (p *plan) shrink() {
	surplus := func(a assignment) bool { return p.assigned[a.model] > max(p.revisions[a.model].Desired, 0) }
	var candidates []assignment
	for _, a := range p.assignments {
		if surplus(a) {
			candidates = append(candidates, a)
		}
	}
	if len(candidates) == 0 {
		return
	}
	p.sortForStopping(candidates)
	gone := map[location]bool{}
	for _, a := range candidates {
		if surplus(a) {
			gone[a.location] = true
			p.unbind(a, "its model needs fewer replicas")
		}
	}
	p.assignments = slices.DeleteFunc(p.assignments, func(a assignment) bool { return gone[a.location] })
}

// sortForStopping sorts assignments so that, of each model, the replica to stop first comes first.
func (p *plan) sortForStopping(assignments []assignment) {
	requests := make(map[string]int, len(assignments))
	for _, a := range assignments {
		requests[a.id] = p.inFlight(a.id)
	}
	slices.SortFunc(assignments, func(a, b assignment) int {
		return cmp.Or(
			cmp.Compare(p.stopRank(a, requests[a.id]), p.stopRank(b, requests[b.id])),
			cmp.Compare(requests[a.id], requests[b.id]),
			cmp.Compare(b.index, a.index), cmp.Compare(a.id, b.id))
	})
}

// stopRank is lower the less is lost when the replica stops. A replica that was chosen for eviction
// has the lowest rank, unless it has requests again.
func (p *plan) stopRank(a assignment, requests int) int {
	if _, evicting := p.evicting[a.location]; evicting && requests == 0 {
		return 0
	}
	switch p.seen[a.location].state {
	case engines.Failed:
		return 1
	case engines.Ready:
		return 4
	case engines.Starting:
		return 3
	default: // pending, draining, stopped, or not shown yet
		return 2
	}
}

// reserveResources claims the resources of assigned replicas that do not hold them yet. A replica
// that does not fit on its node any more is unbound.
func (p *plan) reserveResources() {
	p.assignments = slices.DeleteFunc(p.assignments, func(a assignment) bool {
		i := p.memberAt[a.node]
		if r, ok := p.seen[a.location]; ok && p.holdsResources(r) {
			return false
		}
		want := wantOf(p.revisions[a.model])
		if want.Resources != (engines.Resources{}) && !p.members[i].known {
			return false
		}
		if !p.claim(i, a, want) {
			p.unbind(a, "it does not fit on its node any more")
			return true
		}
		return false
	})
}

// unbindRefused unbinds replicas that wait for resources on their node for refusedTimeout although
// there should be some, if another node has room. The fleet does not show everything that uses
// resources. It lacks the draining replicas of a model that is gone, and what a node still runs
// after it was lost.
func (p *plan) unbindRefused(before map[location]time.Time) {
	p.assignments = slices.DeleteFunc(p.assignments, func(a assignment) bool {
		r, seen := p.seen[a.location]
		if !seen || r.state != engines.Pending || p.holdsResources(r) || !p.members[p.memberAt[a.node]].known {
			return false
		}
		if r.reason == "" {
			return false // its node reads its GPUs again, and places it then
		}
		since, ok := before[a.location]
		if !ok {
			since = p.now
		}
		p.refused[a.location] = since
		if p.now.Sub(since) < refusedTimeout {
			return false
		}
		m := p.revisions[a.model]
		p.avoid[refusal{a.model, a.node}] = true
		if others := p.candidates(m); len(others) == 0 || placement.PickNode(selectNodes(p.nodes, others), wantOf(m)) < 0 {
			delete(p.avoid, refusal{a.model, a.node})
			return false
		}
		p.unbind(a, "its node has no room for it")
		return true
	})
}

// grow assigns the replicas that the model lacks. Those that fit nowhere become pending.
func (p *plan) grow(m *revision) {
	lack := m.Desired - p.assigned[m.Name]
	if lack <= 0 {
		return
	}
	for _, a := range p.rebindable(m) {
		if lack > 0 && p.rebind(m, a) {
			lack--
		}
	}
	want, reason := wantOf(m), ""
	candidates := p.candidates(m)
	for ; lack > 0; lack-- {
		var node int
		if node, reason = p.pickNode(m, candidates, want); reason != "" {
			break
		}
		index := p.allocateIndex(m.Name)
		a := assignment{location{engines.ReplicaID(m.Name, index), p.members[node].key}, m.Name, index}
		p.claim(node, a, want)
		p.bind(a, "replica assigned")
	}
	for ; lack > 0; lack-- {
		p.pending = append(p.pending, pendingReplica{engines.ReplicaID(m.Name, p.allocateIndex(m.Name)), m, reason})
	}
}

// allocateIndex returns the lowest number that no replica of the model has on any node, and marks
// it used.
func (p *plan) allocateIndex(model string) int {
	for index := p.nextIndex[model]; ; index++ {
		if id := engines.ReplicaID(model, index); !p.usedIDs[id] {
			p.usedIDs[id] = true
			p.nextIndex[model] = index + 1
			return index
		}
	}
}

// rebindable lists released assignments of the model whose replicas may still run and have its
// current revision.
func (p *plan) rebindable(m *revision) []assignment {
	var list []assignment
	for l, r := range p.released {
		index := engines.ReplicaIndex(m.Name, l.id)
		if index < 0 || r.spec != m.spec {
			continue
		}
		list = append(list, assignment{l, m.Name, index})
	}
	slices.SortFunc(list, func(a, b assignment) int { return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(a.node, b.node)) })
	return list
}

// rebind restores a released assignment. It returns false if the node is not eligible or has no
// room, or if the replica was chosen for eviction.
func (p *plan) rebind(m *revision, a assignment) bool {
	i, ok := p.memberAt[a.node]
	_, evicting := p.evicting[a.location]
	if !ok || evicting || !p.isEligible(m, i) || p.avoid[refusal{m.Name, a.node}] || p.isAssigned(a.id) {
		return false
	}
	if r, ok := p.seen[a.location]; (!ok || !p.holdsResources(r)) && !p.claim(i, a, wantOf(m)) {
		return false
	}
	p.bind(a, "replica reassigned")
	return true
}

// isAssigned reports whether a replica of this id is assigned to any node.
func (p *plan) isAssigned(id string) bool {
	return slices.ContainsFunc(p.assignments, func(a assignment) bool { return a.id == id })
}

// candidates returns the indices of the members that a replica of the model may be assigned to. The
// gateway's own machine is no candidate for a replica with resources before its own are known, nor
// for one that requires a label.
func (p *plan) candidates(m *revision) []int {
	var list []int
	for i := range p.members {
		n := &p.members[i]
		unrestricted := m.Cluster == "" && wantOf(m).Resources == engines.Resources{}
		labelled := m.Cluster == "" || slices.Contains(n.Labels, m.Cluster)
		if !n.nameTaken && !p.avoid[refusal{m.Name, n.key}] && (n.known || unrestricted) && labelled {
			list = append(list, i)
		}
	}
	return list
}

// pickNode picks the node for one more replica of the model, or says why there is none.
func (p *plan) pickNode(m *revision, candidates []int, want placement.Want) (node int, missing string) {
	if p.bindingPaused {
		return -1, "waits until the nodes that had joined before have said what they run"
	}
	if len(candidates) > 0 {
		if node, missing = placement.PickNodeOrExplain(selectNodes(p.nodes, candidates), want); missing == "" {
			return candidates[node], ""
		}
	} else if missing = "there is no node"; m.Cluster != "" {
		missing = fmt.Sprintf("no node has the label %q", m.Cluster)
	}
	if len(p.members) > 0 && p.members[0].key == localNode && !p.members[0].known {
		if len(candidates) == 0 {
			return -1, "waits until the resources of this node are known"
		}
		missing += "; the resources of this node are not known yet"
	}
	return -1, missing
}

// nodeName returns the name of a node for the log.
func (p *plan) nodeName(key string) string {
	if i, ok := p.memberAt[key]; ok {
		return p.members[i].Name
	}
	return strings.TrimPrefix(key, unusable)
}
