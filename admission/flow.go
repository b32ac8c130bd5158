package admission

import (
	"math/bits"
	"slices"
)

// bands is the number of priorities. A higher index is a higher priority.
const bands = 3

func (p Priority) band() int { return min(max(int(p)-int(Batch), 0), bands-1) }

// waiterList is a doubly linked list of waiters. A waiter can be in two lists: one in flowOrder,
// one in arrivalOrder.
type waiterList struct {
	first, last *waiter
	order       int
}

const (
	flowOrder = iota
	arrivalOrder
)

type link struct{ next, prev *waiter }

// insert puts w before another waiter, or at the end for nil.
func (l *waiterList) insert(w, before *waiter) {
	prev := l.last
	if before != nil {
		prev = before.links[l.order].prev
		before.links[l.order].prev = w
	} else {
		l.last = w
	}
	if prev != nil {
		prev.links[l.order].next = w
	} else {
		l.first = w
	}
	w.links[l.order] = link{next: before, prev: prev}
}

func (l *waiterList) remove(w *waiter) {
	at := w.links[l.order]
	if at.prev != nil {
		at.prev.links[l.order].next = at.next
	} else {
		l.first = at.next
	}
	if at.next != nil {
		at.next.links[l.order].prev = at.prev
	} else {
		l.last = at.prev
	}
	w.links[l.order] = link{}
}

// flow holds the waiters of one tenant in one band of one queue, in the order of their arrival (a
// flow of deficit round robin).
type flow struct {
	tenant  *tenant
	band    *band
	waiters waiterList
	// count is the number of waiters, the returned ones included.
	count int
	// tokens is what the waiters will be charged.
	tokens  int64
	deficit int64
	// fraction is the rest of the last credit, in parts of the least weight.
	fraction int64
	// creditedRound is the last round in which the flow got its credit.
	creditedRound uint64
	parked        bool
	// The neighbours in the band's ring, or among the tenant's parked flows. nil means that the
	// flow is in neither.
	next, prev *flow
	// ringWeight is the weight with which the ring counts the flow.
	ringWeight int64
}

// appendWaiters appends the waiters of the flow, the returned ones included.
func (f *flow) appendWaiters(to []*waiter) []*waiter {
	for w := f.band.returned.first; w != nil; w = w.links[flowOrder].next {
		if w.flow == f {
			to = append(to, w)
		}
	}
	for w := f.waiters.first; w != nil; w = w.links[flowOrder].next {
		to = append(to, w)
	}
	return to
}

// ring is a circle of flows. cursor is the flow of the current visit; new flows are added before
// it. weights is the sum of the weights that the flows had when they were added.
type ring struct {
	cursor  *flow
	length  int
	weights int64
}

func (r *ring) add(f *flow) {
	r.length++
	f.ringWeight = f.tenant.limits.weight()
	r.weights += f.ringWeight
	if r.cursor == nil {
		f.next, f.prev, r.cursor = f, f, f
		return
	}
	f.next, f.prev = r.cursor, r.cursor.prev
	f.prev.next, f.next.prev = f, f
}

func (r *ring) remove(f *flow) {
	r.length--
	r.weights -= f.ringWeight
	if r.length == 0 {
		r.cursor = nil
	} else {
		f.prev.next, f.next.prev = f.next, f.prev
		if r.cursor == f {
			r.cursor = f.next
		}
	}
	f.next, f.prev = nil, nil
}

