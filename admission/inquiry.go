package admission

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// maxInquiry is the maximum number of waiters in one inquiry.
	maxInquiry = 64
	// maxStaleVerdicts is how often in a row a waiter is asked about again at once because the
	// limits had changed.
	maxStaleVerdicts = 3
	// maxNewcomers is the maximum number of newcomers of a queue, beside those that wait. The
	// newcomers of all queues together hold no more than Config.MaxQueueBytes and one request.
	maxNewcomers = 4096
	// noWaitTimeout bounds the time of a newcomer that does not wait. A verdict comes within some
	// 100 ms.
	noWaitTimeout = 10 * time.Second

	// maxBusyTries is how often a request of a busy task is asked about again, which takes some 200
	// ms in all.
	maxBusyTries = 3

	minRetryWait = 25 * time.Millisecond
	maxRetryWait = 250 * time.Millisecond
)

// backoff gives the time until the next try, longer each time. Its zero value begins at
// minRetryWait.
type backoff struct{ tries uint }

func (b *backoff) next() time.Duration {
	wait := min(minRetryWait<<min(b.tries, 8), maxRetryWait)
	b.tries++
	return wait + rand.N(wait/4)
}

// inquiry is what a gate asks the shared state: one inquiry at a time, about the next waiters in
// order. It also remembers why the last one was denied, which holds back waiters from the next
// inquiry for a time.
type inquiry struct {
	// inFlight says that an inquiry about waiters has no answer yet.
	inFlight bool
	waiters  []*waiter
	// claims are what waiters asked for, in the same order.
	claims []Claim
	// freedInFlight and slotFreedInFlight say that a lease or a slot was released after the inquiry
	// was sent. The answer may not know of it.
	freedInFlight, slotFreedInFlight bool
	// batchSize is the number of waiters of the next inquiry. 0 means maxInquiry.
	batchSize int
	// Until heldUntil, waiters of band heldBand and below are held back for heldReason. Granted
	// means that none is.
	heldUntil  time.Time
	heldBand   int
	heldReason Reason
	// lackingTokens is what the denied waiter needed, if heldReason is ModelTokens.
	// fewerTokensMayPass lets waiters pass that need fewer, because that waiter has left.
	lackingTokens      int64
	fewerTokensMayPass bool
	// nobodyPasses says that a waiter that passed the hold was denied, too.
	nobodyPasses bool
	// backoff is for reasons that end at an unknown time.
	backoff backoff
	// remoteLeases is the number of leases of other gateways, as last seen at remoteSeenAt.
	remoteLeases int
	remoteSeenAt time.Time
}

// remoteMemory is how long this gateway, while it decides alone, leaves room for the leases of
// other gateways that it last saw. It is as long as the leases of a gateway that was killed count
// by default. After that each gateway has its share, whatever it held before.
const remoteMemory = 75 * time.Second

// seeRemote records how many leases of the model there are over all gateways; own are those of this
// gateway. 0 or less means that the answer did not say.
func (i *inquiry) seeRemote(all, own int, now time.Time) {
	if all > 0 {
		i.remoteLeases, i.remoteSeenAt = max(all-own, 0), now
	}
}

// remembersRemote returns remoteLeases, or 0 if they were seen too long ago.
func (i *inquiry) remembersRemote(now time.Time) int {
	if now.Sub(i.remoteSeenAt) >= remoteMemory {
		return 0
	}
	return i.remoteLeases
}

func (i *inquiry) isHeld(w *waiter, now time.Time) bool {
	return i.heldReason != Granted && w.band <= i.heldBand && now.Before(i.heldUntil) && !i.mayPass(&w.arrival)
}

// hold holds back waiters for a reason, and reports whether it did. Of several reasons in one
// answer the first counts.
func (i *inquiry) hold(reason Reason, band int, now time.Time, wait time.Duration) bool {
	if i.heldReason == Granted || band > i.heldBand || !now.Before(i.heldUntil) || i.fewerTokensMayPass && reason == ModelTokens {
		i.heldReason, i.heldBand, i.heldUntil, i.fewerTokensMayPass, i.nobodyPasses = reason, band, now.Add(wait), false, false
		return true
	}
	return false
}

// holdAll holds back all waiters, also those that may pass a hold. It is for a waiter that has
// passed the hold and was denied for another reason. It would otherwise be asked about again and
// again, without a pause.
func (i *inquiry) holdAll(reason Reason, now time.Time) {
	i.heldReason, i.heldBand, i.heldUntil = reason, bands-1, now.Add(i.backoff.next())
	i.fewerTokensMayPass, i.nobodyPasses = false, true
}

