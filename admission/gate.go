package admission

import "time"

// gate is one model's way in: what it has given, and the queue before it. Whatever changes one of them ends with Controller.pump, so
// that outside the lock the next in order is always one that cannot go.
type gate struct {
	model  string
	usage  usage
	queue  queue
	closed bool
	// members are its places in pools, whose queues it serves beside its own.
	memberships []*membership
	// spare: there may be one more lease, as its pools have noted.
	hasFreeLease bool
	// In each band the gate's own queue and those of its pools take turns by tokens (start-time fair queueing): the source with the
	// smallest tag is next.
	finishTags, virtualTime [bands]int64
	// turn counts admissions, up to seven, since an aged waiter of a lower band was let in; aged is when each band last was.
	admittedSinceAged int
	lastAged          [bands]uint64
	admissions        uint64
	pace              admissionPace
	// timer fires when the tokens of the next in order are there, or when it is time to ask again.
	timer *time.Timer
	// lacks is the next in order if it is tokens that it waits for. Where it is not, the next may have enough.
	blockedOnTokens *waiter
	inquiry         inquiry
	// preemptibles may be preempted; victim was, and has not been released yet.
	preemptible [bands]preemptibleLeases
	preempted   *Lease
}

// takes reports whether the model may ever serve the request.
func (g *gate) canServe(a *arrival) bool {
	return !g.closed && (a.Locked.Allowed == nil || a.Pool == "" || a.Locked.Allowed(g.model)) && (a.SlotOnly || g.usage.fits(a.Tokens))
}