// band shares the order of one queue among tenants by deficit round robin (M. Shreedhar and G.
// Varghese, "Efficient Fair Queueing using Deficit Round Robin", 1995). A flow gets a credit of
// weight / least weight × quantum once in a round, when the cursor comes to it, and never because a
// request asks. The least weight is that of the flows of the round before. So only the ratios of
// weights matter, and turns are short also if all weights are large. The quantum of a round is the
// largest cost that waits when the round begins, rounded up to a power of two, and at most
// maxQuantum. So a waiter takes at most maxCost/maxQuantum visits of its flow, and a decision takes
// the same time however many flows there are.
//
// Take two flows that always have waiters, and divide the tokens that each was served by its
// weight. The results differ by at most one quantum and one largest cost, which is at most three
// largest costs.
type band struct {
	flows map[string]*flow
	ring  ring
	round uint64
	// quantum is that of the current round.
	quantum int64
	// leastWeight is the one by which the credits of the current round are divided. nextLeastWeight
	// is the least weight that had a credit in this round.
	leastWeight, nextLeastWeight int64
	// returned are waiters that were already picked and charged to their flow, and whose claims the
	// shared state then denied. They are the next in order.
	returned waiterList
	// arrivals holds all waiters by the time of their arrival.
	arrivals waiterList
	length   int
	// parked is how many of the waiters are in parked flows.
	parked int
	tokens int64
	// costBits counts waiters by the number of bits of their cost. costBitsSet has a bit for each
	// count that is not 0.
	costBits    [64]int
	costBitsSet uint64
}

// maxQuantum bounds what a flow is served in one visit, while a request with a large cost waits in
// another one.
const maxQuantum = 1 << 14

func (b *band) startRound() {
	b.round++
	b.quantum = min(b.largestCost(), maxQuantum)
	b.leastWeight, b.nextLeastWeight = b.nextLeastWeight, maxWeight
}

// credit gives the flow what it gets in this round. A debt from a time with larger costs must not
// take many rounds to pay.
func (b *band) credit(f *flow) {
	weight := f.tenant.limits.weight()
	f.creditedRound = b.round
	b.nextLeastWeight = min(b.nextLeastWeight, weight)
	parts := weight*b.quantum + min(f.fraction, b.leastWeight-1)
	f.fraction = parts % b.leastWeight
	f.deficit = max(f.deficit, -f.maxDeficit()) + parts/b.leastWeight
}

func (b *band) largestCost() int64 {
	return 1 << min(bits.Len64(b.costBitsSet), 62) >> 1
}

// countWaiter adds a waiter to the sums (n = 1), or removes it (n = -1).
func (b *band) countWaiter(w *waiter, n int) {
	size := bits.Len64(uint64(w.cost - 1))
	b.length += n
	b.tokens += int64(n) * w.needTokens
	b.costBits[size] += n
	if b.costBits[size] > 0 {
		b.costBitsSet |= 1 << size
	} else {
		b.costBitsSet &^= 1 << size
	}
}

// flowOf returns the tenant's flow, or creates it.
func (b *band) flowOf(t *tenant) *flow {
	f := b.flows[t.name]
	if f == nil {
		f = &flow{tenant: t, band: b, waiters: waiterList{order: flowOrder}}
		if b.flows == nil {
			b.flows, b.arrivals.order, b.returned.order = map[string]*flow{}, arrivalOrder, flowOrder
		}
		b.flows[t.name] = f
	}
	return f
}

// addToRing adds the flow at the end of the ring, if it has waiters and is in no ring.
func (b *band) addToRing(f *flow) {
	if f.next != nil || f.waiters.first == nil {
		return
	}
	if b.ring.length == 0 {
		b.nextLeastWeight = f.tenant.limits.weight()
		b.startRound()
	}
	f.creditedRound = b.round - 1
	b.ring.add(f)
}

// advance moves the cursor to the next flow.
func (b *band) advance() {
	b.ring.cursor = b.ring.cursor.next
	b.startRoundIfDone()
}

// startRoundIfDone starts a round if the cursor is at a flow that this round has visited.
func (b *band) startRoundIfDone() {
	if b.ring.cursor != nil && b.ring.cursor.creditedRound == b.round {
		b.startRound()
	}
}

func (b *band) removeFromRing(f *flow) {
	at := b.ring.cursor == f
	b.ring.remove(f)
	if at {
		b.startRoundIfDone()
	}
}