// passedHold reports whether a waiter that was denied for the model or its replica may be asked
// about again at once, although no event has changed anything.
func (i *inquiry) passedHold(w *waiter, r Reason, now time.Time) bool {
	switch r {
	case ModelConcurrency, ModelTokens:
		return !i.isHeld(w, now)
	case ReplicaFull:
		return w.slot.OnFull == nil && !i.isHeld(w, now)
	}
	return false
}

// clearHold holds back nobody, so that the next inquiry is sent at once.
func (i *inquiry) clearHold() { i.heldReason = Granted }

// onSlotFreed clears the hold after a slot of a replica was released.
func (i *inquiry) onSlotFreed() {
	i.slotFreedInFlight = i.inFlight
	if i.heldReason == ReplicaFull {
		i.clearHold()
	}
}

// onLeaseReleased clears the hold after a lease was released.
func (i *inquiry) onLeaseReleased() {
	i.freedInFlight = i.inFlight
	if i.heldReason != ModelTokens {
		i.clearHold()
	}
}

// finish ends the inquiry. It clears the hold if the answer may not know of a lease or slot that
// was released.
func (i *inquiry) finish() {
	if i.freedInFlight && i.heldReason == ModelConcurrency || (i.freedInFlight || i.slotFreedInFlight) && i.heldReason == ReplicaFull {
		i.clearHold()
	}
	i.inFlight, i.waiters, i.claims, i.freedInFlight, i.slotFreedInFlight = false, nil, nil, false, false
}

// outdated reports whether the limits in the n-th claim are no longer in force.
func (i *inquiry) outdated(n int, g *gate) bool {
	return i.claims[n].Limits != g.usage.limits || i.claims[n].TenantLimits != i.waiters[n].tenant.limits
}

// mayPass reports whether the hold is only for requests that need more tokens than a, or a lease
// that a does not need.
func (i *inquiry) mayPass(a *arrival) bool {
	switch {
	case i.nobodyPasses:
		return false
	case i.heldReason == ModelConcurrency:
		return !a.needsLease()
	case i.heldReason == ModelTokens:
		return i.fewerTokensMayPass && a.needTokens < i.lackingTokens || !a.needsLease() && a.needTokens == 0
	}
	return false
}

// tokenWait is how long the model's tokens are known to be missing for a.
func (i *inquiry) tokenWait(a *arrival, now time.Time) time.Duration {
	if i.heldReason != ModelTokens || i.mayPass(a) {
		return 0
	}
	return max(i.heldUntil.Sub(now), 0)
}

// waiting returns the number of the inquiry's waiters that are no newcomers, and the sum of their
// Request.Bytes.
func (i *inquiry) waiting() (n int, bytes int64) {
	for _, w := range i.waiters {
		if !w.newcomer && !w.cancelled {
			n++
			bytes += int64(w.Bytes)
		}
	}
	return n, bytes
}

// enqueueShared enqueues a request as a newcomer. It waits only if the answer of the shared state
// makes it.
func (c *Controller) enqueueShared(q *queue, t *tenant, a *arrival, now time.Time) (*waiter, error) {
	if t.isDenied(a) && !a.Preempted {
		return nil, c.refusalUntil(t, t.deniedReason, t.deniedUntil.Sub(now), now)
	}
	if !a.Preempted && (len(q.newcomers) >= maxNewcomers || c.newcomerBytes >= c.maxQueueBytes) {
		return nil, c.refusal(q, t, QueueFull, now)
	}
	w := newWaiter(a, q, t, now)
	if a.noWait {
		w.deadline = now.Add(noWaitTimeout)
	}
	w.counted, w.newcomer, w.mustWait = true, true, make(chan struct{})
	c.countWaiter(w, 1)
	if w.id = a.leaseID; w.id == "" {
		w.id = c.newLeaseID()
	}
	if q.gate != nil {
		q.enqueue(w)
		c.admitWaiters(q.gate, now)
	} else {
		c.enqueueAtMember(w, now)
	}
	return w, nil
}

// enqueueAtMember enqueues a newcomer of a pool at the model that the pool picks. If no model can
// be asked now, it enqueues it at the pool.
func (c *Controller) enqueueAtMember(w *waiter, now time.Time) {
	p := w.homeQueue.pool
	m := p.pick(w.cost, func(g *gate) bool {
		if slices.Contains(w.triedGates, g) {
			return false
		}
		return g.canServe(&w.arrival) && !g.isHeld(w, now) && p.queue.bands[w.band].flows[w.Tenant] == nil &&
			(g.inquiry.inFlight || g.wouldBeHead(c, &w.arrival, now))
	}, func(*gate) bool { return true })
	if m == nil {
		p.queue.enqueue(w)
		c.admitFromQueue(&p.queue, now)
		return
	}
	w.triedGates = append(w.triedGates, m.gate)
	m.gate.queue.enqueue(w)
	c.admitWaiters(m.gate, now)
}