// source is where the next waiter of a band comes from: a pool's queue, or the gate's own for nil.
func (g *gate) bandHead(b int) (*waiter, *membership) {
	best := g.queue.bands[b].head()
	var from *membership
	for _, m := range g.memberships {
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

func (g *gate) startTag(m *membership, b int) int64 {
	if m == nil {
		return max(g.finishTags[b], g.virtualTime[b])
	}
	return max(m.finishTags[b], g.virtualTime[b])
}

func (g *gate) before(w *waiter, m *membership, other *waiter, from *membership) bool {
	a, b := g.startTag(m, w.band), g.startTag(from, w.band)
	return a < b || a == b && w.arrived.Before(other.arrived)
}

// next is who goes next, and from where; nil when nobody can be helped by this model.
func (g *gate) head(c *Controller, now time.Time) (*waiter, *membership) {
	if !g.hasWaiters() {
		return nil, nil
	}
	for b := bands - 1; b >= 0; b-- {
		w, m := g.bandHead(b)
		if w == nil {
			continue
		}
		if aged, from := g.agedHead(b, now.Add(-c.ageing)); aged != nil {
			return aged, from
		}
		return w, m
	}
	return nil, nil
}

// crowd is how many wait that the gate might serve.
func (g *gate) waiterCount() int {
	n := g.queue.length
	for _, m := range g.memberships {
		n += m.pool.queue.length
	}
	return n
}

func (g *gate) hasWaiters() bool { return g.waiterCount() > 0 }

// turns is how many admissions there are for each that an aged waiter gets before a higher band.
const agedEvery = 8

// agedBelow is who goes now although a band above has somebody: every eighth time one of a band whose oldest has waited since a
// certain time. If there are two such bands they take turns.
func (g *gate) agedHead(top int, since time.Time) (*waiter, *membership) {
	if g.admittedSinceAged < agedEvery-1 {
		return nil, nil
	}
	var best *waiter
	var from *membership
	for b := top - 1; b >= 0; b-- {
		if best != nil && g.lastAged[b] >= g.lastAged[best.band] || !g.hasWaiterSince(b, since) {
			continue
		}
		if w, m := g.bandHead(b); w != nil {
			best, from = w, m
		}
	}
	return best, from
}

func (g *gate) hasWaiterSince(b int, since time.Time) bool {
	if w := g.queue.bands[b].arrivals.first; w != nil && !w.arrived.After(since) {
		return true
	}
	for _, m := range g.memberships {
		if w := m.pool.queue.bands[b].arrivals.first; w != nil && !w.arrived.After(since) {
			return true
		}
	}
	return false
}

// clear reports whether one that comes now would be next: nobody of its band or a higher one, and nobody aged, can be
// helped by this model.
func (g *gate) wouldBeHead(c *Controller, a *arrival, now time.Time) bool {
	if !g.hasWaiters() {
		return true
	}
	if f := g.queue.bands[a.band].flows[a.Tenant]; f != nil {
		return false
	}
	for b := bands - 1; b >= a.band; b-- {
		if w, _ := g.bandHead(b); w != nil {
			return false
		}
	}
	w, _ := g.agedHead(a.band, now.Add(-c.ageing))
	return w == nil
}

// served tells the order that w goes.
func (g *gate) recordAdmission(w *waiter, from *membership) {
	start := g.startTag(from, w.band)
	g.virtualTime[w.band] = start
	if from == nil {
		g.finishTags[w.band] = start + w.cost
	} else {
		from.finishTags[w.band] = start + w.cost
	}
	g.admissions++
	for b := w.band + 1; b < bands; b++ {
		if h, _ := g.bandHead(b); h != nil {
			g.admittedSinceAged, g.lastAged[w.band] = 0, g.admissions
			return
		}
	}
	g.admittedSinceAged = min(g.admittedSinceAged+1, agedEvery-1)
}

// passed tells the order that one went that had not to wait. Who waits in a lower band, for more tokens than that, has been passed.
func (g *gate) recordBypass(a *arrival) {
	if a.band > 0 && g.hasWaiters() {
		g.admittedSinceAged = min(g.admittedSinceAged+1, agedEvery-1)
	}
}

// note tells the pools whether there may be one more lease, after the leases or the limits have changed.
func (g *gate) reportFreeLease() {
	hasFreeLease := g.usage.hasFreeLease()
	if hasFreeLease == g.hasFreeLease {
		return
	}
	g.hasFreeLease = hasFreeLease
	for _, m := range g.memberships {
		if hasFreeLease {
			m.pool.gatesWithFreeLease++
		} else {
			m.pool.gatesWithFreeLease--
		}
	}
}

// room reports whether the model's own limits let the request go now.
func (g *gate) hasCapacity(a *arrival, now time.Time) bool {
	return a.SlotOnly || g.usage.hasFreeLease() && g.usage.bucket.wait(int64(a.Tokens), now) == 0
}

// passes reports whether the request can go now; if so it has its slot on a replica, and must go.
func (g *gate) reserve(a *arrival, now time.Time) bool {
	if g.closed || !g.hasCapacity(a, now) {
		return false
	}
	if a.Locked.ReserveSlot == nil {
		return true
	}
	_, ok := a.Locked.ReserveSlot(g.model)
	return ok
}

// arm sets the timer; 0 stops it.
func (g *gate) setTimer(c *Controller, wait time.Duration) {
	switch {
	case wait > 0 && g.timer == nil:
		g.timer = time.AfterFunc(wait, func() {
			c.mu.Lock()
			defer c.unlockAndRun()
			c.admitWaiters(g, time.Now())
		})
	case wait > 0:
		g.timer.Reset(wait)
	case g.timer != nil:
		g.timer.Stop()
	}
}

// idle reports whether a new gate would be just like this one.
func (g *gate) isIdle(now time.Time) bool {
	g.usage.bucket.refill(now)
	return g.usage.leases == 0 && g.usage.bucket.level == g.usage.bucket.size() && !g.inquiry.inFlight
}

// pump lets in whoever can go, in order.
func (c *Controller) admitWaiters(g *gate, now time.Time) {
	if g.closed {
		g.setTimer(c, 0)
		return
	}
	if c.shared != nil {
		c.sendInquiry(g, now)
		return
	}
	for {
		w, from := g.head(c, now)
		if w == nil {
			g.blockedOnTokens = nil
			g.setTimer(c, 0)
			return
		}
		if !g.reserve(&w.arrival, now) {
			g.blockHead(c, w, now)
			return
		}
		c.dequeue(w, true)
		g.recordAdmission(w, from)
		w.hasSlot = w.Locked.ReserveSlot != nil
		c.exemptAged(w, now)
		w.decide(c.acquireLease(g, w.tenant, &w.arrival, now), nil)
		if from != nil {
			c.admitUnblocked(from.pool, now)
		}
	}
}

// await waits for what the next in order lacks.
func (g *gate) blockHead(c *Controller, w *waiter, now time.Time) {
	wait := g.tokenWait(&w.arrival, now)
	if g.blockedOnTokens = nil; wait > 0 {
		g.blockedOnTokens = w
	}
	g.setTimer(c, wait)
	c.preemptIfBlocked(g, w, now)
}

// loosen reports whether the gate has waited for the tokens of one that has gone, perhaps to another model of its pool, and ends that.
func (g *gate) clearBlockedOnTokens() bool {
	if g.blockedOnTokens == nil || g.blockedOnTokens.state != stateDecided {
		return false
	}
	g.blockedOnTokens, g.inquiry.fewerTokensMayPass = nil, true
	return true
}

// unstick lets those gates of a pool go on.
func (c *Controller) admitUnblocked(p *pool, now time.Time) {
	for _, m := range p.memberships {
		if m.gate.clearBlockedOnTokens() {
			c.admitWaiters(m.gate, now)
		}
	}
}

// holds reports whether w is not to be asked about yet.
func (g *gate) isHeld(w *waiter, now time.Time) bool {
	g.clearBlockedOnTokens()
	return g.inquiry.isHeld(w, now)
}

// known is when the request can go if tokens, and nothing else that is known here, keep it waiting. Everything else announces itself.
func (g *gate) tokenWait(a *arrival, now time.Time) time.Duration {
	if a.SlotOnly || !g.usage.hasFreeLease() {
		return 0
	}
	return g.usage.bucket.wait(int64(a.Tokens), now)
}

// release takes w out of its queue, with all that it held by waiting.
func (c *Controller) dequeue(w *waiter, served bool) {
	w.queue.dequeue(w, served)
	c.countWaiter(w, -1)
}

// hold counts what w holds while it is neither running nor refused, or no longer.
func (c *Controller) countWaiter(w *waiter, n int) {
	w.tenant.countWaiter(w, n)
	c.waitingBytes += int64(n * w.Bytes)
}

// refuse ends the waiting of one that is in a queue.
func (c *Controller) refuse(w *waiter, err error) {
	c.dequeue(w, false)
	w.decide(nil, err)
}

// pumpQueue lets in from one queue: of a gate, or of a pool through all its gates.
func (c *Controller) admitFromQueue(q *queue, now time.Time) {
	if q.gate != nil {
		c.admitWaiters(q.gate, now)
		return
	}
	p := q.pool
	deferred := p.deferNewcomers
	p.deferNewcomers = true
	for _, m := range p.memberships {
		c.admitWaiters(m.gate, now)
	}
	if p.deferNewcomers = deferred; c.shared != nil {
		c.settleNewcomers(q, now)
	}
}

// welcome gives the tenant's parked flows another chance, in the order in which they were parked.
func (c *Controller) unparkFlows(t *tenant, now time.Time) {
	for n := t.parked.length; n > 0 && t.parked.cursor != nil; n-- {
		f := t.parked.cursor
		if t.isAtLimit(&f.waiters.first.arrival) {
			t.parked.cursor = f.next
			continue
		}
		q := f.waiters.first.queue
		t.unpark(f)
		f.band.addToRing(f)
		c.admitFromQueue(q, now)
	}
}
