package admission

import (
	"context"
	"errors"
	"time"
)

// Admit returns a lease when the request may go on, and blocks until then. The caller must Release
// the lease.
//
// Admit fails at once with ErrUnknownModel, ErrNeverFits or *Refused. After a wait it fails with
// ErrTimeout, ErrRemoved, ErrClosed, *Refused (Evicted), or ctx.Err(). A failed request holds
// nothing and was charged nothing.
func (c *Controller) Admit(ctx context.Context, r Request) (*Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	lease, w, err := c.begin(r)
	if w == nil {
		return lease, err
	}
	return c.await(ctx, w)
}

// begin takes the lease of the request's key, and then admits the request, refuses it, or enqueues
// it. Exactly one of the results is not nil.
func (c *Controller) begin(r Request) (*Lease, *waiter, error) {
	a := newArrival(r)
	if r.APIKey != "" || r.UnderTask != "" {
		key, err := c.acquireKey(&r)
		if err != nil {
			return nil, nil, err
		}
		a.followKey(key)
	}
	lease, w, err := c.admitOrEnqueue(&a)
	if err != nil {
		c.undoKey(a.key)
	}
	return lease, w, err
}

// admitOrEnqueue admits the request, refuses it, or enqueues it. Exactly one of the results is not
// nil.
func (c *Controller) admitOrEnqueue(a *arrival) (*Lease, *waiter, error) {
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	c.lowerGuess(a)
	if err := c.findAccount(a, now); err != nil {
		return nil, nil, err
	}
	q, err := c.queueOf(a)
	if err != nil {
		return nil, nil, err
	}
	t := c.tenant(a.Tenant)
	if err := c.checkTenantLimits(q, t, a, now); err != nil {
		return nil, nil, err
	}
	if c.shared != nil {
		w, err := c.enqueueShared(q, t, a, now)
		return nil, w, err
	}
	if g := c.reserveDirectly(q, t, a, now); g != nil {
		g.recordBypass(a)
		return c.acquireLease(g, t, a, now), nil, nil
	}
	if a.noWait {
		return nil, nil, c.postponedError(q, t, a, now)
	}
	w, err := c.enqueue(q, t, a, now)
	if w != nil && w.state == stateDecided { // an older waiter was tried first, then this one
		return w.lease, nil, w.err
	}
	return nil, w, err
}

// queueOf returns the queue in which the request would wait. It fails if the request can never be
// served.
func (c *Controller) queueOf(a *arrival) (*queue, error) {
	if a.Pool == "" {
		g, ok := c.gates[a.Model]
		if !ok {
			return nil, ErrUnknownModel
		}
		if !a.fits(g.usage.limits.TokensPerMinute) {
			return nil, ErrNeverFits
		}
		return &g.queue, nil
	}
	p, ok := c.pools[a.Pool]
	if !ok || len(p.memberships) == 0 {
		return nil, ErrUnknownModel
	}
	allowed := false
	for _, m := range p.memberships {
		if m.gate.canServe(a) {
			return &p.queue, nil
		}
		allowed = allowed || a.Locked.Allowed == nil || a.Locked.Allowed(m.gate.model)
	}
	// If no model is allowed now, one may be later.
	if allowed || !p.fits(a) {
		return nil, ErrNeverFits
	}
	return &p.queue, nil
}

// lowerGuess lowers what was guessed of a request to what its tenant, and its model or the greatest
// of its pool, can ever have in a minute.
func (c *Controller) lowerGuess(a *arrival) {
	if a.Guessed <= 0 {
		return
	}
	a.lowerGuess(c.tenant(a.Tenant).limits.TokensPerMinute)
	if a.Pool == "" {
		if g, ok := c.gates[a.Model]; ok {
			a.lowerGuess(g.usage.limits.TokensPerMinute)
		}
	} else if p, ok := c.pools[a.Pool]; ok {
		a.lowerGuess(p.tokensPerMinute())
	}
}

// lowerGuessOfWaiter is lowerGuess for a waiter, after limits have fallen. The waiter keeps its
// cost, which its flow may have been charged already.
func (c *Controller) lowerGuessOfWaiter(w *waiter) {
	tokens, need, cost := w.Tokens, w.needTokens, w.cost
	if c.lowerGuess(&w.arrival); w.Tokens == tokens {
		return
	}
	w.cost = cost
	w.needTokens, _ = w.account.excess(int64(w.Tokens), 1)
	w.needTokens = min(w.needTokens, need)
	w.tenant.waitingTokens += w.needTokens - need
	if w.state == stateQueued || w.state == stateReturned {
		w.flow.tokens += w.needTokens - need
		w.flow.band.tokens += w.needTokens - need
	}
}