// enqueue adds w at the end of its flow, or, if it was dequeued for an inquiry, at the front. A
// preempted waiter is added at the front too, and is charged to the flow again.
func (b *band) enqueue(w *waiter, front bool) {
	f := b.flowOf(w.tenant)
	w.flow, w.state = f, stateQueued
	b.insert(w, front)
	switch {
	case front:
		f.waiters.insert(w, f.waiters.first)
		f.deficit += w.cost
	case w.Preempted:
		f.waiters.insert(w, f.waiters.first)
	default:
		f.waiters.insert(w, nil)
	}
	if !f.parked {
		b.addToRing(f)
	}
}

// enqueueReturned adds w, which was picked before, in front of all flows.
func (b *band) enqueueReturned(w *waiter) {
	w.flow, w.state = b.flowOf(w.tenant), stateReturned
	b.insert(w, true)
	b.returned.insert(w, b.returned.first)
}

func (b *band) insert(w *waiter, front bool) {
	w.flow.count++
	w.flow.tokens += w.needTokens
	if w.flow.parked {
		b.parked++
	}
	b.countWaiter(w, 1)
	if !front {
		b.arrivals.insert(w, nil)
		return
	}
	at := b.arrivals.first
	for n := 0; n < maxInquiry && at != nil && at.arrived.Before(w.arrived); n++ {
		at = at.links[arrivalOrder].next
	}
	b.arrivals.insert(w, at) // the waiters before it are older, so the first is the oldest
}

// dequeue removes w. If it was served, its flow is charged the cost.
func (b *band) dequeue(w *waiter, served bool) {
	f := w.flow
	f.count--
	f.tokens -= w.needTokens
	if f.parked {
		b.parked--
	}
	b.countWaiter(w, -1)
	b.arrivals.remove(w)
	if w.state == stateReturned {
		b.returned.remove(w)
		if !served && f.waiters.first != nil {
			f.deficit += w.cost
		}
	} else {
		f.waiters.remove(w)
		if served {
			f.deficit -= w.cost
		}
	}
	w.state = stateIdle
	f.deficit = min(max(f.deficit, -f.maxDeficit()), f.maxDeficit())
	b.forgetIfEmpty(f)
}

// maxDebtVisits bounds the deficit of a flow in both directions, in credits of a visit that
// maxQuantum does not bound.
const maxDebtVisits = 4

func (f *flow) maxDeficit() int64 {
	least := max(f.band.leastWeight, 1) // there has been no round if all waiters were returned ones
	return maxDebtVisits * max(f.tenant.limits.weight(), least) * max(f.band.quantum, f.band.largestCost(), 1) / least
}

// forgetIfEmpty clears the deficit of a flow without waiters, and deletes a flow that has not even
// returned ones. A parked flow whose head has left is unparked if its new head may go.
func (b *band) forgetIfEmpty(f *flow) {
	if first := f.waiters.first; first != nil {
		if f.parked && !f.tenant.isAtLimit(&first.arrival) {
			f.tenant.unpark(f)
			b.addToRing(f)
		}
		return
	}
	f.deficit, f.fraction = 0, 0
	if f.parked {
		f.tenant.unpark(f)
	} else if f.next != nil {
		b.removeFromRing(f)
	}
	if f.count == 0 {
		delete(b.flows, f.tenant.name)
	}
}

// park removes w's flow from the ring until its tenant has room again, so that the flow holds up
// nobody.
func (b *band) park(w *waiter) {
	f := w.flow
	b.requeueReturned(f)
	if f.parked {
		return
	}
	if f.next != nil {
		b.removeFromRing(f)
	}
	f.parked = true
	b.parked += f.count
	f.tenant.parked.add(f)
}

// requeueReturned moves the returned waiters of a flow back to its front.
func (b *band) requeueReturned(f *flow) {
	for w := b.returned.last; w != nil; {
		prev := w.links[flowOrder].prev
		if w.flow == f {
			b.returned.remove(w)
			w.state = stateQueued
			f.waiters.insert(w, f.waiters.first)
			f.deficit += w.cost
		}
		w = prev
	}
}

// head returns the next waiter, nil if no waiter may go: the first returned one, else the head of
// the ring. It parks the flows of tenants at a limit.
func (b *band) head() *waiter {
	for b.length > 0 {
		w := b.returned.first
		if w == nil {
			w = b.headOfRing()
		}
		if w == nil || !w.tenant.isAtLimit(&w.arrival) {
			return w
		}
		b.park(w)
	}
	return nil
}