// sendInquiry asks about the next waiters of a gate, unless an inquiry is in flight.
func (c *Controller) sendInquiry(g *gate, now time.Time) {
	if g.inquiry.inFlight {
		return
	}
	batch, wait := c.collectBatch(g, now)
	g.setTimer(c, wait)
	if len(batch) == 0 {
		c.settleNewcomers(&g.queue, now)
		for _, m := range g.memberships {
			c.settleNewcomers(&m.pool.queue, now)
		}
		if g.clearBlockedOnTokens() {
			c.admitWaiters(g, now)
		}
		for _, m := range g.memberships {
			c.admitUnblocked(m.pool, now)
		}
		return
	}
	claims := make([]Claim, len(batch))
	g.inquiry.inFlight, g.inquiry.waiters, g.inquiry.claims = true, batch, claims
	for i, w := range batch {
		claims[i] = c.claimForWaiter(g, w)
	}
	c.afterUnlock = append(c.afterUnlock, func() {
		c.shared.Acquire(claims, func(verdicts []Verdict) { c.applyVerdicts(g, batch, verdicts) })
	})
}

// collectBatch dequeues the waiters of the next inquiry, each with a slot on a replica. If the head
// is held back, the second result is for how long.
func (c *Controller) collectBatch(g *gate, now time.Time) ([]*waiter, time.Duration) {
	g.inquiry.batchSize = cmp.Or(g.inquiry.batchSize, maxInquiry)
	var batch []*waiter
	for len(batch) < g.inquiry.batchSize {
		w, from := g.head(c, now)
		if w == nil || g.isHeld(w, now) {
			if passing := g.unheldPassing(w, now); passing != nil {
				w, from = passing, nil
			}
		}
		if w == nil {
			break
		}
		if g.isHeld(w, now) {
			if g.inquiry.heldReason == ModelTokens {
				g.blockedOnTokens = w
			}
			c.preemptIfHeld(g, w)
			return batch, g.inquiry.heldUntil.Sub(now)
		}
		next, of := c.reserveNext(g, w, now)
		if next == nil {
			break
		}
		if next != w {
			w, from = next, of
		}
		if w.state != stateReturned {
			g.recordAdmission(w, from)
		}
		w.queue.dequeue(w, true)
		w.state = stateAsked
		batch = append(batch, w)
	}
	return batch, 0
}

// reserveNext returns the head if it has a slot now or needs none. If the head holds out, it
// returns a waiter behind it that has a slot, with its membership. Otherwise it returns nil.
func (c *Controller) reserveNext(g *gate, head *waiter, now time.Time) (*waiter, *membership) {
	if head.Locked.ReserveSlot == nil || head.reserveSlot(g) {
		return head, nil
	}
	if !head.holdsOut() {
		c.preemptFor(g, head, true)
		return nil, nil
	}
	return g.behind(head, func(w *waiter) bool { return w.Locked.ReserveSlot != nil && !g.isHeld(w, now) && w.reserveSlot(g) })
}

// reserveSlot reserves a slot for the waiter, and reports whether it found one.
func (w *waiter) reserveSlot(g *gate) bool {
	w.slot, w.hasSlot = w.Locked.ReserveSlot(g.model)
	return w.hasSlot
}

// unheldPassing is reservePassing for an inquiry. head is held back, or nil.
func (g *gate) unheldPassing(head *waiter, now time.Time) *waiter {
	if head != nil && g.inquiry.heldReason != ModelConcurrency {
		return nil
	}
	for _, w := range g.queue.underTasks {
		if w != head && !w.tenant.isAtLimit(&w.arrival) && !g.isHeld(w, now) {
			return w
		}
	}
	return nil
}

func (c *Controller) claimForWaiter(g *gate, w *waiter) Claim {
	return Claim{
		ID: w.id, Model: g.model, Tenant: w.Tenant, Limits: g.usage.limits, TenantLimits: w.tenant.limits, Tokens: int64(w.Tokens),
		Prefill: w.Prefill, Replica: w.slot.Replica, ReplicaLimit: w.slot.Limit, Task: w.task, UnderTask: w.UnderTask,
	}
}

