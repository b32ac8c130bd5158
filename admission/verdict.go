package admission

import (
	"slices"
	"time"
)

// judge does what the answer to a question says: first all that can be done under one lock, then, after the slots of those who were
// turned away have been given back, the rest.
func (c *Controller) judge(g *gate, batch []*waiter, verdicts []Verdict) {
	for _, unplace := range c.accept(g, batch, verdicts) {
		unplace()
	}
	c.mu.Lock()
	defer c.unlock()
	now := time.Now()
	denied := c.reasons(g, batch, verdicts, now)
	pools := c.putBack(denied)
	g.ask.answered()
	if granted := len(batch) - len(denied); granted == len(batch) {
		g.ask.batch = min(2*g.ask.batch, mostAsked)
	} else {
		g.ask.batch = max(granted, 1)
	}
	for _, p := range pools {
		p.quiet = true
	}
	c.pump(g, now)
	for _, p := range pools {
		p.quiet = false
		c.pumpQueue(&p.queue, now)
	}
	for _, m := range g.members { // whose first may have gone by this model
		c.unstick(m.pool, now)
	}
	c.greet(&g.queue, now)
}

// accept lets those in who were granted, and returns how the others give back their slots. verdicts that the shared state could not
// give become this gateway's own.
func (c *Controller) accept(g *gate, batch []*waiter, verdicts []Verdict) []func() {
	gateways := max(c.shared.Gateways(), 1)
	c.mu.Lock()
	defer c.unlock()
	now := time.Now()
	c.divide(gateways, now)
	var unplaces []func()
	for i, w := range batch {
		v := &verdicts[i]
		if v.Reason == Unavailable && !w.gone {
			*v = c.alone(g, w, now)
		} else if v.Reason.ofLimits() && g.ask.outdated(i, g) {
			v.Reason = Stale
		}
		switch {
		case v.Reason == Granted && v.Task != nil && !w.gone:
			c.hold(w, -1)
			w.found = v.Task
			w.decide(nil, nil)
		case v.Reason == Granted && v.Task == nil && w.gone:
			id, tokens := w.id, int64(w.Tokens)
			c.after = append(c.after, func() { c.shared.Release(id, tokens, true) })
		case v.Reason == Granted && !w.gone:
			c.granted(g, w, v, now)
		case w.gone:
		default:
			w.state = judging
			if full := w.slot.Full; full != nil && v.Reason == ReplicaFull {
				unplaces = append(unplaces, full)
			}
			if w.placed && w.Unplace != nil {
				unplaces = append(unplaces, w.Unplace)
			}
			w.placed = false
		}
	}
	return unplaces
}

// divide takes note of how many gateways share the limits.
func (c *Controller) divide(gateways int, now time.Time) {
	if gateways == c.gateways {
		return
	}
	c.gateways = gateways
	for _, g := range c.gates {
		g.book.bucket.resize(c.share(g.book.limits.TokensPerMinute), now)
	}
	for _, t := range c.tenants {
		t.set(t.limits, c.share, now)
	}
}

// granted lets a waiter in. This process's own book takes note whatever its limits say.
func (c *Controller) granted(g *gate, w *waiter, v *Verdict, now time.Time) {
	c.hold(w, -1)
	t := w.tenant
	if !w.kept {
		t.quota = v.Quota
		g.ask.patience, t.patience = backoff{}, backoff{}
	} else {
		t.quota = Quota{}
	}
	c.firm(w, now)
	l := c.lease(g, t, &w.arrival, now)
	l.id = w.id
	if w.slot.Replica != "" {
		l.replica = w.slot.Replica
		c.replicas[l.replica]++
	}
	if w.kept {
		claim := c.claim(l, w.task, w.Tokens)
		claim.ReplicaLimit = w.slot.Limit
		c.shared.Keep(claim)
	} else if v.ModelInUse > 0 {
		g.ask.elsewhere = max(v.ModelInUse-g.book.leases, 0)
	}
	w.decide(l, nil)
}

// alone is this gateway's own verdict while the shared state does not answer: its part of every limit, and of the model's no more than
// others were last seen to leave.
func (c *Controller) alone(g *gate, w *waiter, now time.Time) Verdict {
	t := w.tenant
	t.quota = Quota{}
	reason, wait := c.unshared(g, w, now)
	w.kept = reason == Granted
	return Verdict{Reason: reason, Wait: wait, Quota: t.left(now)}
}