// checkTenantLimits returns why the tenant's own limits refuse the request. The tenant's waiters
// count as if they were running.
func (c *Controller) checkTenantLimits(q *queue, t *tenant, a *arrival, now time.Time) error {
	if a.Preempted || t.limits == (TenantLimits{}) {
		return nil
	}
	if !a.fits(t.limits.TokensPerMinute) {
		return ErrNeverFits
	}
	running := t.running
	if c.shared != nil {
		running -= t.tasks // other gateways may have ended them
	}
	if a.needsLease() && isReached(running+t.waiting, t.limits.MaxConcurrent) {
		return c.refusal(q, t, TenantStreams, now)
	}
	if c.shared != nil {
		return nil
	}
	if reason, wait := t.shortage(a, now); reason != Granted {
		return c.refusalUntil(t, reason, wait, now)
	}
	return nil
}

// reserveDirectly returns the gate that can admit the request without waiting, or nil. The request
// then has its slot there, so the caller must admit it.
func (c *Controller) reserveDirectly(q *queue, t *tenant, a *arrival, now time.Time) *gate {
	if t.isAtLimit(a) {
		return nil
	}
	if q.gate != nil {
		if (!a.needsLease() || q.gate.wouldBeHead(c, a, now)) && q.gate.reserve(a, now) {
			return q.gate
		}
		return nil
	}
	if f := q.bands[a.band].flows[t.name]; f != nil && f.parked || q.pool.gatesWithFreeLease == 0 {
		return nil
	}
	m := q.pool.pick(a.cost,
		func(g *gate) bool { return g.hasCapacity(a, now) && g.canServe(a) && g.wouldBeHead(c, a, now) },
		func(g *gate) bool { return g.reserve(a, now) })
	if m == nil {
		return nil
	}
	return m.gate
}

// enqueue makes the request wait, or returns why it may not.
func (c *Controller) enqueue(q *queue, t *tenant, a *arrival, now time.Time) (*waiter, error) {
	timeout := q.timeout(a.Timeout)
	if err := c.checkTokensInTime(q, a, timeout); err != nil {
		return nil, err
	}
	before := q.length
	if err := c.checkQueueRoom(q, t, a, now); err != nil {
		return nil, err
	}
	evicted := q.length < before
	w := newWaiter(a, q, t, now)
	q.enqueue(w)
	c.countWaiter(w, 1)
	headMayHaveChanged := evicted || a.Preempted // another waiter may be the head now
	for g := range q.gates {
		if !headMayHaveChanged && !g.canServe(&w.arrival) {
			continue // to find its head takes long if it can serve few of the waiters of a pool
		}
		switch head, _ := g.head(c, now); {
		case w.state == stateDecided:
		case head == w && g.waiterCount() == 1 && !a.Preempted: // reserveDirectly has just tried it
			g.blockHead(c, w, now)
		case head == w || headMayHaveChanged || head.holdsOut():
			c.admitWaiters(g, now)
		}
	}
	return w, nil
}

func newWaiter(a *arrival, q *queue, t *tenant, now time.Time) *waiter {
	timeout := q.timeout(a.Timeout)
	w := &waiter{arrival: *a, homeQueue: q, tenant: t, arrived: now, deadline: now.Add(timeout), done: make(chan struct{})}
	if a.WaitHandle != nil {
		a.WaitHandle.waiter = w
	}
	return w
}

// checkQueueRoom returns why the request may not wait. If it may, there is room for it: others were
// evicted.
func (c *Controller) checkQueueRoom(q *queue, t *tenant, a *arrival, now time.Time) error {
	if c.isClosedTo(a) {
		return ErrClosed
	}
	if a.Preempted {
		return nil
	}
	bytes := t.waitingBytes
	if !a.counted {
		bytes += int64(a.Bytes)
	}
	if t.limits.MaxQueueBytes > 0 && bytes > t.limits.MaxQueueBytes {
		return c.refusal(q, t, TenantBytes, now)
	}
	if !c.makeRoom(q, t, a, now) {
		return c.refusal(q, t, QueueFull, now)
	}
	return nil
}

