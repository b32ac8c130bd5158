package dispatch

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/ringhash"
)

// world is everything a pick looks at. It is immutable.
type world struct {
	snapshot *engines.Snapshot
	targets  map[string]*target
	// users lists the models that every replica may be picked for.
	users map[string][]string
	// pools holds the models of every pool of the file, admissionPools what admission knows: those, or the one of all models where there
	// are none.
	pools, admissionPools map[string][]string
	// tenants holds the limits of those that have any.
	tenants map[string]admission.TenantLimits
	// taskPool is where tasks go that name neither a pool nor a model, taskLease how long they last.
	taskPool  string
	taskLease time.Duration
}

// everyModel is the pool of all models, where no pool is configured. It cannot be the name of one.
const everyModel = "*"

const defaultTaskLease = 15 * time.Minute

// target is a model with the replicas that may be picked.
type target struct {
	engines.Model
	policy   Policy
	ring     *ringhash.Ring
	replicas []replica // in the order of the ring's ids
	// mixed: they are in several clusters of Envoy.
	mixed   bool
	cursor  *atomic.Uint64
	lessons *lessons
	// hope: no replica may be picked now, but one may come (it starts, or was lost and is expected back).
	hope bool
	// starting: one is on its way for the first time.
	starting bool
	// elastic: one more comes when requests wait for it.
	elastic bool
}

// cold says that the request has to wait until a replica has been started.
func (t *target) cold() bool { return len(t.replicas) == 0 && (t.starting || t.elastic) }

// replica is a candidate of one world.
type replica struct {
	id, address string
	cluster     string // in Envoy
	limit       int    // 0: none
	mostPrefill int    // 0: no bound
	*counter
}

// counter outlives worlds: it counts what is on a replica.
type counter struct {
	load atomic.Int64
	// prefill counts those of load that are known to have no token yet.
	prefill atomic.Int64
	served  atomic.Uint64
	// fullUntil is when other gateways are asked again whether they have filled it, in Unix nanoseconds; 0 is now.
	fullUntil atomic.Int64
}

// fullFor is how long a replica that other gateways have filled is not offered.
const fullFor = 100 * time.Millisecond

// fullElsewhere takes note that other gateways have filled the replica.
func (d *Dispatcher) fullElsewhere(r replica) {
	now := time.Now()
	if before := r.fullUntil.Swap(now.Add(fullFor).UnixNano()); before < now.UnixNano() {
		d.lookAgain(r, fullFor)
	}
}

// lookAgain wakes who waits for the replica when it may be offered again.
func (d *Dispatcher) lookAgain(r replica, after time.Duration) {
	time.AfterFunc(after+time.Millisecond, func() {
		if rest := time.Until(time.Unix(0, r.fullUntil.Load())); rest > 0 {
			d.lookAgain(r, rest)
			return
		}
		d.freed(r.id, "")
	})
}

// take counts one more request unless a limit is reached. watched says that it counts as prefill until its first token.
func (r replica) take(watched bool) bool {
	if watched && !raise(&r.prefill, r.mostPrefill) {
		return false
	}
	if !raise(&r.load, r.limit) {
		if watched {
			r.prefill.Add(-1)
		}
		return false
	}
	r.served.Add(1)
	return true
}

// raise counts one more, unless the limit is reached; 0 is none.
func raise(n *atomic.Int64, limit int) bool {
	for {
		now := n.Load()
		if limit > 0 && now >= int64(limit) {
			return false
		}
		if n.CompareAndSwap(now, now+1) {
			return true
		}
	}
}

// full says that the replica takes no more now.
func (r replica) full(load int64) bool {
	if until := r.fullUntil.Load(); until != 0 && time.Now().UnixNano() < until {
		return true
	}
	return r.limit > 0 && load >= int64(r.limit) || r.mostPrefill > 0 && r.prefill.Load() >= int64(r.mostPrefill)
}

const defaultColdStart = 10 * time.Minute

