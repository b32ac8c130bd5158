package admission

import (
	"context"
	"errors"
	"time"
)

// Admit returns a lease when the request may go on, and blocks until then. The caller must Release the lease.
//
// It fails at once with ErrUnknownModel, ErrNeverFits, or *Refused; after a wait with ErrTimeout, ErrRemoved, *Refused
// (Evicted), or ctx.Err(). A failed request has taken nothing: no concurrency, no tokens, no slot.
func (c *Controller) Admit(ctx context.Context, r Request) (*Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a := newArrival(r)
	lease, w, err := c.enter(&a)
	if w == nil {
		return lease, err
	}
	return c.wait(ctx, w)
}

// enter admits the request, refuses it, or puts it in a queue: one of the three results is not nil.
func (c *Controller) enter(a *arrival) (*Lease, *waiter, error) {
	c.mu.Lock()
	defer c.unlock()
	q, err := c.queueOf(a)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	t := c.tenant(a.Tenant)
	if err := c.bounded(q, t, a, now); err != nil {
		return nil, nil, err
	}
	if c.shared != nil {
		w, err := c.bring(q, t, a, now)
		return nil, w, err
	}
	if g := c.direct(q, t, a, now); g != nil {
		g.passed(a)
		return c.lease(g, t, a, now), nil, nil
	}
	if a.once {
		return nil, nil, c.postponed(q, t, a, now)
	}
	w, err := c.enqueue(q, t, a, now)
	if w != nil && w.state == decided { // it was its turn before those who wait
		return w.lease, nil, w.err
	}
	return nil, w, err
}

// queueOf finds where the request would wait, if it is there at all and can ever be served.
func (c *Controller) queueOf(a *arrival) (*queue, error) {
	if a.Pool == "" {
		g, ok := c.gates[a.Model]
		if !ok {
			return nil, ErrUnknownModel
		}
		if !a.Admitted && !g.book.fits(a.Tokens) {
			return nil, ErrNeverFits
		}
		return &g.queue, nil
	}
	p, ok := c.pools[a.Pool]
	if !ok || len(p.members) == 0 {
		return nil, ErrUnknownModel
	}
	allowed := false
	for _, m := range p.members {
		if m.gate.takes(a) {
			return &p.queue, nil
		}
		allowed = allowed || a.Allowed == nil || a.Allowed(m.gate.model)
	}
	// Where no model is allowed now, one may be later.
	if allowed || !a.Admitted && !p.fits(a.Tokens) {
		return nil, ErrNeverFits
	}
	return &p.queue, nil
}

// bounded says why the tenant's own limits refuse the request, with all that waits of the tenant counted as if it ran.
func (c *Controller) bounded(q *queue, t *tenant, a *arrival, now time.Time) error {
	if a.Admitted || a.Preempted || t.limits == (TenantLimits{}) {
		return nil
	}
	if !fits(a.Tokens, t.limits.TokensPerMinute) {
		return ErrNeverFits
	}
	running := t.running
	if c.shared != nil {
		running -= t.tasks // others may have ended them
	}
	if t.limits.MaxConcurrent > 0 && running+t.waiting >= t.limits.MaxConcurrent {
		return c.refused(q, t, TenantStreams, now)
	}
	if c.shared != nil {
		return nil
	}
	if reason, wait := t.lacks(a.Tokens, now); reason != Granted {
		return &Refused{Reason: reason, RetryAfter: jittered(wait), Quota: c.quota(t, now)}
	}
	return nil
}

// direct finds the model that the request can go to without waiting; it has its slot there, and must go.
func (c *Controller) direct(q *queue, t *tenant, a *arrival, now time.Time) *gate {
	if t.full(a) {
		return nil
	}
	if q.gate != nil {
		if q.gate.clear(c, a, now) && q.gate.passes(a, now) {
			return q.gate
		}
		return nil
	}
	if f := q.bands[a.band].flows[t.name]; f != nil && f.parked || q.pool.spare == 0 && !a.Admitted {
		return nil
	}
	m := q.pool.offer(a.cost,
		func(g *gate) bool { return g.room(a, now) && g.takes(a) && g.clear(c, a, now) },
		func(g *gate) bool { return g.passes(a, now) })
	if m == nil {
		return nil
	}
	return m.gate
}

