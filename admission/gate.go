package admission

import "time"

// gate admits requests to one model. It knows what the model has granted (usage) and which requests
// wait (queue).
//
// A method that changes a gate is called with Controller.mu held and is followed by
// Controller.admitWaiters. This keeps the invariant that, whenever Controller.mu is free, the head
// waiter of every gate cannot be admitted.
type gate struct {
	model  string
	usage  usage
	queue  queue
	closed bool
	// memberships are the pools that the model belongs to. The gate serves their queues beside its
	// own.
	memberships []*membership
	// hasFreeLease is usage.hasFreeLease as it was last reported to the pools, which count the
	// gates that have one.
	hasFreeLease bool
	// finishTags and virtualTime are those of start-time fair queueing (Goyal, Vin and Cheng,
	// 1996). In each band they share the model by tokens between the gate's own queue and the
	// queues of its pools. The source with the smallest start tag is next.
	finishTags, virtualTime [bands]int64
	// admittedSinceAged counts admissions since an aged waiter of a lower band was admitted. It
	// stops at agedEvery-1. lastAged is the value of admissions at which an aged waiter of each
	// band was last admitted.
	admittedSinceAged int
	lastAged          [bands]uint64
	admissions        uint64
	pace              admissionPace
	// returns are the times at which callers were told that the model's tokens are there.
	returns returnTimes
	// timer fires when the tokens of the head waiter are there, or when the next inquiry may be
	// sent.
	timer *time.Timer
	// blockedOnTokens is the head waiter if it waits for tokens, else nil. If it is nil, or has
	// left, a later waiter that needs fewer tokens may be tried.
	blockedOnTokens *waiter
	inquiry         inquiry
	// preemptible holds the leases that a request of a higher band may preempt. preempted is the
	// lease that was preempted last, until it is released.
	preemptible [bands]preemptibleLeases
	preempted   *Lease
}

// canServe reports whether the model can ever serve the request.
func (g *gate) canServe(a *arrival) bool {
	return !g.closed && (a.Locked.Allowed == nil || a.Pool == "" || a.Locked.Allowed(g.model)) && a.fits(g.usage.limits.TokensPerMinute)
}

// bandHead returns the next waiter of a band and the membership of the pool that it comes from,
// which is nil for the gate's own queue.
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

// head returns the waiter to admit next and the pool membership that it comes from (nil for the
// gate's own queue). It returns nil if no waiter can use this model. Bands are strict, except that
// an aged waiter of a lower band is admitted once in agedEvery admissions.
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

// waiterCount is the number of waiters in the queues that the gate serves.
func (g *gate) waiterCount() int {
	n := g.queue.length
	for _, m := range g.memberships {
		n += m.pool.queue.length
	}
	return n
}

func (g *gate) hasWaiters() bool { return g.waiterCount() > 0 }

// agedEvery is the number of admissions of which an aged waiter of a lower band gets one.
const agedEvery = 8

// agedHead returns the waiter of a band below top that is admitted now because it has aged, or nil.
// The oldest waiter of its band must have arrived at since or before. Two such bands are served
// alternately.
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

// wouldBeHead reports whether a request that arrives now would be the head. It would be if this
// model can serve no waiter of its band or a higher one, and no aged waiter.
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

// recordAdmission updates the fair-queueing tags and the ageing counters after w was admitted.
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

// recordBypass updates the ageing counters after a request was admitted without waiting while
// requests of a lower band wait. They wait longer because of it, so it counts as an admission of a
// higher band.
func (g *gate) recordBypass(a *arrival) {
	if a.band > 0 && g.hasWaiters() {
		g.admittedSinceAged = min(g.admittedSinceAged+1, agedEvery-1)
	}
}

// reportFreeLease tells the pools if the gate gained its first free lease or lost its last. Call it
// after leases or limits have changed.
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

// hasCapacity reports whether the model's own limits allow the request now.
func (g *gate) hasCapacity(a *arrival, now time.Time) bool {
	return (!a.needsLease() || g.usage.hasFreeLease()) && a.waitFor(&g.usage.bucket, now) == 0
}

// reserve reports whether the request can be admitted now. If so, it has reserved a slot, and the
// caller must admit the request.
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

// setTimer starts the timer; a wait of 0 stops it.
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

// isIdle reports whether a new gate would be in the same state.
func (g *gate) isIdle(now time.Time) bool {
	g.usage.bucket.refill(now)
	return g.usage.leases == 0 && g.usage.bucket.level == g.usage.bucket.size() && !g.inquiry.inFlight
}

