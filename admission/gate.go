package admission

import "time"

// gate is one model's way in: what it has given, and the queue before it. Whatever changes one of them ends with Controller.pump, so
// that outside the lock the next in order is always one that cannot go.
type gate struct {
	model  string
	book   book
	queue  queue
	closed bool
	// members are its places in pools, whose queues it serves beside its own.
	members []*member
	// spare: there may be one more lease, as its pools have noted.
	spare bool
	// In each band the gate's own queue and those of its pools take turns by tokens (start-time fair queueing): the source with the
	// smallest tag is next.
	tags, virtual [bands]int64
	// turn counts admissions, up to seven, since an aged waiter of a lower band was let in; aged is when each band last was.
	turn  int
	aged  [bands]uint64
	count uint64
	pace  pace
	// timer fires when the tokens of the next in order are there, or when it is time to ask again.
	timer *time.Timer
	// lacks is the next in order if it is tokens that it waits for. Where it is not, the next may have enough.
	lacks *waiter
	ask   inquiry
	// preemptibles may be preempted; victim was, and has not been released yet.
	preemptibles [bands]preemptibles
	victim       *Lease
}

// takes reports whether the model may ever serve the request.
func (g *gate) takes(a *arrival) bool {
	return !g.closed && (a.Allowed == nil || a.Pool == "" || a.Allowed(g.model)) && (a.Admitted || g.book.fits(a.Tokens))
}

// source is where the next waiter of a band comes from: a pool's queue, or the gate's own for nil.
func (g *gate) headOf(b int) (*waiter, *member) {
	best := g.queue.bands[b].head()
	var from *member
	for _, m := range g.members {
		q := &m.pool.queue.bands[b]
		if q.length == 0 {
			continue
		}
		w := q.headFor(g)
		if w == nil {
			continue
		}
		if best == nil || g.before(w, m, best, from) {
			best, from = w, m
		}
	}
	return best, from
}

func (g *gate) tag(m *member, b int) int64 {
	if m == nil {
		return max(g.tags[b], g.virtual[b])
	}
	return max(m.tags[b], g.virtual[b])
}

func (g *gate) before(w *waiter, m *member, other *waiter, from *member) bool {
	a, b := g.tag(m, w.band), g.tag(from, w.band)
	return a < b || a == b && w.came.Before(other.came)
}

// next is who goes next, and from where; nil when nobody can be helped by this model.
func (g *gate) next(c *Controller, now time.Time) (*waiter, *member) {
	if !g.crowded() {
		return nil, nil
	}
	for b := bands - 1; b >= 0; b-- {
		w, m := g.headOf(b)
		if w == nil {
			continue
		}
		if aged, from := g.agedBelow(b, now.Add(-c.ageing)); aged != nil {
			return aged, from
		}
		return w, m
	}
	return nil, nil
}

// crowd is how many wait that the gate might serve.
func (g *gate) crowd() int {
	n := g.queue.length
	for _, m := range g.members {
		n += m.pool.queue.length
	}
	return n
}

func (g *gate) crowded() bool { return g.crowd() > 0 }

// turns is how many admissions there are for each that an aged waiter gets before a higher band.
const turns = 8

// agedBelow is who goes now although a band above has somebody: every eighth time one of a band whose oldest has waited since a
// certain time. If there are two such bands they take turns.
func (g *gate) agedBelow(top int, since time.Time) (*waiter, *member) {
	if g.turn < turns-1 {
		return nil, nil
	}
	var best *waiter
	var from *member
	for b := top - 1; b >= 0; b-- {
		if best != nil && g.aged[b] >= g.aged[best.band] || !g.oldestBefore(b, since) {
			continue
		}
		if w, m := g.headOf(b); w != nil {
			best, from = w, m
		}
	}
	return best, from
}

func (g *gate) oldestBefore(b int, since time.Time) bool {
	if w := g.queue.bands[b].all.first; w != nil && !w.came.After(since) {
		return true
	}
	for _, m := range g.members {
		if w := m.pool.queue.bands[b].all.first; w != nil && !w.came.After(since) {
			return true
		}
	}
	return false
}

// clear reports whether one that comes now would be next: nobody of its band or a higher one, and nobody aged, can be
// helped by this model.
func (g *gate) clear(c *Controller, a *arrival, now time.Time) bool {
	if !g.crowded() {
		return true
	}
	if f := g.queue.bands[a.band].flows[a.Tenant]; f != nil {
		return false
	}
	for b := bands - 1; b >= a.band; b-- {
		if w, _ := g.headOf(b); w != nil {
			return false
		}
	}
	w, _ := g.agedBelow(a.band, now.Add(-c.ageing))
	return w == nil
}

// served tells the order that w goes.
func (g *gate) served(w *waiter, from *member) {
	start := g.tag(from, w.band)
	g.virtual[w.band] = start
	if from == nil {
		g.tags[w.band] = start + w.cost
	} else {
		from.tags[w.band] = start + w.cost
	}
	g.count++
	for b := w.band + 1; b < bands; b++ {
		if h, _ := g.headOf(b); h != nil {
			g.turn, g.aged[w.band] = 0, g.count
			return
		}
	}
	g.turn = min(g.turn+1, turns-1)
}

