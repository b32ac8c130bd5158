package dispatch

import (
	"strings"

	"github.com/sluice-gateway/sluice/admission"
)

// fallbacks bounds how many replicas Envoy is told beside the picked one, should that one refuse.
const fallbacks = 3

// reserve picks a replica, acquires a slot on it and writes both into the ticket. False: no replica
// has a free slot.
func (t *modelRoute) reserve(key uint64, ticket *Ticket) (admission.Slot, bool) {
	var space [32]int
	affine := t.affineReplica(ticket)
	for {
		loads := t.loads(space[:0])
		i := t.pick(pickInput{key: key, affine: affine, loads: loads, now: t.clock()})
		if i < 0 {
			return admission.Slot{}, false
		}
		if r := t.replicas[i]; r.acquire(ticket.watch) {
			ticket.setSlot(t, i, t.list(key, i, loads))
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
func (t *modelRoute) loads(into []int) []int {
	for _, r := range t.replicas {
		n := r.load.Load()
		if r.full(n) {
			n = -1
		}
		into = append(into, int(n))
	}
	return into
}

// list is the header that Envoy's override_host policy follows: the picked replica, then others
// with a free slot in the order of the ring, all in the cluster of the picked one. It spoils loads.
func (t *modelRoute) list(key uint64, picked int, loads []int) string {
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