// headOfRing returns the first waiter of the flow that deficit round robin serves next.
func (b *band) headOfRing() *waiter {
	for b.ring.cursor != nil {
		f := b.ring.cursor
		if f.creditedRound != b.round {
			b.credit(f)
		}
		if w := f.waiters.first; w.cost <= f.deficit {
			return w
		}
		b.advance()
	}
	return nil
}

// maxSearched is the number of waiters of a flow that headFor tries.
const maxSearched = 16

// headFor returns the next waiter that the gate can serve. Waiters that it cannot serve do not
// block the others.
func (b *band) headFor(g *gate) *waiter {
	first := b.head()
	if first == nil || g.canServe(&first.arrival) {
		return first
	}
	for w := b.returned.first; w != nil; w = w.links[flowOrder].next {
		if g.canServe(&w.arrival) && !w.tenant.isAtLimit(&w.arrival) {
			return w
		}
	}
	f := b.ring.cursor
	for range b.ring.length {
		w := f.waiters.first
		for n := 0; n < maxSearched && w != nil; n++ {
			if g.canServe(&w.arrival) && !w.tenant.isAtLimit(&w.arrival) {
				return w
			}
			w = w.links[flowOrder].next
		}
		f = f.next
	}
	return nil
}

// queue holds the requests that wait for one model, or for any model of a pool. One of gate and
// pool is nil.
type queue struct {
	gate *gate
	pool *pool

	bands  [bands]band
	length int
	bytes  int64
	// newcomers have had no verdict of the shared state yet. They do not count against the limit of
	// the queue.
	newcomers []*waiter
	// underTasks are the waiters with Request.UnderTask, in no order. A head that waits for a lease
	// does not hold them up: it may wait for the lease of their own task.
	underTasks []*waiter
}

func (q *queue) enqueue(w *waiter) {
	q.add(w)
	q.bands[w.band].enqueue(w, false)
}

func (q *queue) add(w *waiter) {
	w.queue = q
	q.length++
	q.bytes += int64(w.Bytes)
	if w.newcomer {
		q.newcomers = append(q.newcomers, w)
	}
	if !w.needsLease() {
		q.underTasks = append(q.underTasks, w)
	}
}

// requeue adds a waiter that was dequeued for an inquiry. With keepHead it stays before all others
// of its band. Without, its tenant is at a limit, and its flow is parked.
func (q *queue) requeue(w *waiter, keepHead bool) {
	q.add(w)
	b := &q.bands[w.band]
	if keepHead {
		b.enqueueReturned(w)
		return
	}
	b.requeueReturned(b.flowOf(w.tenant))
	b.enqueue(w, true)
	b.park(w)
}

// parkedCount is the number of waiters in parked flows.
func (q *queue) parkedCount() (n int) {
	for b := range q.bands {
		n += q.bands[b].parked
	}
	return n
}

// dequeue removes w; see band.dequeue.
func (q *queue) dequeue(w *waiter, served bool) {
	q.length--
	q.bytes -= int64(w.Bytes)
	if w.newcomer {
		if q.newcomers[0] == w { // the usual case
			q.newcomers = q.newcomers[1:]
		} else if i := slices.Index(q.newcomers, w); i > 0 {
			q.newcomers = slices.Delete(q.newcomers, i, i+1)
		}
	}
	if i := slices.Index(q.underTasks, w); i >= 0 {
		q.underTasks = slices.Delete(q.underTasks, i, i+1)
	}
	q.bands[w.band].dequeue(w, served)
}

// allWaiters returns all waiters, those of the highest band first, the oldest first in each band.
func (q *queue) allWaiters() []*waiter {
	waiting := make([]*waiter, 0, q.length)
	for b := bands - 1; b >= 0; b-- {
		for w := q.bands[b].arrivals.first; w != nil; w = w.links[arrivalOrder].next {
			waiting = append(waiting, w)
		}
	}
	return waiting
}