// passed tells the order that one went that had not to wait. Who waits in a lower band, for more tokens than that, has been passed.
func (g *gate) passed(a *arrival) {
	if a.band > 0 && g.crowded() {
		g.turn = min(g.turn+1, turns-1)
	}
}

// note tells the pools whether there may be one more lease, after the leases or the limits have changed.
func (g *gate) note() {
	spare := g.book.free()
	if spare == g.spare {
		return
	}
	g.spare = spare
	for _, m := range g.members {
		if spare {
			m.pool.spare++
		} else {
			m.pool.spare--
		}
	}
}

// room reports whether the model's own limits let the request go now.
func (g *gate) room(a *arrival, now time.Time) bool {
	return a.Admitted || g.book.free() && g.book.bucket.wait(int64(a.Tokens), now) == 0
}

// passes reports whether the request can go now; if so it has its slot on a replica, and must go.
func (g *gate) passes(a *arrival, now time.Time) bool {
	if g.closed || !g.room(a, now) {
		return false
	}
	if a.Place == nil {
		return true
	}
	_, ok := a.Place(g.model)
	return ok
}

// arm sets the timer; 0 stops it.
func (g *gate) arm(c *Controller, wait time.Duration) {
	switch {
	case wait > 0 && g.timer == nil:
		g.timer = time.AfterFunc(wait, func() {
			c.mu.Lock()
			defer c.unlock()
			c.pump(g, time.Now())
		})
	case wait > 0:
		g.timer.Reset(wait)
	case g.timer != nil:
		g.timer.Stop()
	}
}

// idle reports whether a new gate would be just like this one.
func (g *gate) idle(now time.Time) bool {
	g.book.bucket.refill(now)
	return g.book.leases == 0 && g.book.bucket.level == g.book.bucket.size() && !g.ask.out
}

// pump lets in whoever can go, in order.
func (c *Controller) pump(g *gate, now time.Time) {
	if g.closed {
		g.arm(c, 0)
		return
	}
	if c.shared != nil {
		c.inquire(g, now)
		return
	}
	for {
		w, from := g.next(c, now)
		if w == nil {
			g.lacks = nil
			g.arm(c, 0)
			return
		}
		if !g.passes(&w.arrival, now) {
			g.await(c, w, now)
			return
		}
		c.release(w, true)
		g.served(w, from)
		w.placed = w.Place != nil
		c.firm(w, now)
		w.decide(c.lease(g, w.tenant, &w.arrival, now), nil)
		if from != nil {
			c.unstick(from.pool, now)
		}
	}
}

// await waits for what the next in order lacks.
func (g *gate) await(c *Controller, w *waiter, now time.Time) {
	wait := g.known(&w.arrival, now)
	if g.lacks = nil; wait > 0 {
		g.lacks = w
	}
	g.arm(c, wait)
	c.crave(g, w, now)
}

// loosen reports whether the gate has waited for the tokens of one that has gone, perhaps to another model of its pool, and ends that.
func (g *gate) loosen() bool {
	if g.lacks == nil || g.lacks.state != decided {
		return false
	}
	g.lacks, g.ask.lax = nil, true
	return true
}

// unstick lets those gates of a pool go on.
func (c *Controller) unstick(p *pool, now time.Time) {
	for _, m := range p.members {
		if m.gate.loosen() {
			c.pump(m.gate, now)
		}
	}
}

// holds reports whether w is not to be asked about yet.
func (g *gate) holds(w *waiter, now time.Time) bool {
	g.loosen()
	return g.ask.holds(w, now)
}

// known is when the request can go if tokens, and nothing else that is known here, keep it waiting. Everything else announces itself.
func (g *gate) known(a *arrival, now time.Time) time.Duration {
	if a.Admitted || !g.book.free() {
		return 0
	}
	return g.book.bucket.wait(int64(a.Tokens), now)
}

// release takes w out of its queue, with all that it held by waiting.
func (c *Controller) release(w *waiter, served bool) {
	w.queue.remove(w, served)
	c.hold(w, -1)
}

// hold counts what w holds while it is neither running nor refused, or no longer.
func (c *Controller) hold(w *waiter, n int) {
	w.tenant.hold(w, n)
	c.held += int64(n * w.Bytes)
}

// refuse ends the waiting of one that is in a queue.
func (c *Controller) refuse(w *waiter, err error) {
	c.release(w, false)
	w.decide(nil, err)
}

// pumpQueue lets in from one queue: of a gate, or of a pool through all its gates.
func (c *Controller) pumpQueue(q *queue, now time.Time) {
	if q.gate != nil {
		c.pump(q.gate, now)
		return
	}
	p := q.pool
	was := p.quiet
	p.quiet = true
	for _, m := range p.members {
		c.pump(m.gate, now)
	}
	if p.quiet = was; c.shared != nil {
		c.greet(q, now)
	}
}

// welcome gives the tenant's parked flows another chance, in the order in which they were parked.
func (c *Controller) welcome(t *tenant, now time.Time) {
	for n := t.parked.length; n > 0 && t.parked.cur != nil; n-- {
		f := t.parked.cur
		if t.full(&f.waiting.first.arrival) {
			t.parked.cur = f.next
			continue
		}
		q := f.waiting.first.queue
		t.unpark(f)
		f.band.enroll(f)
		c.pumpQueue(q, now)
	}
}
