package admission

import (
	"math/bits"
	"slices"
)

// bands is how many priorities there are. Their indexes rise with them.
const bands = 3

func (p Priority) band() int { return min(max(int(p)-int(Batch), 0), bands-1) }

// list is a doubly linked list of waiters. A waiter has a place for two of them: one by turn, one by arrival.
type waiterList struct {
	first, last *waiter
	order       int
}

const (
	flowOrder = iota
	arrivalOrder
)

type link struct{ next, prev *waiter }

// insert puts w before another; nil is the end.
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

// flow is what waits of one tenant in one band of one queue, in the order in which it came.
type flow struct {
	tenant  *tenant
	band    *band
	waiters waiterList
	// count is how many wait, the chosen ones included.
	count int
	// tokens are what they will take.
	tokens  int64
	deficit int64
	// round is the last one that gave credit.
	creditedRound uint64
	parked        bool
	// The neighbours in the band's ring, or among the tenant's parked flows.
	next, prev *flow
}

// ring is a circle of flows; cur is the one at hand, and the end is before it.
type ring struct {
	cursor *flow
	length int
}

func (r *ring) add(f *flow) {
	r.length++
	if r.cursor == nil {
		f.next, f.prev, r.cursor = f, f, f
		return
	}
	f.next, f.prev = r.cursor, r.cursor.prev
	f.prev.next, f.next.prev = f, f
}