func (c *Controller) unshared(g *gate, w *waiter, now time.Time) (Reason, time.Duration) {
	t := w.tenant
	if wait := t.requests.wait(1, now); wait > 0 {
		return TenantRequests, wait
	}
	if wait := t.tokens.wait(int64(w.Tokens), now); wait > 0 {
		return TenantTokens, wait
	}
	limits := g.book.limits
	concurrent := c.share(limits.MaxConcurrent)
	if concurrent > 0 {
		concurrent = max(min(concurrent, limits.MaxConcurrent-g.ask.elsewhere), 1)
	}
	switch {
	case reached(t.running, c.share(t.limits.MaxConcurrent)):
		return TenantStreams, 0
	case w.Prefill && reached(t.prefill, c.share(t.limits.MaxPrefill)):
		return TenantPrefill, 0
	case reached(g.book.leases, concurrent):
		return ModelConcurrency, 0
	case w.slot.Replica != "" && reached(c.replicas[w.slot.Replica], c.share(w.slot.Limit)):
		return ReplicaFull, 0
	}
	if wait := g.book.bucket.wait(int64(w.Tokens), now); wait > 0 {
		return ModelTokens, wait
	}
	return Granted, 0
}

func reached(n, limit int) bool { return limit > 0 && n >= limit }

// reasons notes why waiters were turned away, ends those that cannot wait for it, and returns the others.
func (c *Controller) reasons(g *gate, batch []*waiter, verdicts []Verdict, now time.Time) []*waiter {
	var denied []*waiter
	var pause time.Duration // one step of the backoff for each answer
	for i, w := range batch {
		if w.state != judging {
			continue
		}
		v := &verdicts[i]
		switch v.Reason {
		case ModelConcurrency, ReplicaFull:
			if v.Reason == ReplicaFull && w.slot.Full != nil {
				break // Place knows it now, and finds another replica or none
			}
			if pause == 0 {
				pause = g.ask.patience.next()
			}
			if g.ask.hold(v.Reason, bands-1, now, pause) {
				g.lacks = nil
			}
		case ModelTokens:
			if g.ask.hold(v.Reason, w.band, now, max(v.Wait, time.Millisecond)) {
				g.lacks, g.ask.need = w, w.Tokens
			}
		case Stale:
			if w.stale++; w.stale > mostStale {
				w.stale = 0
				g.ask.hold(v.Reason, bands-1, now, retryFrom)
			}
		default:
			if c.tenantDenied(w, v, now) {
				continue
			}
		}
		if v.Reason != Stale {
			w.stale = 0
		}
		if v.ModelInUse > 0 {
			g.ask.elsewhere = max(v.ModelInUse-g.book.leases, 0)
		}
		if err := c.lost(g, w, v, now); err != nil {
			c.hold(w, -1)
			w.decide(nil, err)
			continue
		}
		denied = append(denied, w)
	}
	return denied
}

// tenantDenied notes that the tenant has no room. A request that has not waited before is refused, except for want of prefill.
func (c *Controller) tenantDenied(w *waiter, v *Verdict, now time.Time) bool {
	t := w.tenant
	t.quota = v.Quota
	wait := v.Wait
	if w.fresh && !w.Preempted && v.Reason != TenantPrefill {
		err := c.refused(w.home, t, v.Reason, now)
		if wait > 0 {
			err.RetryAfter = jittered(wait)
		}
		c.hold(w, -1)
		w.decide(nil, err)
		return true
	}
	if wait <= 0 {
		wait = t.patience.next()
	}
	t.denied, t.until = v.Reason, now.Add(wait)
	if t.wake == nil {
		t.wake = time.AfterFunc(wait, func() {
			c.mu.Lock()
			defer c.unlock()
			t.denied = Granted
			c.welcome(t, time.Now())
		})
	} else {
		t.wake.Reset(wait)
	}
	return false
}

// lost is why a waiter that was turned away does not wait on.
func (c *Controller) lost(g *gate, w *waiter, v *Verdict, now time.Time) error {
	switch {
	case w == g.lacks && w.fresh && !w.once && !w.Preempted && w.home.gate != nil && v.Reason == ModelTokens && now.Add(v.Wait).After(w.deadline):
		return &Refused{Reason: ModelTokens, RetryAfter: jittered(v.Wait), Quota: v.Quota}
	case w.leaving != nil:
		return w.leaving
	case c.closed:
		return ErrClosed
	case w.home.gate != nil && g.closed, w.home.pool != nil && len(w.home.pool.members) == 0:
		return ErrRemoved
	}
	return nil
}

// putBack returns those who were turned away to the front of their queues, in their order, and which pools are among these.
func (c *Controller) putBack(denied []*waiter) []*pool {
	var pools []*pool
	for _, w := range slices.Backward(denied) {
		if p := w.home.pool; p != nil && !slices.Contains(pools, p) {
			pools = append(pools, p)
		}
		w.home.putBack(w, !w.tenant.full(&w.arrival))
	}
	return pools
}
