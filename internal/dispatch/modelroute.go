package dispatch

import (
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/predict"
	"github.com/sluice-gateway/sluice/ringhash"
)

// modelRoute is one model with the replicas that may be picked. Only warming changes after it is
// made.
type modelRoute struct {
	engines.Model
	// source is the state of the model in the fleet from which the route was made.
	source *engines.ModelSnapshot
	policy Policy
	// strategy is the policy's row in strategies.
	strategy *strategy
	ring     *ringhash.Ring
	replicas []replica // in the order of the ring's ids
	// joined says that one of the replicas is a server of upstreams.
	joined bool
	// closeDelimited says that one of the replicas ends responses by closing their connections.
	closeDelimited bool
	// refusesAsFailure says that mayRefuseAsFailure holds for a replica, or that the policy says
	// so.
	refusesAsFailure bool
	// mixed says that the replicas are in several clusters of Envoy.
	mixed     bool
	cursor    *atomic.Uint64
	estimator *estimator
	// mayServe says that a replica may become pickable: one starts, or one is expected back.
	mayServe bool
	// starting says that a replica starts, or that one which has failed is started again.
	starting bool
	// failing is a replica that keeps failing to start. It is nil unless the model has no pickable
	// replica and none that may still start well.
	failing *engines.Replica
	// downSince is when the last server of upstreams failed. It is zero unless all have failed.
	downSince time.Time
	// elastic says that the launcher starts one more replica when requests wait.
	elastic bool
	// warming says that some replica may be in its slow start. All are warm at warmAt. The first
	// pick after warmAt clears it.
	warming atomic.Bool
	warmAt  time.Time
}

// replica returns the replica that may be picked and has this id; nil: there is none, or t is nil.
func (t *modelRoute) replica(id string) *replica {
	if t == nil {
		return nil
	}
	for i := range t.replicas {
		if t.replicas[i].id == id {
			return &t.replicas[i]
		}
	}
	return nil
}

// indexOf returns the index of the replica with this counter; -1: the replica may not be picked.
func (t *modelRoute) indexOf(c *counter) int {
	for i := range t.replicas {
		if t.replicas[i].counter == c {
			return i
		}
	}
	return -1
}

// indexAt returns the index of the replica at an address in a cluster; -1: there is none.
func (t *modelRoute) indexAt(address, cluster string) int {
	for i := range t.replicas {
		if r := &t.replicas[i]; r.address == address && r.cluster == cluster {
			return i
		}
	}
	return -1
}

func (t *modelRoute) isAdapter(name string) bool { return slices.Contains(t.Adapters, name) }

// cold reports whether a request has to wait until a replica has been started.
func (t *modelRoute) cold() bool { return len(t.replicas) == 0 && (t.starting || t.elastic) }

const defaultColdStart = 10 * time.Minute

// NoWait is the Policy.ColdStart of a model whose requests do not wait for a first replica.
const NoWait time.Duration = -1

// patience returns how long a request may wait: the model's limit, at most the client's own
// timeout. own is 0 if the client has none.
func (t *modelRoute) patience(own time.Duration) time.Duration {
	wait := cmp.Or(t.policy.Limits.QueueTimeout, time.Minute)
	if t.cold() {
		wait = cmp.Or(t.policy.ColdStart, defaultColdStart)
	}
	if own > 0 {
		wait = min(wait, own)
	}
	return wait
}

