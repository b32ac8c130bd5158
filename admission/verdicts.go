package admission

import (
	"slices"
	"time"
)

// applyVerdicts handles the answer to an inquiry. It admits what was granted and records denials
// under one lock, gives back the slots of denied waiters without it, and then requeues them. A
// goroutine of Shared calls it.
func (c *Controller) applyVerdicts(g *gate, batch []*waiter, verdicts []Verdict) {
	for _, unplace := range c.admitGranted(g, batch, verdicts) {
		unplace()
	}
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	denied := c.recordDenials(g, batch, verdicts, now)
	pools := c.requeueDenied(denied)
	g.inquiry.finish()
	if granted := len(batch) - len(denied); granted == len(batch) {
		g.inquiry.batchSize = min(2*g.inquiry.batchSize, maxInquiry)
	} else {
		g.inquiry.batchSize = max(granted, 1)
	}
	for _, p := range pools {
		p.deferNewcomers = true
	}
	c.admitWaiters(g, now)
	for _, p := range pools {
		p.deferNewcomers = false
		c.admitFromQueue(&p.queue, now)
	}
	for _, m := range g.memberships { // whose head may have been admitted by this model
		c.admitUnblocked(m.pool, now)
	}
	c.settleNewcomers(&g.queue, now)
}

// admitGranted admits the waiters that were granted, and returns the calls that give back the slots
// of the others. A verdict that the shared state could not give is replaced by this gateway's own.
func (c *Controller) admitGranted(g *gate, batch []*waiter, verdicts []Verdict) []func() {
	gateways := max(c.shared.Gateways(), 1)
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	c.setGateways(gateways, now)
	var unplaces []func()
	for i, w := range batch {
		v := &verdicts[i]
		if v.Reason == Unavailable && !w.cancelled {
			*v = c.decideAlone(g, w, now)
		} else if v.Reason.isLimit() && g.inquiry.outdated(i, g) {
			v.Reason = Stale
		}
		switch {
		case v.Reason == Granted && v.Task != nil && !w.cancelled:
			c.countWaiter(w, -1)
			w.foundTask = v.Task
			w.decide(nil, nil)
		case v.Reason == Granted && v.Task == nil && w.cancelled:
			id, tokens := w.id, int64(w.Tokens)
			c.afterUnlock = append(c.afterUnlock, func() { c.shared.Release(id, tokens, true) })
		case v.Reason == Granted && !w.cancelled:
			c.admitWaiter(g, w, v, now)
		case w.cancelled:
		default:
			w.state = stateDenied
			if full := w.slot.OnFull; full != nil && v.Reason == ReplicaFull {
				unplaces = append(unplaces, full)
			}
			if w.hasSlot && w.Unlocked.ReleaseSlot != nil {
				unplaces = append(unplaces, w.Unlocked.ReleaseSlot)
			}
			w.hasSlot = false
		}
	}
	return unplaces
}

// setGateways sets how many gateways share the limits.
func (c *Controller) setGateways(gateways int, now time.Time) {
	if gateways == c.gateways {
		return
	}
	c.gateways = gateways
	for _, g := range c.gates {
		g.usage.bucket.resize(c.shareOf(g.usage.limits.TokensPerMinute), now)
	}
	for _, t := range c.tenants {
		t.setLimits(t.limits, c.shareOf, now)
	}
}

// admitWaiter admits a waiter that was granted. This gateway counts its lease whatever its own
// limits say.
func (c *Controller) admitWaiter(g *gate, w *waiter, v *Verdict, now time.Time) {
	c.countWaiter(w, -1)
	t := w.tenant
	if !w.grantedAlone {
		t.setSharedQuota(v.Quota, now)
		g.inquiry.backoff, t.backoff = backoff{}, backoff{}
	} else {
		t.sharedQuota = sharedQuota{}
	}
	c.exemptAged(w, now)
	l := c.acquireLease(g, t, &w.arrival, now)
	l.id, l.grantedAlone = w.id, w.grantedAlone
	if !l.grantedAlone {
		l.forgiveDebt()
	}
	c.setReplica(l, w.slot.Replica)
	if w.grantedAlone {
		claim := c.claimForLease(l, w.task, w.Tokens)
		claim.ReplicaLimit = w.slot.Limit
		c.shared.ReportLease(claim)
	} else {
		g.inquiry.seeRemote(v.ModelInUse, g.usage.leases, now)
	}
	w.decide(l, nil)
}

// forgiveDebt ends the debt of this gateway's own buckets after the shared state has granted a
// lease. They hold only its part of the limits, which such grants may exceed. While the shared
// state does not answer, the tenant would wait until that debt is paid.
func (l *Lease) forgiveDebt() {
	for _, b := range []*bucket{&l.gate.usage.bucket, &l.tenant.tokens, &l.tenant.requests} {
		b.forgive()
	}
}

