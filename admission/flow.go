package admission

import (
	"math/bits"
	"slices"
)

// bands is how many priorities there are. Their indexes rise with them.
const bands = 3

func (p Priority) band() int { return min(max(int(p)-int(Batch), 0), bands-1) }

// list is a doubly linked list of waiters. A waiter has a place for two of them: one by turn, one by arrival.
type list struct {
	first, last *waiter
	by          int
}

const (
	byTurn = iota
	byArrival
)

type link struct{ next, prev *waiter }

// insert puts w before another; nil is the end.
func (l *list) insert(w, before *waiter) {
	prev := l.last
	if before != nil {
		prev = before.links[l.by].prev
		before.links[l.by].prev = w
	} else {
		l.last = w
	}
	if prev != nil {
		prev.links[l.by].next = w
	} else {
		l.first = w
	}
	w.links[l.by] = link{next: before, prev: prev}
}

func (l *list) remove(w *waiter) {
	at := w.links[l.by]
	if at.prev != nil {
		at.prev.links[l.by].next = at.next
	} else {
		l.first = at.next
	}
	if at.next != nil {
		at.next.links[l.by].prev = at.prev
	} else {
		l.last = at.prev
	}
	w.links[l.by] = link{}
}

// flow is what waits of one tenant in one band of one queue, in the order in which it came.
type flow struct {
	tenant  *tenant
	band    *band
	waiting list
	// count is how many wait, the chosen ones included.
	count int
	// tokens are what they will take.
	tokens  int64
	deficit int64
	// round is the last one that gave credit.
	round  uint64
	parked bool
	// The neighbours in the band's ring, or among the tenant's parked flows.
	next, prev *flow
}

// ring is a circle of flows; cur is the one at hand, and the end is before it.
type ring struct {
	cur    *flow
	length int
}

func (r *ring) add(f *flow) {
	r.length++
	if r.cur == nil {
		f.next, f.prev, r.cur = f, f, f
		return
	}
	f.next, f.prev = r.cur, r.cur.prev
	f.prev.next, f.next.prev = f, f
}

