package dispatch

import (
	"net/netip"
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
	// Ready is the number of replicas that may be picked. Failing means that all keep failing to
	// start.
	Ready   int
	Failing bool
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
	v := View{Stats: d.config.Admission.Stats(model), Policy: t.policy, Loads: map[string]int{}, Admitted: t.estimator.admitted.Load(),
		Refused: t.estimator.refused.Load()}
	v.PerReplica, v.Ready, v.Failing = t.policy.MaxPerReplica, len(t.replicas), t.failing != nil
	v.Predicted = t.estimator.recent.Flow(time.Now())
	for i := range t.source.Replicas {
		v.PerReplica, _ = limit(t.policy, &t.source.Replicas[i], nil)
	}
	for _, r := range t.replicas {
		v.Loads[r.id] = int(r.load.Load())
		v.PerReplica = r.limit
	}
	return v, true
}

// Load returns the number of requests on a replica; 0 for an unknown one. A launcher stops a
// draining replica without requests. So no request that comes later goes there, also while Run has
// not followed the fleet yet.
func (d *Dispatcher) Load(replica string) int { return d.LoadAt(replica, netip.AddrPort{}) }

// LoadAt is Load for the one replica of this id that is at the address. Two nodes may have a
// replica of one id for a while, after one of them was lost and has come back. Requests whose
// address is not known count for every address. The zero address stands for all addresses.
func (d *Dispatcher) LoadAt(replica string, address netip.AddrPort) int {
	d.current()
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counters[replica]
	switch {
	case c == nil:
		return 0
	case !address.IsValid():
		return int(c.load.Load())
	}
	total := int64(0)
	for _, at := range []string{"", address.String()} {
		if n := c.byAddress[at]; n != nil {
			total += n.Load()
		}
	}
	return int(total)
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

// Replica returns the traffic of one replica of a model. It is zero for a replica that could never
// be picked.
func (d *Dispatcher) Replica(model, id string) ReplicaView {
	t := d.table.Load().routes[model]
	if r := t.replica(id); r != nil {
		v := r.view()
		v.Limit, v.LimitFrom, v.CloseDelimited = r.limit, r.limitFrom, r.closeDelimited
		return v
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counters[id]
	if c == nil {
		return ReplicaView{}
	}
	v := c.view()
	if t == nil {
		return v
	}
	if r := t.source.Replica(id); r != nil { // such as one that is drained
		v.Limit, v.LimitFrom = limit(t.policy, r, c.news.Load())
		v.CloseDelimited = d.isCloseDelimitedLocked(r)
	}
	return v
}

func (c *counter) view() ReplicaView {
	return ReplicaView{Load: int(c.load.Load()), Prefill: int(c.prefill.Load()), Queued: c.queue.Queued(time.Now()), Served: c.served.Load()}
}