func (r *ring) remove(f *flow) {
	r.length--
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

// band shares one queue's turns among tenants by deficit round robin (Shreedhar and Varghese, 1995). A flow earns weight × quantum once a
// round, when the cursor comes to it, and never by being asked about. The quantum of a round is the largest cost, rounded up to
// a power of two, that waits when the round begins; so nearly every visit serves somebody, and a decision costs the same however
// many flows there are.
//
// For two flows that wait all the time, the served tokens divided by the weights differ by at most one quantum and one largest
// cost, that is by three largest costs.
type band struct {
	flows map[string]*flow
	ring  ring
	round uint64
	// quantum of this round.
	quantum int64
	// chosen have had their turn already, and were then turned away by what gateways share; they are next, and are paid for.
	returned waiterList
	// all who wait, by arrival.
	arrivals waiterList
	length   int
	tokens   int64
	// sizes counts those who wait by the length of their cost in bits; present has a bit for each that is not 0.
	costBits    [64]int
	costBitsSet uint64
}

func (b *band) largestCost() int64 {
	return 1 << min(bits.Len64(b.costBitsSet), 62) >> 1
}

// count adds a waiter to the sums, or takes it away.
func (b *band) countWaiter(w *waiter, n int) {
	size := bits.Len64(uint64(w.cost - 1))
	b.length += n
	b.tokens += int64(n) * w.charge()
	b.costBits[size] += n
	if b.costBits[size] > 0 {
		b.costBitsSet |= 1 << size
	} else {
		b.costBitsSet &^= 1 << size
	}
}

// flow finds the tenant's flow, or makes it.
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

// enroll gives the flow a place at the end of the ring, if it has something that waits.
func (b *band) addToRing(f *flow) {
	if f.next != nil || f.waiters.first == nil {
		return
	}
	if b.ring.length == 0 {
		b.round++
		b.quantum = b.largestCost()
	}
	f.creditedRound = b.round - 1
	b.ring.add(f)
}

// advance moves the cursor off a flow.
func (b *band) advance() {
	b.ring.cursor = b.ring.cursor.next
	b.startRoundIfDone()
}

// begin starts a round when the cursor is where this one has been.
func (b *band) startRoundIfDone() {
	if b.ring.cursor != nil && b.ring.cursor.creditedRound == b.round {
		b.round++
		b.quantum = b.largestCost()
	}
}

func (b *band) removeFromRing(f *flow) {
	at := b.ring.cursor == f
	b.ring.remove(f)
	if at {
		b.startRoundIfDone()
	}
}

// push adds w: at the end, or, if it has waited before, at the front of its flow. A preempted one comes there too, and pays once more.
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

// pushChosen gives w, which had its turn, the first place before all flows.
func (b *band) enqueueReturned(w *waiter) {
	w.flow, w.state = b.flowOf(w.tenant), stateReturned
	b.insert(w, true)
	b.returned.insert(w, b.returned.first)
}

func (b *band) insert(w *waiter, front bool) {
	w.flow.count++
	w.flow.tokens += w.charge()
	b.countWaiter(w, 1)
	if !front {
		b.arrivals.insert(w, nil)
		return
	}
	at := b.arrivals.first
	for n := 0; n < maxInquiry && at != nil && at.arrived.Before(w.arrived); n++ {
		at = at.links[arrivalOrder].next
	}
	b.arrivals.insert(w, at) // those before it are older, so that the first is the oldest
}

// remove takes w out, wherever it stands. One that goes has been served: its flow pays.
func (b *band) dequeue(w *waiter, served bool) {
	f := w.flow
	f.count--
	f.tokens -= w.charge()
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

// debts is how many visits' credit bounds a flow's deficit either way.
const maxDebtVisits = 4

func (f *flow) maxDeficit() int64 {
	return maxDebtVisits * f.tenant.limits.weight() * max(f.band.quantum, f.band.largestCost(), 1)
}

// settle forgets what an empty flow has saved, and the flow itself. A parked one whose first has left may go on if the next can.
func (b *band) forgetIfEmpty(f *flow) {
	if first := f.waiters.first; first != nil {
		if f.parked && !f.tenant.isAtLimit(&first.arrival) {
			f.tenant.unpark(f)
			b.addToRing(f)
		}
		return
	}
	f.deficit = 0
	if f.parked {
		f.tenant.unpark(f)
	} else if f.next != nil {
		b.removeFromRing(f)
	}
	if f.count == 0 {
		delete(b.flows, f.tenant.name)
	}
}

// park takes w's flow out of the ring until its tenant has room again, so that it holds nobody up.
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
	f.tenant.parked.add(f)
}

// unchoose puts the chosen of a flow back to its front.
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

// head is who goes next, nil when nobody can: the ring's turn, unless somebody has had it already.
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

// turn is the first of the flow whose turn it is.
func (b *band) headOfRing() *waiter {
	for b.ring.cursor != nil {
		f := b.ring.cursor
		if f.creditedRound != b.round {
			f.creditedRound = b.round
			credit := f.tenant.limits.weight() * b.quantum
			// A debt of a time with larger costs must not take many rounds to pay.
			f.deficit = max(f.deficit, -maxDebtVisits*credit) + credit
		}
		if w := f.waiters.first; w.cost <= f.deficit {
			return w
		}
		b.advance()
	}
	return nil
}

// searched is how deep a flow is searched for one that a model may serve.
const maxSearched = 16

// headFor is the first in order that the gate may serve. Those that it may not serve are not in its way.
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

// queue is who waits for one model, or for any of a pool's.
type queue struct {
	gate *gate // or
	pool *pool

	bands  [bands]band
	length int
	bytes  int64
	// fresh have had no verdict yet, so they do not count against the queue's limit.
	newcomers     []*waiter
	newcomerCount int
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
		q.newcomerCount++
		q.newcomers = append(q.newcomers, w)
	}
}

// putBack is push for one that was taken out to be asked about. chosen: it stays before all others of its band; otherwise
// its tenant has no room, and its flow is parked.
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

// remove takes w out; see band.remove.
func (q *queue) dequeue(w *waiter, served bool) {
	q.length--
	q.bytes -= int64(w.Bytes)
	if w.newcomer {
		q.newcomerCount--
		if q.newcomers[0] == w { // mostly
			q.newcomers = q.newcomers[1:]
		} else if i := slices.Index(q.newcomers, w); i > 0 {
			q.newcomers = slices.Delete(q.newcomers, i, i+1)
		}
	}
	q.bands[w.band].dequeue(w, served)
}

// all lists everybody, the oldest of the highest band first.
func (q *queue) allWaiters() []*waiter {
	waiting := make([]*waiter, 0, q.length)
	for b := bands - 1; b >= 0; b-- {
		for w := q.bands[b].arrivals.first; w != nil; w = w.links[arrivalOrder].next {
			waiting = append(waiting, w)
		}
	}
	return waiting
}
