package dispatch

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/ringhash"
)

// world is everything a pick looks at. It is immutable.
type world struct {
	snapshot *engines.Snapshot
	targets  map[string]*target
	// users lists the models that every replica may be picked for.
	users map[string][]string
}

// target is a model with the replicas that may be picked.
type target struct {
	engines.Model
	policy   Policy
	ring     *ringhash.Ring
	replicas []replica // in the order of the ring's ids
	cursor   *atomic.Uint64
	// hope: no replica may be picked now, but one may come (it starts, or was lost and is expected back).
	hope bool
	// starting: one is on its way for the first time.
	starting bool
}

// replica is a candidate of one world.
type replica struct {
	id, address string
	limit       int // 0: none
	*counter
}

// counter outlives worlds: it counts what is on a replica.
type counter struct {
	load   atomic.Int64
	served atomic.Uint64
}

// take counts one more request unless the limit is reached.
func (r replica) take() bool {
	for {
		now := r.load.Load()
		if r.limit > 0 && now >= int64(r.limit) {
			return false
		}
		if r.load.CompareAndSwap(now, now+1) {
			r.served.Add(1)
			return true
		}
	}
}

const defaultColdStart = 10 * time.Minute

// patience is how long a request may wait: the model's, cut to the client's own.
func (t *target) patience(own time.Duration) time.Duration {
	wait := t.policy.Limits.QueueTimeout
	if wait == 0 {
		wait = time.Minute
	}
	if len(t.replicas) == 0 && t.starting {
		wait = t.policy.ColdStart
		if wait == 0 {
			wait = defaultColdStart
		}
	}
	if own > 0 {
		wait = min(wait, own)
	}
	return wait
}

// rebuild makes the world anew and wakes whoever waits for it.
func (d *Dispatcher) rebuild() {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.world.Load()
	w := &world{snapshot: d.fleet.Snapshot(), targets: map[string]*target{}, users: map[string][]string{}}
	for name, m := range w.snapshot.Models {
		t := d.targetLocked(m, old.targets[name])
		w.targets[name] = t
		for _, r := range t.replicas {
			w.users[r.id] = append(w.users[r.id], name)
		}
		d.admission.SetLimits(name, t.policy.Limits)
	}
	d.world.Store(w)
	for name := range old.targets {
		if w.targets[name] == nil {
			d.admission.Remove(name)
			delete(d.cursors, name)
		}
	}
	for name := range w.targets {
		d.admission.Kick(name)
	}
	d.forgetLocked(w.users)
}

func (d *Dispatcher) targetLocked(m *engines.ModelSnapshot, old *target) *target {
	policy, ok := d.policies[m.Name]
	if !ok {
		policy = d.fallback
	}
	if d.cursors[m.Name] == nil {
		d.cursors[m.Name] = new(atomic.Uint64)
	}
	t := &target{Model: m.Model, policy: policy, cursor: d.cursors[m.Name]}
	var ids []string
	for _, r := range m.Replicas {
		t.hope = true
		t.starting = t.starting || r.State == engines.Starting || r.State == engines.Pending
		if r.State != engines.Ready {
			continue
		}
		if !d.routable[m.Name][r.ID] {
			t.starting = true // Envoy is about to know it
			continue
		}
		ids = append(ids, r.ID)
		t.replicas = append(t.replicas, replica{
			id: r.ID, address: r.Address.String(), limit: limit(policy, r), counter: d.counterLocked(r.ID),
		})
	}
	t.hope = t.hope || m.Desired > 0
	if old != nil && old.policy.VirtualNodes == policy.VirtualNodes && slices.Equal(old.ring.IDs(), ids) {
		t.ring = old.ring // 100 MD5 sums a replica are worth keeping
	} else {
		t.ring = ringhash.New(ids, policy.VirtualNodes)
	}
	return t
}

// limit is how many requests one replica takes at once.
func limit(p Policy, r engines.Replica) int {
	switch {
	case p.MaxPerReplica > 0:
		return p.MaxPerReplica
	case r.Slots > 0:
		return r.Slots
	case r.Launcher == engines.Upstream:
		return 1
	}
	return 0
}

func (d *Dispatcher) counterLocked(id string) *counter {
	c := d.counters[id]
	if c == nil {
		c = new(counter)
		d.counters[id] = c
	}
	return c
}

// forgetLocked drops the counters of replicas that are gone and idle. One that is gone and not idle keeps its counter: it may
// come back under the same id while its old streams still run.
func (d *Dispatcher) forgetLocked(users map[string][]string) {
	for id, c := range d.counters {
		if _, used := users[id]; !used && c.load.Load() == 0 && !d.namedLocked(id) {
			delete(d.counters, id)
		}
	}
}

func (d *Dispatcher) namedLocked(id string) bool {
	for _, m := range d.world.Load().snapshot.Models {
		for _, r := range m.Replicas {
			if r.ID == id {
				return true
			}
		}
	}
	return false
}

// fallbacks bounds how many replicas Envoy is told beside the picked one, should that one refuse.
const fallbacks = 3

// place picks a replica, takes a slot on it and writes both into the ticket. False: none has a free slot.
func (t *target) place(key uint64, ticket *Ticket) bool {
	var space [32]int
	for {
		loads := t.loads(space[:0])
		i := t.pick(key, loads)
		if i < 0 {
			return false
		}
		if t.replicas[i].take() {
			ticket.hold(t, i, t.list(key, i, loads))
			return true
		}
		// Another model that shares the replica was quicker. Look again: its load has changed.
	}
}

// loads reads the counters; -1 stands for a replica without a free slot.
func (t *target) loads(into []int) []int {
	for _, r := range t.replicas {
		n := int(r.load.Load())
		if r.limit > 0 && n >= r.limit {
			n = -1
		}
		into = append(into, n)
	}
	return into
}

func (t *target) pick(key uint64, loads []int) int {
	switch t.policy.Strategy {
	case RoundRobin:
		return t.pickRoundRobin(loads)
	case LeastConnections:
		return t.pickLeast(loads)
	case CHWBL:
		return t.ring.Pick(key, loads, ringhash.Bound{Factor: t.policy.LoadFactor})
	default:
		return t.ring.Pick(key, loads, ringhash.Bound{Factor: t.policy.LoadFactor, Floor: t.policy.LoadFloor})
	}
}

func (t *target) pickRoundRobin(loads []int) int {
	n := uint64(len(loads))
	for range loads {
		if i := int((t.cursor.Add(1) - 1) % n); loads[i] >= 0 {
			return i
		}
	}
	return -1
}

func (t *target) pickLeast(loads []int) int {
	best := -1
	for i, load := range loads {
		if load < 0 {
			continue
		}
		if best < 0 || load < loads[best] || load == loads[best] && t.replicas[i].served.Load() < t.replicas[best].served.Load() {
			best = i
		}
	}
	return best
}

// list is the header that Envoy's override_host policy follows: the picked replica, then others with a free slot in the
// order of the ring.
func (t *target) list(key uint64, picked int, loads []int) string {
	if len(t.replicas) == 1 {
		return t.replicas[picked].address
	}
	var b strings.Builder
	b.WriteString(t.replicas[picked].address)
	var space [fallbacks + 1]int // the picked one may be among them
	more := fallbacks
	for _, i := range t.ring.AppendOrder(space[:0], key, loads, len(space)) {
		if i != picked && more > 0 {
			b.WriteByte(',')
			b.WriteString(t.replicas[i].address)
			more--
		}
	}
	return b.String()
}
