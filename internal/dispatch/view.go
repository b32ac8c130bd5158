package dispatch

import (
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/predict"
)

// View is the traffic of one model, for operators.
type View struct {
	admission.Stats
	Policy Policy
	// Loads are the numbers of requests on the replicas, by id.
	Loads map[string]int
	// Admitted counts the requests that were ever sent to a replica.
	Admitted uint64
	// Refused counts the requests that were refused at once because no replica was ready.
	Refused uint64
	// PerReplica is how many requests each replica serves at once, also before it is ready; 0 means
	// no limit or not known.
	PerReplica int
	// Ready is the number of replicas that may be picked.
	Ready int
	// Predicted is what was predicted for the first tokens of recent requests. It is zero with a
	// strategy that predicts nothing.
	Predicted predict.Flow
}

// View returns the traffic of a model; false means that there is no such model.
func (d *Dispatcher) View(model string) (View, bool) {
	w := d.table.Load()
	t, ok := w.routes[model]
	if !ok {
		return View{}, false
	}
	v := View{Stats: d.admission.Stats(model), Policy: t.policy, Loads: map[string]int{}, Admitted: t.estimator.asked.Load(),
		Refused: t.estimator.refused.Load()}
	v.PerReplica, v.Ready, v.Predicted = t.policy.MaxPerReplica, len(t.replicas), t.estimator.recent.Flow(time.Now())
	for i := range t.source.Replicas {
		v.PerReplica, _ = limit(t.policy, &t.source.Replicas[i], nil)
	}
	for _, r := range t.replicas {
		v.Loads[r.id] = int(r.load.Load())
		v.PerReplica = r.limit
	}
	return v, true
}

// Load returns the number of requests on a replica; 0 for an unknown one.
func (d *Dispatcher) Load(replica string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.counters[replica]; c != nil {
		return int(c.load.Load())
	}
	return 0
}

// ReplicaView is the traffic of one replica, for operators.
type ReplicaView struct {
	// Load is the number of requests on the replica. Limit is its limit; 0 means none.
	Load, Limit int
	// LimitFrom is where Limit comes from.
	LimitFrom LimitFrom
	// Prefill counts the requests in Load that are known to have no token yet. Only requests under
	// a limit on prefill are known.
	Prefill int
	// Queued counts the requests whose prompt the replica has yet to compute, as predicted from
	// the first tokens so far.
	Queued int
	// Served counts the requests that the replica was given.
	Served uint64
	// CloseDelimited says that the replica ends responses by closing their connections, so that all
	// requests of its model are managed.
	CloseDelimited bool
}

// Replica returns the traffic of one replica of a model. It is zero for a replica that may not be
// picked and has no requests.
func (d *Dispatcher) Replica(model, id string) ReplicaView {
	if t, ok := d.table.Load().routes[model]; ok {
		for _, r := range t.replicas {
			if r.id == id {
				return ReplicaView{Load: int(r.load.Load()), Limit: r.limit, LimitFrom: r.limitFrom, Prefill: int(r.prefill.Load()),
					Queued: r.queue.Queued(time.Now()), Served: r.served.Load(),
					CloseDelimited: r.closeDelimited}
			}
		}
	}
	return ReplicaView{Load: d.Load(id)}
}