func (r *ring) remove(f *flow) {
	r.length--
	if r.length == 0 {
		r.cur = nil
	} else {
		f.prev.next, f.next.prev = f.next, f.prev
		if r.cur == f {
			r.cur = f.next
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
	chosen list
	// all who wait, by arrival.
	all    list
	length int
	tokens int64
	// sizes counts those who wait by the length of their cost in bits; present has a bit for each that is not 0.
	sizes   [64]int
	present uint64
}

func (b *band) largest() int64 {
	return 1 << min(bits.Len64(b.present), 62) >> 1
}

// count adds a waiter to the sums, or takes it away.
func (b *band) count(w *waiter, n int) {
	size := bits.Len64(uint64(w.cost - 1))
	b.length += n
	b.tokens += int64(n) * w.due()
	b.sizes[size] += n
	if b.sizes[size] > 0 {
		b.present |= 1 << size
	} else {
		b.present &^= 1 << size
	}
}

// flow finds the tenant's flow, or makes it.
func (b *band) flow(t *tenant) *flow {
	f := b.flows[t.name]
	if f == nil {
		f = &flow{tenant: t, band: b, waiting: list{by: byTurn}}
		if b.flows == nil {
			b.flows, b.all.by, b.chosen.by = map[string]*flow{}, byArrival, byTurn
		}
		b.flows[t.name] = f
	}
	return f
}

// enroll gives the flow a place at the end of the ring, if it has something that waits.
func (b *band) enroll(f *flow) {
	if f.next != nil || f.waiting.first == nil {
		return
	}
	if b.ring.length == 0 {
		b.round++
		b.quantum = b.largest()
	}
	f.round = b.round - 1
	b.ring.add(f)
}

// advance moves the cursor off a flow.
func (b *band) advance() {
	b.ring.cur = b.ring.cur.next
	b.begin()
}

// begin starts a round when the cursor is where this one has been.
func (b *band) begin() {
	if b.ring.cur != nil && b.ring.cur.round == b.round {
		b.round++
		b.quantum = b.largest()
	}
}

func (b *band) drop(f *flow) {
	at := b.ring.cur == f
	b.ring.remove(f)
	if at {
		b.begin()
	}
}

// push adds w: at the end, or, if it has waited before, at the front of its flow. A preempted one comes there too, and pays once more.
func (b *band) push(w *waiter, front bool) {
	f := b.flow(w.tenant)
	w.flow, w.state = f, queued
	b.join(w, front)
	switch {
	case front:
		f.waiting.insert(w, f.waiting.first)
		f.deficit += w.cost
	case w.Preempted:
		f.waiting.insert(w, f.waiting.first)
	default:
		f.waiting.insert(w, nil)
	}
	if !f.parked {
		b.enroll(f)
	}
}

// pushChosen gives w, which had its turn, the first place before all flows.
func (b *band) pushChosen(w *waiter) {
	w.flow, w.state = b.flow(w.tenant), chosen
	b.join(w, true)
	b.chosen.insert(w, b.chosen.first)
}

func (b *band) join(w *waiter, front bool) {
	w.flow.count++
	w.flow.tokens += w.due()
	b.count(w, 1)
	if !front {
		b.all.insert(w, nil)
		return
	}
	at := b.all.first
	for n := 0; n < mostAsked && at != nil && at.came.Before(w.came); n++ {
		at = at.links[byArrival].next
	}
	b.all.insert(w, at) // those before it are older, so that the first is the oldest
}

// remove takes w out, wherever it stands. One that goes has been served: its flow pays.
func (b *band) remove(w *waiter, served bool) {
	f := w.flow
	f.count--
	f.tokens -= w.due()
	b.count(w, -1)
	b.all.remove(w)
	if w.state == chosen {
		b.chosen.remove(w)
		if !served && f.waiting.first != nil {
			f.deficit += w.cost
		}
	} else {
		f.waiting.remove(w)
		if served {
			f.deficit -= w.cost
		}
	}
	w.state = idle
	f.deficit = min(max(f.deficit, -f.most()), f.most())
	b.settle(f)
}

// debts is how many visits' credit bounds a flow's deficit either way.
const debts = 4

func (f *flow) most() int64 {
	return debts * f.tenant.limits.weight() * max(f.band.quantum, f.band.largest(), 1)
}

// settle forgets what an empty flow has saved, and the flow itself. A parked one whose first has left may go on if the next can.
func (b *band) settle(f *flow) {
	if first := f.waiting.first; first != nil {
		if f.parked && !f.tenant.full(&first.arrival) {
			f.tenant.unpark(f)
			b.enroll(f)
		}
		return
	}
	f.deficit = 0
	if f.parked {
		f.tenant.unpark(f)
	} else if f.next != nil {
		b.drop(f)
	}
	if f.count == 0 {
		delete(b.flows, f.tenant.name)
	}
}

// park takes w's flow out of the ring until its tenant has room again, so that it holds nobody up.
func (b *band) park(w *waiter) {
	f := w.flow
	b.unchoose(f)
	if f.parked {
		return
	}
	if f.next != nil {
		b.drop(f)
	}
	f.parked = true
	f.tenant.parked.add(f)
}

// unchoose puts the chosen of a flow back to its front.
func (b *band) unchoose(f *flow) {
	for w := b.chosen.last; w != nil; {
		prev := w.links[byTurn].prev
		if w.flow == f {
			b.chosen.remove(w)
			w.state = queued
			f.waiting.insert(w, f.waiting.first)
			f.deficit += w.cost
		}
		w = prev
	}
}

// head is who goes next, nil when nobody can: the ring's turn, unless somebody has had it already.
func (b *band) head() *waiter {
	for b.length > 0 {
		w := b.chosen.first
		if w == nil {
			w = b.turn()
		}
		if w == nil || !w.tenant.full(&w.arrival) {
			return w
		}
		b.park(w)
	}
	return nil
}

// turn is the first of the flow whose turn it is.
func (b *band) turn() *waiter {
	for b.ring.cur != nil {
		f := b.ring.cur
		if f.round != b.round {
			f.round = b.round
			credit := f.tenant.limits.weight() * b.quantum
			// A debt of a time with larger costs must not take many rounds to pay.
			f.deficit = max(f.deficit, -debts*credit) + credit
		}
		if w := f.waiting.first; w.cost <= f.deficit {
			return w
		}
		b.advance()
	}
	return nil
}

// searched is how deep a flow is searched for one that a model may serve.
const searched = 16

// headFor is the first in order that the gate may serve. Those that it may not serve are not in its way.
func (b *band) headFor(g *gate) *waiter {
	first := b.head()
	if first == nil || g.takes(&first.arrival) {
		return first
	}
	for w := b.chosen.first; w != nil; w = w.links[byTurn].next {
		if g.takes(&w.arrival) && !w.tenant.full(&w.arrival) {
			return w
		}
	}
	f := b.ring.cur
	for range b.ring.length {
		w := f.waiting.first
		for n := 0; n < searched && w != nil; n++ {
			if g.takes(&w.arrival) && !w.tenant.full(&w.arrival) {
				return w
			}
			w = w.links[byTurn].next
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
	fresh []*waiter
	news  int
}

func (q *queue) push(w *waiter) {
	q.join(w)
	q.bands[w.band].push(w, false)
}

func (q *queue) join(w *waiter) {
	w.queue = q
	q.length++
	q.bytes += int64(w.Bytes)
	if w.fresh {
		q.news++
		q.fresh = append(q.fresh, w)
	}
}

// putBack is push for one that was taken out to be asked about. chosen: it stays before all others of its band; otherwise
// its tenant has no room, and its flow is parked.
func (q *queue) putBack(w *waiter, chosen bool) {
	q.join(w)
	b := &q.bands[w.band]
	if chosen {
		b.pushChosen(w)
		return
	}
	b.unchoose(b.flow(w.tenant))
	b.push(w, true)
	b.park(w)
}

// remove takes w out; see band.remove.
func (q *queue) remove(w *waiter, served bool) {
	q.length--
	q.bytes -= int64(w.Bytes)
	if w.fresh {
		q.news--
		if q.fresh[0] == w { // mostly
			q.fresh = q.fresh[1:]
		} else if i := slices.Index(q.fresh, w); i > 0 {
			q.fresh = slices.Delete(q.fresh, i, i+1)
		}
	}
	q.bands[w.band].remove(w, served)
}

// all lists everybody, the oldest of the highest band first.
func (q *queue) all() []*waiter {
	waiting := make([]*waiter, 0, q.length)
	for b := bands - 1; b >= 0; b-- {
		for w := q.bands[b].all.first; w != nil; w = w.links[byArrival].next {
			waiting = append(waiting, w)
		}
	}
	return waiting
}
