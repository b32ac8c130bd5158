package dispatch

import (
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/ringhash"
)

// fallbacks bounds how many replicas Envoy is told beside the picked one, should that one refuse.
const fallbacks = 3

// place picks a replica, takes a slot on it and writes both into the ticket. False: none has a free
// slot.
func (t *target) place(key uint64, ticket *Ticket) (admission.Slot, bool) {
	var space [32]int
	home := t.homeOf(ticket)
	for {
		loads := t.loads(space[:0])
		i := t.pick(key, home, loads, t.clock())
		if i < 0 {
			return admission.Slot{}, false
		}
		if r := t.replicas[i]; r.take(ticket.watch) {
			ticket.hold(t, i, t.list(key, i, loads))
			slot := admission.Slot{Replica: r.id, Limit: r.limit}
			if d := ticket.dispatcher; d.shared {
				slot.OnFull = func() { d.fullElsewhere(r) }
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

// pick chooses among the replicas whose load is not negative; -1: there is none. home is the one
// that knows the conversation, or -1. now is zero while none warms up. It adds to the loads of
// those that do.
func (t *target) pick(key uint64, home int, loads []int, now time.Time) int {
	if t.policy.Strategy == RoundRobin {
		return t.pickRoundRobin(loads, now)
	}
	if !now.IsZero() {
		t.handicap(loads, now)
	}
	switch t.policy.Strategy {
	case LeastConnections:
		return t.pickLeast(loads)
	case CHWBL:
		return t.ring.Pick(key, loads, ringhash.Bound{Factor: t.policy.LoadFactor})
	default:
		return t.pickPrefix(key, home, loads)
	}
}

// pickPrefix takes the home if a request whose key belongs there would go there: so the same bound
// holds.
func (t *target) pickPrefix(key uint64, home int, loads []int) int {
	bound := ringhash.Bound{Factor: t.policy.LoadFactor, Floor: t.policy.LoadFloor}
	if home >= 0 && t.ring.Pick(t.replicas[home].node, loads, bound) == home {
		return home
	}
	return t.ring.Pick(key, loads, bound)
}

// pickRoundRobin takes the next that is free. One that warms up is passed over at some of its
// turns, and taken then if no other is free.
func (t *target) pickRoundRobin(loads []int, now time.Time) int {
	n, spare := uint64(len(loads)), -1
	warming := !now.IsZero() && t.someWarm(now)
	for range loads {
		i := int((t.cursor.Add(1) - 1) % n)
		switch {
		case loads[i] < 0:
		case warming && passes(t.warmth(i, now), t.replicas[i].turns.Add):
			spare = i
		default:
			return i
		}
	}
	return spare
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

// list is the header that Envoy's override_host policy follows: the picked replica, then others
// with a free slot in the order of the ring, all in the cluster of the picked one. It spoils loads.
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
