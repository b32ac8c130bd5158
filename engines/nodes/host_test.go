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

// fakeHost applies what it is told some time later, like a launcher on a host behind a network: replicas wait for room, start, serve,
// leave slowly, and are called back while they leave.
type fakeHost struct {
	member
	fleet  *engines.Fleet
	random *rand.Rand
	// slow: it takes some ticks until anything happens; otherwise it happens at once.
	slow bool

	mu sync.Mutex
	// wish is what it was told last, sets how often; guarded by mu
	wish []local.Model
	sets int
	// heard is the wish that it has read; away: it has not read one since it was lost.
	heard    []local.Model
	away     bool
	replicas map[string]*fakeReplica
}

type fakeReplica struct {
	engines.Replica
	// was is the model that it was started as.
	was local.Model
	// hidden: it is there from before a loss, and the fleet hears of it no more.
	hidden bool
}

func newFakeHost(m member, fleet *engines.Fleet, random *rand.Rand) *fakeHost {
	return &fakeHost{member: m, fleet: fleet, random: random, slow: random != nil, replicas: map[string]*fakeReplica{}}
}

func (h *fakeHost) Node() (engines.Node, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.member.Node, h.known
}

func (h *fakeHost) Set(models []local.Model) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wish = models
	h.sets++
}

// change lets a test change what the host says of itself.
func (h *fakeHost) change(f func(*member)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&h.member)
}

// told is the wish: the indices by model, and how often it was told.
func (h *fakeHost) told() (indices map[string][]int, sets int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	indices = map[string][]int{}
	for _, m := range h.wish {
		indices[m.Name] = m.Indices
	}
	return indices, h.sets
}

// soon tells that the next thing happens now.
func (h *fakeHost) soon(likely int) bool { return !h.slow || h.random.IntN(10) < likely }

// tick is a moment in the life of the host.
func (h *fakeHost) tick() {
	h.mu.Lock()
	wish := h.wish
	h.mu.Unlock()
	if h.away = h.away || h.Lost; !h.Lost && h.soon(5) {
		h.heard, h.away = wish, false
	}
	wanted := map[string]local.Model{}
	for _, m := range h.heard {
		for _, index := range m.Indices {
			wanted[idOf(m.Name, index)] = m
		}
	}
	for id, m := range wanted {
		if _, ok := h.replicas[id]; !ok {
			h.replicas[id] = &fakeReplica{was: m, Replica: engines.Replica{ID: id, Model: m.Name, State: engines.Pending, Launcher: engines.Local, Node: h.Name}}
		}
	}
	for _, id := range sortedKeys(h.replicas) {
		m, ok := wanted[id]
		h.age(h.replicas[id], m, ok)
	}
	h.report(wish)
}

// age takes a replica one step further.
func (h *fakeHost) age(r *fakeReplica, m local.Model, wanted bool) {
	same := wanted && reflect.DeepEqual(r.was.Resources, m.Resources) && !r.hidden
	switch {
	case r.State == engines.Draining && same && h.soon(5):
		r.State = engines.Ready
	case r.State == engines.Draining && h.soon(3):
		delete(h.replicas, r.ID)
	case r.State == engines.Draining:
	case !same:
		r.State = engines.Draining
	case r.State == engines.Pending:
		h.place(r)
	case r.State == engines.Starting && h.soon(5):
		r.State = engines.Ready
	}
}

func (h *fakeHost) place(r *fakeReplica) {
	want := placement.Want{Model: r.Model, Policy: r.was.Placement}
	if r.was.Resources != nil {
		want.Resources = *r.was.Resources
	}
	devices, missing := placement.Place(h.member.Node, h.claims(), want)
	if r.Reason = missing; missing == "" {
		r.State, r.Resources, r.GPUs = engines.Starting, want.Resources, strings.Join(devices, ",")
	}
}

func (h *fakeHost) claims() (claims []placement.Claim) {
	for _, id := range sortedKeys(h.replicas) {
		r := h.replicas[id]
		claims = append(claims, placement.Claim{ID: id, Model: r.Model, Resources: r.Resources, Devices: r.Devices()})
	}
	return claims
}

// report tells the fleet. Of a host that was lost it hears only of what is to be there.
func (h *fakeHost) report(wish []local.Model) {
	named := map[string]bool{}
	for _, m := range wish {
		for _, index := range m.Indices {
			named[idOf(m.Name, index)] = true
		}
	}
	part := engines.Part{}
	for _, id := range sortedKeys(h.replicas) {
		r := h.replicas[id]
		r.hidden = r.hidden || h.away && !named[id]
		if r.hidden {
			continue
		}
		shown := r.Replica
		if h.Lost {
			shown.State, shown.Reason = engines.Failed, "does not answer"
		}
		part.Replicas = append(part.Replicas, shown)
	}
	h.fleet.Set("node/"+h.Name, part)
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