// decideAlone is this gateway's own verdict while the shared state does not answer. It uses its
// part of every limit, and of the model's concurrency no more than the other gateways were lately
// seen to leave. A repeated call finds the task of the first if this gateway has admitted it.
func (c *Controller) decideAlone(g *gate, w *waiter, now time.Time) Verdict {
	t := w.tenant
	t.sharedQuota = sharedQuota{}
	if w.task != nil {
		if earlier := c.tasks.findByKey(w.Tenant, w.task.Key, now); earlier != nil {
			found := earlier.Task
			return Verdict{Reason: Granted, Task: &found}
		}
	}
	reason, wait := c.localVerdict(g, w, now)
	w.grantedAlone = reason == Granted
	if reason == ModelTokens && !w.Preempted && !c.fitsAlone(w) {
		w.cancelErr = &Refused{Reason: ModelTokens, RetryAfter: spread(wait), Quota: t.localQuota(now)}
	}
	return Verdict{Reason: reason, Wait: wait, Quota: t.localQuota(now)}
}

// fitsAlone reports whether this gateway's part of a model's tokens can ever hold what the waiter
// needs.
func (c *Controller) fitsAlone(w *waiter) bool {
	for g := range w.homeQueue.gates {
		if g.canServe(&w.arrival) && w.fits(c.shareOf(g.usage.limits.TokensPerMinute)) {
			return true
		}
	}
	return false
}

func (c *Controller) localVerdict(g *gate, w *waiter, now time.Time) (Reason, time.Duration) {
	t := w.tenant
	if w.account != nil && w.account.ended {
		return TaskEnded, 0
	}
	if wait := t.requests.wait(w.needRequests, now); w.needRequests > 0 && wait > 0 {
		return TenantRequests, wait
	}
	if wait := w.waitFor(&t.tokens, now); wait > 0 {
		return TenantTokens, wait
	}
	limits := g.usage.limits
	concurrent := c.shareOf(limits.MaxConcurrent)
	if concurrent > 0 {
		concurrent = max(min(concurrent, limits.MaxConcurrent-g.inquiry.remembersRemote(now)), 1)
	}
	switch {
	case w.needsLease() && isReached(t.running, c.shareOf(t.limits.MaxConcurrent)):
		return TenantStreams, 0
	case w.Prefill && isReached(t.prefill, c.shareOf(t.limits.MaxPrefill)):
		return TenantPrefill, 0
	case w.needsLease() && isReached(g.usage.leases, concurrent):
		return ModelConcurrency, 0
	case w.slot.Replica != "" && isReached(c.replicaLeases[w.slot.Replica], c.shareOf(w.slot.Limit)):
		return ReplicaFull, 0
	}
	if wait := w.waitFor(&g.usage.bucket, now); wait > 0 {
		return ModelTokens, wait
	}
	return Granted, 0
}

// recordDenials records why waiters were denied, fails those that may not wait for it, and returns
// the others.
func (c *Controller) recordDenials(g *gate, batch []*waiter, verdicts []Verdict, now time.Time) []*waiter {
	var denied []*waiter
	var pause time.Duration // one step of the backoff for each answer
	for i, w := range batch {
		if w.state == stateDenied && c.recordDenial(g, w, &verdicts[i], &pause, now) {
			denied = append(denied, w)
		}
	}
	return denied
}

// recordDenial records why a waiter was denied, and reports whether the waiter goes on waiting in
// its place. pause is the backoff of the gate, which the first denial that needs it sets.
func (c *Controller) recordDenial(g *gate, w *waiter, v *Verdict, pause *time.Duration, now time.Time) bool {
	switch v.Reason {
	case ModelConcurrency, ReplicaFull:
		if v.Reason == ReplicaFull && w.slot.OnFull != nil {
			break // ReserveSlot knows it now, and finds another replica or none
		}
		if *pause == 0 {
			*pause = g.inquiry.backoff.next()
		}
		if g.inquiry.hold(v.Reason, bands-1, now, *pause) {
			g.blockedOnTokens = nil
		}
	case ModelTokens:
		if g.inquiry.hold(v.Reason, w.band, now, max(v.Wait, time.Millisecond)) {
			g.blockedOnTokens, g.inquiry.lackingTokens = w, w.needTokens
		}
	case TaskEnded, TaskBusy:
		if v.Reason == TaskBusy && w.busy.tries < maxBusyTries {
			c.askAgain(g, w, v)
			return false
		}
		c.fail(w, v.Reason.fails())
		return false
	case Stale:
		if w.staleVerdicts++; w.staleVerdicts > maxStaleVerdicts {
			w.staleVerdicts = 0
			g.inquiry.hold(v.Reason, bands-1, now, minRetryWait)
		}
	default:
		if c.recordTenantDenial(w, v, now) {
			return false
		}
	}
	if g.inquiry.passedHold(w, v.Reason, now) {
		g.inquiry.holdAll(v.Reason, now)
		g.blockedOnTokens = nil
	}
	if v.Reason != Stale {
		w.staleVerdicts = 0
	}
	g.inquiry.seeRemote(v.ModelInUse, g.usage.leases, now)
	if err := c.endOfWait(g, w, v, now); err != nil {
		c.fail(w, err)
		return false
	}
	return true
}