// checkTokensInTime returns why the request would wait in vain for the model's tokens.
func (c *Controller) checkTokensInTime(q *queue, a *arrival, timeout time.Duration) error {
	ahead := int64(0)
	if f := q.bands[a.band].flows[a.Tenant]; f != nil {
		ahead = f.tokens
	}
	if q.gate != nil {
		return c.checkTokenWait(q.gate, a, ahead, timeout)
	}
	var best *Refused
	for _, m := range q.pool.memberships {
		if !m.gate.canServe(a) {
			continue
		}
		var late *Refused
		if !errors.As(c.checkTokenWait(m.gate, a, 0, timeout), &late) {
			return nil
		}
		if best == nil || late.RetryAfter < best.RetryAfter {
			best = late
		}
	}
	if best == nil {
		return nil
	}
	return best
}

// postponedError tells a request that does not wait when to try again.
func (c *Controller) postponedError(q *queue, t *tenant, a *arrival, now time.Time) error {
	return &Refused{Reason: ModelConcurrency, RetryAfter: c.postponement(q, a, now), Quota: c.quota(t, now)}
}

// gates yields the gates that serve the queue.
func (q *queue) gates(yield func(*gate) bool) {
	if q.gate != nil {
		yield(q.gate)
		return
	}
	for _, m := range q.pool.memberships {
		if !yield(m.gate) {
			return
		}
	}
}

// verdictPatience is how long a request waits for the verdict of the shared state before OnWait is
// called. While others of its model come and go, it may take several round trips.
const verdictPatience = 250 * time.Millisecond

// await blocks until w is decided, its deadline has passed, or ctx has ended.
func (c *Controller) await(ctx context.Context, w *waiter) (*Lease, error) {
	w.reportBlock()
	waits, late := w.mustWait, w.lateVerdict()
	if waits == nil {
		w.reportWait()
	}
	timer := time.NewTimer(time.Until(w.deadline))
	defer timer.Stop()
	for open := true; open; {
		select {
		case <-w.done:
			open = false
		case <-waits:
			waits = nil
			w.reportWait()
		case <-late:
			w.reportWait()
		case <-timer.C:
			c.cancelWaiter(w, ErrTimeout)
			open = false
		case <-ctx.Done():
			c.cancelWaiter(w, ctx.Err())
			open = false
		}
	}
	<-w.done
	if w.err != nil {
		c.undoKey(w.key)
	}
	// The waiter may have been admitted while cancelWaiter waited for the lock. After a timeout the
	// lease is welcome. A caller whose context has ended cannot use it.
	if err := ctx.Err(); err != nil && w.lease != nil {
		c.undoAdmission(w)
		return nil, err
	}
	return w.lease, w.err
}

// reportBlock calls OnBlock, once.
func (w *waiter) reportBlock() {
	if w.Unlocked.OnBlock != nil {
		w.Unlocked.OnBlock()
		w.Unlocked.OnBlock = nil
	}
}

// lateVerdict returns a channel that gets the time when the verdict of the shared state is late. It
// is nil if none is to come.
func (w *waiter) lateVerdict() <-chan time.Time {
	if w.mustWait == nil {
		return nil
	}
	return time.After(verdictPatience)
}

// reportWait calls OnWait, once.
func (w *waiter) reportWait() {
	if w.Unlocked.OnWait != nil {
		w.Unlocked.OnWait()
		w.Unlocked.OnWait = nil
	}
}

// cancelWaiter removes w from its queue. If w is part of an inquiry, its verdict is on the way. A
// waiter that has timed out still waits for the verdict. One whose context has ended does not.
func (c *Controller) cancelWaiter(w *waiter, err error) {
	c.mu.Lock()
	defer c.unlockAndRun()
	switch {
	case w.state == stateQueued || w.state == stateReturned:
		q := w.queue
		c.refuse(w, err)
		c.admitFromQueue(q, time.Now())
	case w.state == stateAsked && !errors.Is(err, ErrTimeout):
		w.cancelled = true
		c.countWaiter(w, -1)
		if w.hasSlot && w.Unlocked.ReleaseSlot != nil {
			c.afterUnlock = append(c.afterUnlock, w.Unlocked.ReleaseSlot)
		}
		w.hasSlot = false
		w.decide(nil, err)
	case w.state == stateAsked || w.state == stateDenied:
		w.cancelErr = err
	}
}

// undoAdmission takes back the admission of a waiter, with its charge.
func (c *Controller) undoAdmission(w *waiter) {
	if w.hasSlot && w.Unlocked.ReleaseSlot != nil {
		w.Unlocked.ReleaseSlot()
	}
	c.mu.Lock()
	defer c.unlockAndRun()
	c.endLease(w.lease, false)
}
