package dispatch

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/ringhash"
)

// modelRoute is one model with the replicas that may be picked. Nothing of it changes but warming.
type modelRoute struct {
	engines.Model
	// source is what it was made from, together with policy and what Envoy knows.
	source *engines.ModelSnapshot
	policy Policy
	// strategy is the policy's row in strategies.
	strategy *strategy
	ring     *ringhash.Ring
	replicas []replica // in the order of the ring's ids
	// mixed: they are in several clusters of Envoy.
	mixed     bool
	cursor    *atomic.Uint64
	estimator *estimator
	// hope: no replica may be picked now, but one may come: it starts, or was lost and is expected
	// back.
	hope bool
	// starting: one is on its way for the first time.
	starting bool
	// elastic: one more comes when requests wait for it.
	elastic bool
	// warming: some replica may be in its slow start, which ends for all at warmAt. The first pick
	// after that clears it.
	warming atomic.Bool
	warmAt  time.Time
}

// cold says that the request has to wait until a replica has been started.
func (t *modelRoute) cold() bool { return len(t.replicas) == 0 && (t.starting || t.elastic) }

const defaultColdStart = 10 * time.Minute

// patience is how long a request may wait: the model's, cut to the client's own.
func (t *modelRoute) patience(own time.Duration) time.Duration {
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

// routeLocked makes the route of a model. old is the one before, whose ring is kept if it is the
// same; nil: there was none.
func (d *Dispatcher) routeLocked(m *engines.ModelSnapshot, old *modelRoute) *modelRoute {
	now := time.Now()
	t := &modelRoute{Model: m.Model, source: m, policy: d.policyLocked(m.Name)}
	t.strategy = strategyOf(t.policy.Strategy)
	t.cursor, t.estimator = d.cursorLocked(m.Name)
	failed := 0
	var known []*engines.Replica
	for i := range m.Replicas {
		r := &m.Replicas[i]
		t.hope = true
		t.starting = t.starting || r.State == engines.Starting || r.State == engines.Pending
		switch {
		case r.State == engines.Failed:
			failed++
		case r.State != engines.Ready:
		case !d.routableLocked(r):
			t.starting = true // Envoy is about to know it
		default:
			known = append(known, r)
		}
	}
	well := d.wellLocked(known)
	ids := make([]string, len(well))
	for i, r := range well {
		ids[i] = r.ID
		t.replicas = append(t.replicas, d.replicaLocked(t.policy, r, now))
		t.mixed = t.mixed || t.replicas[i].cluster != t.replicas[0].cluster
	}
	t.elastic = m.MaxReplicas > len(known)+failed // one that cannot start is not worth the wait for a start
	t.hope = t.hope || m.Desired > 0 || t.elastic
	t.beginWarming(now)
	if old != nil && old.policy.VirtualNodes == t.policy.VirtualNodes && slices.Equal(old.ring.IDs(), ids) {
		t.ring = old.ring // 100 MD5 sums a replica are worth keeping
	} else {
		t.ring = ringhash.New(ids, t.policy.VirtualNodes)
	}
	return t
}

// routableLocked says whether Envoy knows the replica in its cluster and at its address.
func (d *Dispatcher) routableLocked(r *engines.Replica) bool {
	at, ok := d.routable[clusterOf(r)][r.ID]
	return ok && at == plain(r.Address)
}

func (d *Dispatcher) replicaLocked(p Policy, r *engines.Replica, now time.Time) replica {
	c := d.counterLocked(r.Model, r.ID)
	return replica{id: r.ID, address: r.Address.String(), cluster: clusterOf(r), limit: limit(p, r), mostPrefill: p.MaxPrefillPerReplica,
		node: firstNode(r.ID), since: c.begin(r.Address, now), counter: c}
}

// clusterOf is the Envoy cluster that the replica is in.
func clusterOf(r *engines.Replica) string { return headers.GroupCluster(r.Model, r.Group()) }

// plain is an IPv4 address as such, even where it came as IPv6.
func plain(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// limit is how many requests one replica takes at once.
func limit(p Policy, r *engines.Replica) int {
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