// routeLocked makes the route of a model. old is its previous route, or nil; an unchanged hash ring
// is reused from it.
func (d *Dispatcher) routeLocked(m *engines.ModelSnapshot, old *modelRoute) *modelRoute {
	now := time.Now()
	t := &modelRoute{Model: m.Model, source: m, policy: d.policyLocked(m.Name)}
	if m.Discovered && !t.policy.KeepStrategy && !d.recognisedLocked(m) {
		t.policy.Strategy = unknownEngine(t.policy.Strategy)
	}
	t.strategy = strategyOf(t.policy.Strategy)
	t.cursor, t.estimator = d.cursorLocked(m.Name)
	if t.estimator.toldRate == 0 {
		t.estimator.rates.SetGuess(predict.PrefillRate(t.policy.PrefillRate))
	}
	t.refusesAsFailure = t.policy.Way.RefusesAsFailure
	failed := 0
	var known []*engines.Replica
	for i := range m.Replicas {
		r := &m.Replicas[i]
		t.mayServe = true
		t.joined = t.joined || r.Launcher == engines.Upstream
		t.starting = t.starting || r.State == engines.Starting || r.State == engines.Pending ||
			r.State == engines.Failed && !r.NextStart.IsZero()
		switch {
		case r.State == engines.Failed:
			failed++
		case r.State != engines.Ready:
		case !d.routableLocked(r):
			t.starting = true // Envoy has not acknowledged the replica yet
		default:
			known = append(known, r)
		}
	}
	healthy := d.healthyLocked(d.undrainedLocked(known))
	ids := make([]string, len(healthy))
	for i, r := range healthy {
		ids[i] = r.ID
		t.replicas = append(t.replicas, d.replicaLocked(t.policy, t.estimator, m, r, now))
		t.closeDelimited = t.closeDelimited || t.replicas[i].closeDelimited
		t.refusesAsFailure = t.refusesAsFailure || mayRefuseAsFailure(r, t.replicas[i].news.Load())
		t.mixed = t.mixed || t.replicas[i].cluster != t.replicas[0].cluster
	}
	t.elastic = m.MaxReplicas > len(known)+failed // a failed replica occupies its slot of MaxReplicas
	t.mayServe = t.mayServe || m.Desired > 0 || t.elastic
	t.failing, t.downSince = failingReplica(m), downSince(m)
	t.estimator.learnLoadTime(m)
	t.estimator.dropSlotsLocked(m)
	t.startWarming(now)
	if old != nil && old.policy.VirtualNodes == t.policy.VirtualNodes && slices.Equal(old.ring.IDs(), ids) {
		t.ring = old.ring // a new ring costs 100 MD5 sums per replica
	} else {
		t.ring = ringhash.New(ids, t.policy.VirtualNodes)
	}
	return t
}

// mayRefuseAsFailure reports whether engines.RefusesAsFailure holds for the engine of a replica. It
// may hold for a server of upstreams that has not been asked yet.
func mayRefuseAsFailure(r *engines.Replica, news *EngineNews) bool {
	if news == nil {
		return r.Launcher == engines.Upstream
	}
	return engines.RefusesAsFailure(news.Engine)
}

// routableLocked reports whether Envoy knows the replica in its cluster and at its address.
func (d *Dispatcher) routableLocked(r *engines.Replica) bool {
	at, ok := d.routable[clusterOf(r)][r.ID]
	return ok && at == plain(r.Address)
}

// replicaLocked returns the replica as model routes hold it.
func (d *Dispatcher) replicaLocked(p Policy, own *estimator, m *engines.ModelSnapshot, r *engines.Replica, now time.Time) replica {
	c := d.counterLocked(r.Model, r.ID)
	since := c.setPickable(r.Address, now)
	c.sharedID = d.sharedID(r)
	c.setRun(runOf(r))
	most, from := limit(p, r, c.news.Load())
	address := r.Address.String()
	return replica{id: r.ID, address: address, cluster: clusterOf(r),
		servedModel: m.NameAt(r), limit: most, limitFrom: from, maxPrefill: p.MaxPrefillPerReplica,
		closeDelimited: d.isCloseDelimitedLocked(r), sharedID: c.sharedID, since: since, slot: own.slotLocked(r, c, since), counter: c, here: c.at(address)}
}

// clusterOf returns the Envoy cluster of the replica.
func clusterOf(r *engines.Replica) string { return headers.GroupCluster(r.Model, r.Group()) }

// plain returns a with an IPv4-mapped IPv6 address as an IPv4 address.
func plain(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// LimitFrom says where the number of requests comes from that a replica takes at once.
type LimitFrom string

// The sources of a limit, in the order in which they count.
const (
	// LimitSet is admission.max_per_replica of the model.
	LimitSet LimitFrom = "max_per_replica"
	// LimitSlots is the number of slots that the replica was started with, or that the file gives
	// for the server.
	LimitSlots LimitFrom = "slots"
	// LimitEngine is what the engine says.
	LimitEngine LimitFrom = "engine"
	// LimitUsual is what an engine of the kind usually takes.
	LimitUsual LimitFrom = "catalogue"
	// LimitUnknown is the one request of a server that nobody knows.
	LimitUnknown LimitFrom = "unknown"
	// LimitNone is no limit.
	LimitNone LimitFrom = ""
)

// limit returns how many requests one replica takes at once, and where the number comes from. 0
// means no limit. The news may be nil.
func limit(p Policy, r *engines.Replica, n *EngineNews) (int, LimitFrom) {
	switch {
	case p.MaxPerReplica > 0:
		return p.MaxPerReplica, LimitSet
	case r.Slots > 0:
		return r.Slots, LimitSlots
	case n != nil && n.Slots > 0:
		return n.Slots, LimitEngine
	case r.Launcher != engines.Upstream:
		return 0, LimitNone
	case n != nil && n.UsualSlots > 0:
		return n.UsualSlots, LimitUsual
	}
	return 1, LimitUnknown
}