// fail ends the waiting of a waiter that was denied.
func (c *Controller) fail(w *waiter, err error) {
	c.countWaiter(w, -1)
	w.decide(nil, err)
}

// askAgain requeues a waiter of a task that was busy, after a pause. The request of the task before
// it may have ended at another gateway, whose release is still on its way to the shared state.
func (c *Controller) askAgain(g *gate, w *waiter, v *Verdict) {
	time.AfterFunc(w.busy.next(), func() {
		c.mu.Lock()
		defer c.unlockAndRun()
		now := time.Now()
		if err := c.endOfWait(g, w, v, now); err != nil {
			c.fail(w, err)
			return
		}
		w.homeQueue.requeue(w, !w.tenant.isAtLimit(&w.arrival))
		c.admitFromQueue(w.homeQueue, now)
	})
}

// recordTenantDenial records that the tenant is at a limit. A newcomer is refused, except for the
// limit of prefill. It reports whether it refused the waiter.
func (c *Controller) recordTenantDenial(w *waiter, v *Verdict, now time.Time) bool {
	t := w.tenant
	t.setSharedQuota(v.Quota, now)
	wait := v.Wait
	if w.newcomer && !w.Preempted && v.Reason != TenantPrefill {
		err := c.refusal(w.homeQueue, t, v.Reason, now)
		if wait > 0 {
			err.RetryAfter = t.returns.reserve(wait, now)
		}
		c.fail(w, err)
		return true
	}
	if wait <= 0 {
		wait = t.backoff.next()
	}
	t.deniedReason, t.deniedUntil = v.Reason, now.Add(wait)
	if t.deniedTimer == nil {
		t.deniedTimer = time.AfterFunc(wait, func() {
			c.mu.Lock()
			defer c.unlockAndRun()
			t.deniedReason = Granted
			c.unparkFlows(t, time.Now())
		})
	} else {
		t.deniedTimer.Reset(wait)
	}
	return false
}

// endOfWait returns why a waiter that was denied stops waiting, or nil.
func (c *Controller) endOfWait(g *gate, w *waiter, v *Verdict, now time.Time) error {
	switch {
	case w == g.blockedOnTokens && w.newcomer && !w.noWait && !w.Preempted && w.homeQueue.gate != nil &&
		v.Reason == ModelTokens && now.Add(v.Wait).After(w.deadline):
		return &Refused{Reason: ModelTokens, RetryAfter: g.returns.reserve(v.Wait, now), Quota: v.Quota}
	case w.cancelErr != nil:
		return w.cancelErr
	case c.isClosedTo(&w.arrival):
		return ErrClosed
	case w.homeQueue.gate != nil && g.closed, w.homeQueue.pool != nil && len(w.homeQueue.pool.memberships) == 0:
		return ErrRemoved
	}
	if c.lowerGuessOfWaiter(w); w.neverFits() {
		return ErrNeverFits
	}
	return nil
}

// neverFits reports whether limits fell below what the waiter needs while an inquiry about it was
// on its way.
func (w *waiter) neverFits() bool {
	if p := w.homeQueue.pool; p != nil && !p.fits(&w.arrival) {
		return true
	}
	if g := w.homeQueue.gate; g != nil && !w.fits(g.usage.limits.TokensPerMinute) {
		return true
	}
	return !w.fits(w.tenant.limits.TokensPerMinute)
}

// requeueDenied puts denied waiters back to the front of their queues, in their order, and returns
// the pools among these.
func (c *Controller) requeueDenied(denied []*waiter) []*pool {
	var pools []*pool
	for _, w := range slices.Backward(denied) {
		if p := w.homeQueue.pool; p != nil && !slices.Contains(pools, p) {
			pools = append(pools, p)
		}
		w.homeQueue.requeue(w, !w.tenant.isAtLimit(&w.arrival))
	}
	return pools
}
