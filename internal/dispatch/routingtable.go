package dispatch

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/predict"
)

// routingTable is everything that a pick reads. It is immutable except for the counters of its
// replicas.
type routingTable struct {
	snapshot *engines.Snapshot
	routes   map[string]*modelRoute
	// pools holds the models of every configured pool. admissionPools holds the pools of admission:
	// the same, or everyModel if there are none.
	pools, admissionPools map[string][]string
	// tenants holds the limits of the tenants that have any.
	tenants map[string]admission.TenantLimits
	// moderated is Rules.Moderated. special says what Rules.special says, or that a replica ends
	// responses by closing their connections, or refuses as a failure.
	moderated func(model, tenant string) bool
	special   bool
	// drained has the models that an operator has drained.
	drained map[string]bool
	// defaultModel is Rules.DefaultModel.
	defaultModel string
	// taskPool is the pool of tasks that name neither a pool nor a model. taskLease is how long a
	// task lasts without a renewal, taskLifetime how long at most.
	taskPool                string
	taskLease, taskLifetime time.Duration
}

// everyModel is the pool of all models if no pool is configured. No configured pool can have this
// name.
const everyModel = "*"

const defaultTaskLease = 15 * time.Minute

// rebuild makes a new routing table and makes the waiters of changed models retry.
func (d *Dispatcher) rebuild() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rebuildLocked()
}