// claimForLease is what a lease holds that was granted without the shared state.
func (c *Controller) claimForLease(l *Lease, task *TaskClaim, tokens int) Claim {
	return Claim{
		ID: l.id, Model: l.gate.model, Tenant: l.tenant.name, Limits: l.gate.usage.limits, TenantLimits: l.tenant.limits,
		Tokens: int64(tokens), Prefill: l.prefill, Replica: l.replica, Task: task, UnderTask: l.underTask,
	}
}

// settleNewcomers makes newcomers wait that the first answer did not admit. It does nothing while
// an answer about them may still come.
func (c *Controller) settleNewcomers(q *queue, now time.Time) {
	if len(q.newcomers) == 0 || q.pool != nil && q.pool.deferNewcomers {
		return
	}
	for g := range q.gates {
		if g.inquiry.inFlight {
			return
		}
	}
	for len(q.newcomers) > 0 {
		w := q.newcomers[0]
		if w.homeQueue != q {
			q.dequeue(w, false)
			c.enqueueAtMember(w, now)
			continue
		}
		if err := c.checkNewcomer(q, w, now); err != nil {
			c.refuse(w, err)
			continue
		}
		q.newcomers = q.newcomers[1:]
		c.countWaiter(w, -1)
		w.newcomer = false
		c.countWaiter(w, 1)
		close(w.mustWait)
	}
}

// checkNewcomer returns why a newcomer may not wait.
func (c *Controller) checkNewcomer(q *queue, w *waiter, now time.Time) error {
	t := w.tenant
	if w.Preempted {
		return c.checkQueueRoom(q, t, &w.arrival, now)
	}
	if t.isDenied(&w.arrival) {
		return c.refusalUntil(t, t.deniedReason, t.deniedUntil.Sub(now), now)
	}
	if g := q.gate; g != nil && !w.noWait && g.isHeld(w, now) && now.Add(g.inquiry.tokenWait(&w.arrival, now)).After(w.deadline) {
		return &Refused{Reason: ModelTokens, RetryAfter: g.returns.reserve(g.inquiry.tokenWait(&w.arrival, now), now), Quota: c.quota(t, now)}
	}
	if w.noWait {
		return c.postponedError(q, t, &w.arrival, now)
	}
	return c.checkQueueRoom(q, t, &w.arrival, now)
}

// sharedSubscriber passes what happens at other gateways to the Controller.
type sharedSubscriber struct{ c *Controller }

// CapacityFreed implements Subscriber.
func (l sharedSubscriber) CapacityFreed(model string) {
	l.c.mu.Lock()
	defer l.c.unlockAndRun()
	if g, ok := l.c.gates[model]; ok {
		g.inquiry.clearHold() // tokens may have come back too
		l.c.admitWaiters(g, time.Now())
	}
}

// TokensServed implements Subscriber. It charges what a tenant got at other gateways to its flows
// here, so that a tenant with many gateways gets no larger share.
func (l sharedSubscriber) TokensServed(model, tenant string, tokens int64) {
	l.c.mu.Lock()
	defer l.c.unlockAndRun()
	g, ok := l.c.gates[model]
	if !ok || tokens <= 0 {
		return
	}
	for b := range g.queue.bands {
		if f := g.queue.bands[b].flows[tenant]; f != nil {
			f.deficit = max(f.deficit-min(tokens, f.maxDeficit()), -f.maxDeficit())
		}
	}
}

// task returns the task with this id; nil: this gateway has none.
func (l sharedSubscriber) task(id string) *task {
	l.c.mu.Lock()
	defer l.c.unlockAndRun()
	return l.c.tasks.byID[id]
}

// TaskEnded implements Subscriber.
func (l sharedSubscriber) TaskEnded(id string) {
	c := l.c
	if !c.beginTaskCall() {
		return
	}
	defer c.tasks.calls.Done()
	if t := l.task(id); t == nil || !c.endLocalTask(t.Tenant, id, -1, true) {
		return
	}
	// If this fails, a restart brings the task back until its lease expires.
	_ = c.taskJournal.append(c, journalEntry{Op: opEnd, Task: Task{ID: id}})
}

// TaskRenewed implements Subscriber. Without it, this gateway would fail the requests of the task
// that wait here as soon as the earlier lease of the task ends.
func (l sharedSubscriber) TaskRenewed(id string, lease time.Duration) {
	c := l.c
	if !c.beginTaskCall() {
		return
	}
	defer c.tasks.calls.Done()
	t := l.task(id)
	if t == nil {
		return
	}
	if renewed, ok := c.renewLocalTask(t.Tenant, id, lease); ok {
		// If this fails, a restart brings the task back with its earlier lease.
		_ = c.taskJournal.append(c, journalEntry{Op: opRenew, Task: renewed})
	}
}