// enqueue makes the request wait, or says why it may not.
func (c *Controller) enqueue(q *queue, t *tenant, a *arrival, now time.Time) (*waiter, error) {
	timeout := q.timeout(a.Timeout)
	if err := c.inTime(q, a, timeout); err != nil {
		return nil, err
	}
	before := q.length
	if err := c.mayWait(q, t, a, now); err != nil {
		return nil, err
	}
	evicted := q.length < before
	w := newWaiter(a, q, t, now)
	q.push(w)
	c.hold(w, 1)
	moved := evicted || a.Preempted // others may be next now
	for _, g := range q.gates() {
		switch next, _ := g.next(c, now); {
		case w.state == decided:
		case next == w && g.crowd() == 1 && !a.Preempted: // it has just been tried
			g.await(c, w, now)
		case next == w || moved:
			c.pump(g, now)
		}
	}
	return w, nil
}

func newWaiter(a *arrival, q *queue, t *tenant, now time.Time) *waiter {
	timeout := q.timeout(a.Timeout)
	w := &waiter{arrival: *a, home: q, tenant: t, came: now, deadline: now.Add(timeout), done: make(chan struct{})}
	if a.Spot != nil {
		a.Spot.waiter = w
	}
	return w
}

// mayWait says why the request may not wait; if it may, there is room for it.
func (c *Controller) mayWait(q *queue, t *tenant, a *arrival, now time.Time) error {
	if c.closed {
		return ErrClosed
	}
	if a.Preempted {
		return nil
	}
	bytes := t.waitingBytes
	if !a.held {
		bytes += int64(a.Bytes)
	}
	if t.limits.MaxQueueBytes > 0 && bytes > t.limits.MaxQueueBytes {
		return c.refused(q, t, TenantBytes, now)
	}
	if !c.makeRoom(q, t, a, now) {
		return c.refused(q, t, QueueFull, now)
	}
	return nil
}

// inTime says why the request would wait in vain.
func (c *Controller) inTime(q *queue, a *arrival, timeout time.Duration) error {
	ahead := int64(0)
	if f := q.bands[a.band].flows[a.Tenant]; f != nil {
		ahead = f.tokens
	}
	if q.gate != nil {
		return c.hopeless(q.gate, a, ahead, timeout)
	}
	var best *Refused
	for _, m := range q.pool.members {
		if !m.gate.takes(a) {
			continue
		}
		var late *Refused
		if !errors.As(c.hopeless(m.gate, a, 0, timeout), &late) {
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

// postponed tells a request that does not wait how long to stay away.
func (c *Controller) postponed(q *queue, t *tenant, a *arrival, now time.Time) error {
	return &Refused{Reason: ModelConcurrency, RetryAfter: c.postpone(q, a, now), Quota: c.quota(t, now)}
}

// gates are those that serve the queue.
func (q *queue) gates() []*gate {
	if q.gate != nil {
		return []*gate{q.gate}
	}
	gates := make([]*gate, len(q.pool.members))
	for i, m := range q.pool.members {
		gates[i] = m.gate
	}
	return gates
}

// wait blocks until w is decided, out of time, or its context ends.
func (c *Controller) wait(ctx context.Context, w *waiter) (*Lease, error) {
	waits := w.waits
	if waits == nil && w.OnWait != nil {
		w.OnWait()
	}
	timer := time.NewTimer(time.Until(w.deadline))
	defer timer.Stop()
	for open := true; open; {
		select {
		case <-w.done:
			open = false
		case <-waits:
			waits = nil
			if w.OnWait != nil {
				w.OnWait()
			}
		case <-timer.C:
			c.leave(w, ErrTimeout)
			open = false
		case <-ctx.Done():
			c.leave(w, ctx.Err())
			open = false
		}
	}
	<-w.done
	// Whoever lost the race against an admission has a lease now. It is welcome after a timeout; a caller whose context has
	// ended could do nothing with it.
	if err := ctx.Err(); err != nil && w.lease != nil {
		c.undo(w)
		return nil, err
	}
	return w.lease, w.err
}

// leave takes w out of the queue. If it is being asked about, a verdict is on its way: who has run out of time waits for that,
// but who has left does not.
func (c *Controller) leave(w *waiter, err error) {
	c.mu.Lock()
	defer c.unlock()
	switch {
	case w.state == queued || w.state == chosen:
		q := w.queue
		c.refuse(w, err)
		c.pumpQueue(q, time.Now())
	case w.state == asking && !errors.Is(err, ErrTimeout):
		w.gone = true
		c.hold(w, -1)
		if w.placed && w.Unplace != nil {
			c.after = append(c.after, w.Unplace)
		}
		w.placed = false
		w.decide(nil, err)
	case w.state == asking || w.state == judging:
		w.leaving = err
	}
}

// undo takes back the admission of a waiter, as if it had never been.
func (c *Controller) undo(w *waiter) {
	if w.placed && w.Unplace != nil {
		w.Unplace()
	}
	c.mu.Lock()
	defer c.unlock()
	c.end(w.lease, false)
}