// patience is how long a request may wait: the model's, cut to the client's own.
func (t *target) patience(own time.Duration) time.Duration {
	wait := t.policy.Limits.QueueTimeout
	if wait == 0 {
		wait = time.Minute
	}
	if t.cold() {
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
	d.rebuildLocked()
}

func (d *Dispatcher) rebuildLocked() {
	old := d.world.Load()
	w := d.worldLocked(old)
	for name, t := range w.targets {
		d.admission.SetLimits(name, t.policy.Limits)
	}
	if !maps.EqualFunc(w.admissionPools, old.admissionPools, slices.Equal) {
		d.admission.SetPools(w.admissionPools)
	}
	d.world.Store(w)
	for name := range old.targets {
		if w.targets[name] == nil {
			d.admission.Remove(name)
			delete(d.cursors, name)
			delete(d.lessons, name)
		}
	}
	for name := range w.targets {
		d.admission.Kick(name)
	}
	d.forgetLocked(w.users)
}

func (d *Dispatcher) worldLocked(old *world) *world {
	w := &world{snapshot: d.fleet.Snapshot(), targets: map[string]*target{}, users: map[string][]string{},
		pools: d.rules.Pools, tenants: d.rules.Tenants, taskPool: d.rules.FirstPool, taskLease: d.rules.TaskLease}
	if w.taskPool == "" {
		w.taskPool = everyModel
	}
	if w.taskLease == 0 {
		w.taskLease = defaultTaskLease
	}
	for name, m := range w.snapshot.Models {
		t := d.targetLocked(m, old.targets[name])
		w.targets[name] = t
		for _, r := range t.replicas {
			w.users[r.id] = append(w.users[r.id], name)
		}
	}
	for _, models := range w.users {
		slices.Sort(models)
	}
	if w.admissionPools = w.pools; w.taskPool == everyModel {
		w.admissionPools = map[string][]string{everyModel: slices.Sorted(maps.Keys(w.targets))}
	}
	return w
}

func (d *Dispatcher) targetLocked(m *engines.ModelSnapshot, old *target) *target {
	policy, ok := d.rules.Models[m.Name]
	if !ok {
		policy = d.rules.Default
	}
	if d.cursors[m.Name] == nil {
		d.cursors[m.Name], d.lessons[m.Name] = new(atomic.Uint64), new(lessons)
	}
	t := &target{Model: m.Model, policy: policy, cursor: d.cursors[m.Name], lessons: d.lessons[m.Name]}
	failed := 0
	var ids []string
	plain := headers.ModelCluster(m.Name)
	for _, r := range m.Replicas {
		t.hope = true
		t.starting = t.starting || r.State == engines.Starting || r.State == engines.Pending
		if r.State == engines.Failed {
			failed++
		}
		if r.State != engines.Ready {
			continue
		}
		if !d.routable[m.Name][r.ID] {
			t.starting = true // Envoy is about to know it
			continue
		}
		ids = append(ids, r.ID)
		cluster := plain
		if group := r.Group(); group != "" {
			cluster = headers.GroupCluster(m.Name, group)
		}
		t.mixed = t.mixed || len(t.replicas) > 0 && t.replicas[0].cluster != cluster
		t.replicas = append(t.replicas, replica{
			id: r.ID, address: r.Address.String(), cluster: cluster, limit: limit(policy, r), mostPrefill: policy.MaxPrefillPerReplica,
			counter: d.counterLocked(r.ID),
		})
	}
	t.elastic = m.Most > len(t.replicas)+failed // one that cannot start is not worth the wait for a start
	t.hope = t.hope || m.Desired > 0 || t.elastic
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
func (t *target) place(key uint64, ticket *Ticket) (admission.Slot, bool) {
	var space [32]int
	for {
		loads := t.loads(space[:0])
		i := t.pick(key, loads)
		if i < 0 {
			return admission.Slot{}, false
		}
		if r := t.replicas[i]; r.take(ticket.watch) {
			ticket.hold(t, i, t.list(key, i, loads))
			slot := admission.Slot{Replica: r.id, Limit: r.limit}
			if d := ticket.dispatcher; d.shared {
				slot.Full = func() { d.fullElsewhere(r) }
			}
			return slot, true
		}
		// Another model that shares the replica was quicker. Look again: its load has changed.
	}
}

// loads reads the counters; -1 stands for a replica without a free slot.
func (t *target) loads(into []int) []int {
	for _, r := range t.replicas {
		n := r.load.Load()
		if r.full(n) {
			n = -1
		}
		into = append(into, int(n))
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
// order of the ring, all in the cluster of the picked one. It spoils loads.
func (t *target) list(key uint64, picked int, loads []int) string {
	if len(t.replicas) == 1 {
		return t.replicas[picked].address
	}
	if t.mixed {
		for i := range loads {
			if t.replicas[i].cluster != t.replicas[picked].cluster {
				loads[i] = -1 // nothing to fall back to
			}
		}
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
