package nodes

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/engines/placement"
)

// fakeNode applies a Set some time later, like a launcher on a node behind a network. Its replicas
// wait for room, start, serve and drain slowly. A draining replica that is set again serves on.
type fakeNode struct {
	member
	fleet  *engines.Fleet
	random *rand.Rand
	// slow: each step takes a random number of ticks instead of one.
	slow bool

	mu sync.Mutex
	// set is what was last set; sets counts the calls of Set; guarded by mu
	set  []local.Model
	sets int
	// current is the set that the node applies. away: it has not read a set since it was lost.
	current  []local.Model
	away     bool
	replicas map[string]*fakeReplica
}

type fakeReplica struct {
	engines.Replica
	// was is the model that the replica was started with.
	was local.Model
	// hidden: the replica runs since before a loss of the node, and is not reported any more.
	hidden bool
}

func newFakeNode(m member, fleet *engines.Fleet, random *rand.Rand) *fakeNode {
	return &fakeNode{member: m, fleet: fleet, random: random, slow: random != nil, replicas: map[string]*fakeReplica{}}
}

func (n *fakeNode) Node() (engines.Node, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.member.Node, n.known
}

func (n *fakeNode) Set(models []local.Model) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.set = models
	n.sets++
}

// change changes what the node says of itself.
func (n *fakeNode) change(f func(*member)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(&n.member)
}

// applied returns the indices by model of the last Set, and how often Set was called.
func (n *fakeNode) applied() (indices map[string][]int, sets int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	indices = map[string][]int{}
	for _, m := range n.set {
		indices[m.Name] = m.Indices
	}
	return indices, n.sets
}

// soon reports whether the next step happens now; likely is the probability in tenths.
func (n *fakeNode) soon(likely int) bool { return !n.slow || n.random.IntN(10) < likely }

// tick lets each replica take one step, and reports all of them.
func (n *fakeNode) tick() {
	n.mu.Lock()
	set := n.set
	n.mu.Unlock()
	if n.away = n.away || n.Lost; !n.Lost && n.soon(5) {
		n.current, n.away = set, false
	}
	wanted := map[string]local.Model{}
	for _, m := range n.current {
		for _, index := range m.Indices {
			wanted[engines.ReplicaID(m.Name, index)] = m
		}
	}
	for id, m := range wanted {
		if _, ok := n.replicas[id]; !ok {
			n.replicas[id] = &fakeReplica{was: m, Replica: engines.Replica{ID: id, Model: m.Name, State: engines.Pending, Launcher: engines.Local, Node: n.Name}}
		}
	}
	for _, id := range sortedKeys(n.replicas) {
		m, ok := wanted[id]
		n.age(n.replicas[id], m, ok)
	}
	n.report(set)
}

// age lets a replica take one step.
func (n *fakeNode) age(r *fakeReplica, m local.Model, wanted bool) {
	same := wanted && reflect.DeepEqual(r.was.Resources, m.Resources) && !r.hidden
	switch {
	case r.State == engines.Draining && same && n.soon(5):
		r.State = engines.Ready
	case r.State == engines.Draining && n.soon(3):
		delete(n.replicas, r.ID)
	case r.State == engines.Draining:
	case !same:
		r.State = engines.Draining
	case r.State == engines.Pending:
		n.place(r)
	case r.State == engines.Starting && n.soon(5):
		r.State = engines.Ready
	}
}

func (n *fakeNode) place(r *fakeReplica) {
	want := placement.Want{Model: r.Model, Policy: r.was.Placement}
	if r.was.Resources != nil {
		want.Resources = *r.was.Resources
	}
	devices, missing := placement.PickDevices(n.member.Node, n.claims(), want)
	if r.Reason = missing; missing == "" {
		r.State, r.Resources, r.GPUs = engines.Starting, want.Resources, strings.Join(devices, ",")
	}
}

func (n *fakeNode) claims() (claims []placement.Claim) {
	for _, id := range sortedKeys(n.replicas) {
		r := n.replicas[id]
		claims = append(claims, placement.Claim{ID: id, Model: r.Model, Resources: r.Resources, Devices: r.Devices()})
	}
	return claims
}

// report sets the node's replicas in the fleet, but not the hidden ones.
func (n *fakeNode) report(set []local.Model) {
	named := map[string]bool{}
	for _, m := range set {
		for _, index := range m.Indices {
			named[engines.ReplicaID(m.Name, index)] = true
		}
	}
	part := engines.Part{}
	for _, id := range sortedKeys(n.replicas) {
		r := n.replicas[id]
		r.hidden = r.hidden || n.away && !named[id]
		if r.hidden {
			continue
		}
		shown := r.Replica
		if n.Lost {
			shown.State, shown.Reason = engines.Failed, "does not answer"
		}
		part.Replicas = append(part.Replicas, shown)
	}
	n.fleet.Set("node/"+n.Name, part)
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