// admitWaiters admits waiters in order until the head cannot be admitted. With shared state it
// sends an inquiry instead.
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
		if w == nil || !g.reserve(&w.arrival, now) {
			var of *membership
			passing := g.reservePassing(w, now)
			if passing == nil {
				passing, of = g.reserveBehind(w, now)
			}
			if passing == nil {
				g.blockHead(c, w, now)
				return
			}
			w, from = passing, of
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

// reservePassing reserves a slot for a waiter under a task that may pass the head, and returns that
// waiter or nil. Such a waiter passes a head that waits for a lease. head is nil if the tenants of
// all other waiters are at a limit.
func (g *gate) reservePassing(head *waiter, now time.Time) *waiter {
	if head != nil && (!head.needsLease() || g.usage.hasFreeLease()) {
		return nil
	}
	for _, w := range g.queue.underTasks {
		if w != head && !w.tenant.isAtLimit(&w.arrival) && g.reserve(&w.arrival, now) {
			return w
		}
	}
	return nil
}

// holdsOut reports whether the waiter waits for a better replica than those that have a slot.
func (w *waiter) holdsOut() bool {
	return w != nil && w.Locked.HoldsOut != nil && w.Locked.HoldsOut()
}

// blockHead sets the timer for what the head waiter lacks, and preempts a lease for it if that
// helps. w is nil if there is no head.
func (g *gate) blockHead(c *Controller, w *waiter, now time.Time) {
	wait := time.Duration(0)
	if g.blockedOnTokens = nil; w != nil {
		wait = g.tokenWait(&w.arrival, now)
	}
	if wait > 0 {
		g.blockedOnTokens = w
	}
	g.setTimer(c, g.firstTokenWait(wait, now))
	if w == nil {
		return
	}
	c.preemptIfBlocked(g, w, now)
}

// firstTokenWait returns the shortest wait for tokens of the head, which is 0 if the head does not
// wait for tokens, and of the waiters under tasks.
func (g *gate) firstTokenWait(wait time.Duration, now time.Time) time.Duration {
	for _, w := range g.queue.underTasks {
		if own := w.waitFor(&g.usage.bucket, now); own > 0 && (wait == 0 || own < wait) {
			wait = own
		}
	}
	return wait
}

// lacksTokens reports whether the next waiter waits for tokens of the model.
func (g *gate) lacksTokens() bool {
	return g.blockedOnTokens != nil && g.blockedOnTokens.state != stateDecided
}

// clearBlockedOnTokens reports whether the waiter whose tokens the gate waits for has left, for
// example to another model of its pool, and if so stops waiting for them.
func (g *gate) clearBlockedOnTokens() bool {
	if g.blockedOnTokens == nil || g.blockedOnTokens.state != stateDecided {
		return false
	}
	g.blockedOnTokens, g.inquiry.fewerTokensMayPass = nil, true
	return true
}

// admitUnblocked admits waiters at those gates of a pool that no longer wait for tokens.
func (c *Controller) admitUnblocked(p *pool, now time.Time) {
	for _, m := range p.memberships {
		if m.gate.clearBlockedOnTokens() {
			c.admitWaiters(m.gate, now)
		}
	}
}

// isHeld reports whether w must not be part of an inquiry yet.
func (g *gate) isHeld(w *waiter, now time.Time) bool {
	g.clearBlockedOnTokens()
	return g.inquiry.isHeld(w, now)
}

// tokenWait is how long the tokens keep the request waiting, and 0 if anything else keeps it too.
// All other obstacles end with an event.
func (g *gate) tokenWait(a *arrival, now time.Time) time.Duration {
	if a.needsLease() && !g.usage.hasFreeLease() {
		return 0
	}
	return a.waitFor(&g.usage.bucket, now)
}

// dequeue removes w from its queue and from the sums of waiters.
func (c *Controller) dequeue(w *waiter, served bool) {
	w.queue.dequeue(w, served)
	c.countWaiter(w, -1)
}

// countWaiter counts w among the waiters of its tenant (n = 1), or uncounts it (n = -1).
func (c *Controller) countWaiter(w *waiter, n int) {
	w.tenant.countWaiter(w, n)
	if w.newcomer {
		c.newcomerBytes += int64(n * w.Bytes)
		return
	}
	c.waitingBytes += int64(n * w.Bytes)
}

// refuse removes a waiter from its queue and fails it with err.
func (c *Controller) refuse(w *waiter, err error) {
	c.dequeue(w, false)
	w.decide(nil, err)
}

// admitFromQueue admits waiters from one queue: that of a gate, or that of a pool at all its gates.
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

// unparkFlows tries the tenant's parked flows again, in the order in which they were parked.
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
