package dispatch

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
)

// world is everything a pick looks at. It is immutable.
type world struct {
	snapshot *engines.Snapshot
	targets  map[string]*target
	// pools holds the models of every pool of the file, admissionPools what admission knows: those,
	// or the one of all models where there are none.
	pools, admissionPools map[string][]string
	// tenants holds the limits of those that have any.
	tenants map[string]admission.TenantLimits
	// moderated is Rules.Moderated, special says what Rules.special says.
	moderated func(model, tenant string) bool
	special   bool
	// taskPool is where tasks go that name neither a pool nor a model, taskLease how long they
	// last.
	taskPool  string
	taskLease time.Duration
}

// everyModel is the pool of all models, where no pool is configured. It cannot be the name of one.
const everyModel = "*"

const defaultTaskLease = 15 * time.Minute

// rebuild makes the world anew and wakes whoever waits for what has changed in it.
func (d *Dispatcher) rebuild() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rebuildLocked()
}

// rebuildLocked makes the world anew. Models of which nothing has changed keep their target, so
// that the work is that of those that have changed, and a glance at the others.
func (d *Dispatcher) rebuildLocked() {
	old := d.world.Load()
	w := d.worldLocked(old)
	changed := d.changedLocked(old, w.snapshot)
	for name := range changed {
		m, ok := w.snapshot.Models[name]
		if !ok {
			delete(w.targets, name)
			d.rejoinLocked(name, old.targets[name], nil)
			continue
		}
		t := d.targetLocked(m, old.targets[name])
		w.targets[name] = t
		d.rejoinLocked(name, old.targets[name], t)
		if before := old.targets[name]; before == nil || before.policy.Limits != t.policy.Limits {
			d.admission.SetLimits(name, t.policy.Limits)
		}
	}
	d.poolsLocked(old, w)
	d.world.Store(w)
	d.placeInheritedLocked()
	for name := range changed {
		if w.targets[name] != nil {
			d.admission.RetryWaiters(name)
			continue
		}
		d.admission.Remove(name)
		delete(d.cursors, name)
		delete(d.lessons, name)
	}
	d.forgetLocked(w.snapshot)
}

// worldLocked is the world to come, with the targets of before.
func (d *Dispatcher) worldLocked(old *world) *world {
	w := &world{snapshot: d.fleet.Snapshot(), targets: maps.Clone(old.targets),
		pools: d.rules.Pools, tenants: d.rules.Tenants, taskPool: d.rules.FirstPool, taskLease: d.rules.TaskLease,
		moderated: d.rules.Moderated, special: d.special}
	if w.targets == nil {
		w.targets = map[string]*target{}
	}
	if w.taskPool == "" {
		w.taskPool = everyModel
	}
	if w.taskLease == 0 {
		w.taskLease = defaultTaskLease
	}
	return w
}

// changedLocked lists the models whose targets are to be made anew, and those that are gone.
func (d *Dispatcher) changedLocked(old *world, next *engines.Snapshot) map[string]struct{} {
	changed := d.dirty
	d.dirty = map[string]struct{}{}
	for name := range changed {
		if next.Models[name] == nil && old.targets[name] == nil {
			delete(changed, name) // Envoy still has a cluster of it
		}
	}
	for name, m := range next.Models {
		if t := old.targets[name]; t == nil || t.source != m || d.ruled && t.policy != d.policyLocked(name) {
			changed[name] = struct{}{}
		}
	}
	for name := range old.targets {
		if next.Models[name] == nil {
			changed[name] = struct{}{}
		}
	}
	d.ruled = false
	return changed
}

func (d *Dispatcher) policyLocked(model string) Policy {
	if policy, ok := d.rules.Models[model]; ok {
		return policy
	}
	return d.rules.Default
}

// poolsLocked tells admission of the pools, if they have changed.
func (d *Dispatcher) poolsLocked(old, w *world) {
	switch {
	case w.taskPool != everyModel:
		w.admissionPools = w.pools
	case old.taskPool == everyModel && old.admissionPools != nil && sameKeys(old.targets, w.targets):
		w.admissionPools = old.admissionPools
		return
	default:
		w.admissionPools = map[string][]string{everyModel: slices.Sorted(maps.Keys(w.targets))}
	}
	if !maps.EqualFunc(w.admissionPools, old.admissionPools, slices.Equal) {
		d.admission.SetPools(w.admissionPools)
	}
}

func sameKeys(a, b map[string]*target) bool {
	if len(a) != len(b) {
		return false
	}
	for name := range a {
		if b[name] == nil {
			return false
		}
	}
	return true
}

// rejoinLocked keeps account of which models every replica may be picked for, when one's target
// changes; nil is none.
func (d *Dispatcher) rejoinLocked(model string, before, after *target) {
	var old, now []replica
	if before != nil {
		old = before.replicas
	}
	if after != nil {
		now = after.replicas
	}
	if slices.EqualFunc(old, now, func(a, b replica) bool { return a.counter == b.counter }) {
		return
	}
	for _, r := range old {
		r.part(model)
	}
	for _, r := range now {
		r.join(model)
		delete(d.leaving, r.id)
	}
	for _, r := range old {
		if len(r.models()) == 0 {
			d.leaving[r.id] = model
		}
	}
}

// counterLocked finds the replica's counter or makes one.
func (d *Dispatcher) counterLocked(model, id string) *counter {
	c := d.counters[id]
	if c == nil {
		c = new(counter)
		d.counters[id] = c
		d.leaving[id] = model // until it joins
	}
	return c
}

// forgetLocked drops the counters of replicas that are gone and idle. One that is gone and not idle
// keeps its counter: it may come back under the same id while its old streams still run.
func (d *Dispatcher) forgetLocked(s *engines.Snapshot) {
	for id, model := range d.leaving {
		if d.counters[id].load.Load() == 0 && !named(s, model, id) {
			delete(d.counters, id)
			delete(d.leaving, id)
		}
	}
}

func named(s *engines.Snapshot, model, id string) bool {
	m, ok := s.Models[model]
	return ok && slices.ContainsFunc(m.Replicas, func(r engines.Replica) bool { return r.ID == id })
}

// cursorLocked makes what a model keeps over the worlds.
func (d *Dispatcher) cursorLocked(model string) (*atomic.Uint64, *lessons) {
	if d.cursors[model] == nil {
		d.cursors[model], d.lessons[model] = new(atomic.Uint64), new(lessons)
	}
	return d.cursors[model], d.lessons[model]
}