// current returns a routing table of the present fleet. Run follows each change of the fleet too,
// but some time later: until then the fleet may show a model that the last table does not have.
func (d *Dispatcher) current() *routingTable {
	if w := d.table.Load(); w.snapshot == d.config.Fleet.Snapshot() {
		return w
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.table.Load().snapshot != d.config.Fleet.Snapshot() {
		d.rebuildLocked()
	}
	return d.table.Load()
}

// resolve finds the model or the pool that the request names, and the routing table that has it. It
// refuses a request only by a table of the present fleet.
func (d *Dispatcher) resolve(r *Request) (*routingTable, choice, *openai.Error) {
	w := d.table.Load()
	c, fault := w.resolve(r)
	if fault == nil {
		return w, c, nil
	}
	if now := d.current(); now != w {
		w = now
		c, fault = w.resolve(r)
	}
	return w, c, fault
}

// rebuildLocked makes a new routing table. An unchanged model keeps its model route. So the cost is
// the work for the changed models and one comparison for each other model.
func (d *Dispatcher) rebuildLocked() {
	old := d.table.Load()
	w := d.nextTableLocked(old)
	d.forgetLeftLocked(w.snapshot)
	changed := d.changedLocked(old, w.snapshot)
	for name := range changed {
		m, ok := w.snapshot.Models[name]
		if !ok {
			delete(w.routes, name)
			d.updateUsersLocked(name, old.routes[name], nil)
			continue
		}
		t := d.routeLocked(m, old.routes[name])
		w.routes[name] = t
		d.watchOutageLocked(t, old.routes[name])
		d.updateUsersLocked(name, old.routes[name], t)
		if before := old.routes[name]; before == nil || before.policy.Limits != t.policy.Limits {
			d.config.Admission.SetLimits(name, t.policy.Limits)
		}
	}
	for _, t := range w.routes {
		w.special = w.special || t.closeDelimited || t.refusesAsFailure || t.policy.Way.translated() // also of a model that leaves
	}
	d.poolsLocked(old, w)
	d.table.Store(w)
	d.locateRecoveredLocked()
	d.placeResponsesLocked()
	for name := range changed {
		if t := w.routes[name]; t != nil {
			d.config.Admission.RetryWaiters(name)
			if t.hopeless() {
				d.config.Admission.RefuseWaiters(name, errHopeless)
			}
			continue
		}
		d.config.Admission.Remove(name)
		delete(d.cursors, name)
		d.estimators[name].close()
		delete(d.estimators, name)
	}
	d.refuseFailingPoolsLocked(w)
	d.dropCountersLocked(w.snapshot)
}

// refuseFailingPoolsLocked refuses the requests that wait for a pool none of whose models can be
// started or reached. Requests of tenants that may use only some of the models wait as long as
// others may start. A start that new requests do not wait for (NoWait) is one, too.
func (d *Dispatcher) refuseFailingPoolsLocked(w *routingTable) {
	for pool, models := range w.pools {
		failing, waits := false, false
		for _, name := range models {
			t := w.routes[name]
			if t == nil || w.drained[name] || !t.serves() {
				continue
			}
			failing = failing || t.hopeless()
			waits = waits || len(t.replicas) > 0 || !t.hopeless()
		}
		if failing && !waits {
			d.config.Admission.RefusePoolWaiters(pool, errHopeless)
		}
	}
}

func (d *Dispatcher) nextTableLocked(old *routingTable) *routingTable {
	w := &routingTable{snapshot: d.config.Fleet.Snapshot(), routes: maps.Clone(old.routes),
		pools: d.rules.Pools, tenants: d.rules.Tenants, taskPool: d.rules.FirstPool, taskLease: d.rules.TaskLease, taskLifetime: d.rules.TaskLifetime,
		moderated: d.rules.Moderated, special: d.special, drained: d.drains.models, defaultModel: d.rules.DefaultModel}
	if w.routes == nil {
		w.routes = map[string]*modelRoute{}
	}
	w.taskPool = cmp.Or(w.taskPool, everyModel)
	w.taskLease = cmp.Or(w.taskLease, defaultTaskLease)
	return w
}

// changedLocked returns the models whose routes have to be made again, and the removed models.
func (d *Dispatcher) changedLocked(old *routingTable, next *engines.Snapshot) map[string]struct{} {
	changed := d.dirty
	d.dirty = map[string]struct{}{}
	for name := range changed {
		if next.Models[name] == nil && old.routes[name] == nil {
			delete(changed, name) // Envoy still has a cluster of a removed model
		}
	}
	for name, m := range next.Models {
		if t := old.routes[name]; t == nil || t.source != m || d.rulesChanged && t.policy != d.policyLocked(name) {
			changed[name] = struct{}{}
		}
	}
	for name := range old.routes {
		if next.Models[name] == nil {
			changed[name] = struct{}{}
		}
	}
	d.rulesChanged = false
	return changed
}

func (d *Dispatcher) policyLocked(model string) Policy {
	if policy, ok := d.rules.Models[model]; ok {
		return policy
	}
	if policy, ok := d.leaving[model]; ok {
		return policy
	}
	return d.rules.Default
}

// setLeavingLocked keeps the policies of the models that the next rules do not name. The launcher
// of such a model removes it from the fleet a moment later. Without its limits, all requests that
// wait for it would go to its replicas in that moment.
func (d *Dispatcher) setLeavingLocked(next Rules) {
	for name, policy := range d.rules.Models {
		if d.table.Load().routes[name] != nil {
			d.leaving[name] = policy
		}
	}
	maps.DeleteFunc(d.leaving, func(name string, _ Policy) bool {
		_, stays := next.Models[name]
		return stays
	})
}

// forgetLeftLocked forgets the policies of models that have left the fleet, or that an upstream
// offers now.
func (d *Dispatcher) forgetLeftLocked(now *engines.Snapshot) {
	maps.DeleteFunc(d.leaving, func(name string, _ Policy) bool {
		m := now.Models[name]
		return m == nil || m.Discovered
	})
}

// poolsLocked sets the pools of admission if they have changed.
func (d *Dispatcher) poolsLocked(old, w *routingTable) {
	switch {
	case w.taskPool != everyModel:
		w.admissionPools = w.pools
	case old.taskPool == everyModel && old.admissionPools != nil && sameKeys(old.routes, w.routes):
		w.admissionPools = old.admissionPools
		return
	default:
		w.admissionPools = map[string][]string{everyModel: slices.Sorted(maps.Keys(w.routes))}
	}
	if !maps.EqualFunc(w.admissionPools, old.admissionPools, slices.Equal) {
		d.config.Admission.SetPools(w.admissionPools)
	}
}

func sameKeys(a, b map[string]*modelRoute) bool {
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

// updateUsersLocked updates counter.usedBy when the route of one model changes. nil stands for no
// route.
func (d *Dispatcher) updateUsersLocked(model string, before, after *modelRoute) {
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
		r.removeModel(model)
	}
	for _, r := range now {
		r.addModel(model)
		delete(d.unpickable, r.id)
	}
	for _, r := range old {
		if len(r.models()) == 0 {
			d.unpickable[r.id] = model
		}
	}
}

// counterLocked returns the counter of the replica, which it makes if necessary.
func (d *Dispatcher) counterLocked(model, id string) *counter {
	c := d.counters[id]
	if c == nil {
		rates := d.rates
		if own := d.estimators[model]; own != nil {
			rates = own.rates
		}
		c = &counter{queue: predict.NewReplica(rates), byAddress: map[string]*atomic.Int64{}}
		d.takeEarlyNewsLocked(id, c)
		d.counters[id] = c
		d.unpickable[id] = model // until addModel
	}
	return c
}

// dropCountersLocked deletes the counters of removed replicas without requests. A removed replica
// with requests keeps its counter, because it may come back under the same id while its old streams
// still run.
func (d *Dispatcher) dropCountersLocked(s *engines.Snapshot) {
	for id, model := range d.unpickable {
		if d.counters[id].load.Load() == 0 && !named(s, model, id) {
			delete(d.counters, id)
			delete(d.unpickable, id)
		}
	}
	d.dropEarlyNewsLocked(s)
}

func named(s *engines.Snapshot, model, id string) bool {
	return s.Models[model].Replica(id) != nil
}

// cursorLocked returns the cursor and the estimator of a model, which outlive routing tables.
func (d *Dispatcher) cursorLocked(model string) (*atomic.Uint64, *estimator) {
	if d.cursors[model] == nil {
		d.cursors[model], d.estimators[model] = new(atomic.Uint64), newEstimator(d.indexes)
	}
	return d.cursors[model], d.estimators[model]
}
