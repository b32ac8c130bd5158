package admission

import (
	"slices"
	"time"
)

// maxWaiting is the number of requests that may wait in the queue: MaxQueue of the model, or the
// largest of the pool's models.
func (q *queue) maxWaiting() int {
	most := -1
	for g := range q.gates {
		most = max(most, g.usage.limits.maxQueue())
	}
	return most
}

// timeout is how long a request with this Request.Timeout may wait in the queue.
func (q *queue) timeout(asked time.Duration) (longest time.Duration) {
	for g := range q.gates {
		longest = max(longest, g.usage.limits.timeout(asked))
	}
	return longest
}

// makeRoom reports whether one more request may wait, and evicts others if that is needed. The
// request may be in the queue already as a newcomer, which neither the length nor the sum of bytes
// counts. If there is not enough to evict, nobody is evicted.
func (c *Controller) makeRoom(q *queue, t *tenant, a *arrival, now time.Time) bool {
	slots, bytes := q.length-len(q.newcomers)+1-q.maxWaiting(), c.waitingBytes+int64(a.Bytes)-c.maxQueueBytes
	if slots <= 0 && bytes <= 0 {
		return true
	}
	if q.maxWaiting() <= 0 || int64(a.Bytes) > c.maxQueueBytes {
		return false
	}
	candidates, enough := q.evictionCandidates(t, a, slots, bytes)
	if !enough {
		return false
	}
	for _, w := range candidates {
		c.refuse(w, c.refusal(q, w.tenant, Evicted, now))
	}
	return true
}

// evictionCandidates returns the waiters to evict for a so that slots and bytes become free, and
// whether they suffice. Lower bands come first, each from the youngest waiter. Then comes the
// tenant with the most waiters for its weight in a's own band, from its youngest. That tenant must
// keep more than a's tenant will have; otherwise two tenants would evict each other in turn.
func (q *queue) evictionCandidates(t *tenant, a *arrival, slots int, bytes int64) ([]*waiter, bool) {
	var candidates []*waiter
	useful := func(w *waiter) bool { return !w.Preempted && !w.newcomer && (slots > 0 || bytes > 0 && w.Bytes > 0) }
	add := func(w *waiter) bool {
		candidates = append(candidates, w)
		slots--
		bytes -= int64(w.Bytes)
		return slots <= 0 && bytes <= 0
	}
	for b := range a.band {
		for w := q.bands[b].arrivals.last; w != nil; w = w.links[arrivalOrder].prev {
			if useful(w) && add(w) {
				return candidates, true
			}
		}
	}
	b := &q.bands[a.band]
	longest := b.longestFlow()
	if longest == nil || longest.tenant == t {
		return nil, false
	}
	mine := int64(1)
	if a.counted {
		mine = 0 // it is in its flow already
	}
	if f := b.flows[t.name]; f != nil {
		mine += int64(f.count)
	}
	left := int64(longest.count)
	for w := longest.waiters.last; w != nil; w = w.links[flowOrder].prev {
		if !useful(w) {
			continue
		}
		if mine*longest.tenant.limits.weight() >= left*t.limits.weight() {
			return nil, false
		}
		if left--; add(w) {
			return candidates, true
		}
	}
	return nil, false
}

// longestFlow is the flow with the most waiters for its weight. Of equal flows it is the one with
// the youngest waiter.
func (b *band) longestFlow() *flow {
	var longest *flow
	for _, f := range b.flows {
		if f.waiters.last == nil {
			continue
		}
		if longest == nil {
			longest = f
			continue
		}
		mine, most := int64(f.count)*longest.tenant.limits.weight(), int64(longest.count)*f.tenant.limits.weight()
		if mine > most || mine == most && f.waiters.last.arrived.After(longest.waiters.last.arrived) {
			longest = f
		}
	}
	return longest
}

func youngestFirst(waiters []*waiter) {
	slices.SortStableFunc(waiters, func(a, b *waiter) int { return b.arrived.Compare(a.arrived) })
}
