package admission

import (
	"math/rand/v2"
	"time"
)

const (
	// mostAsked is how many waiters one question is about, at most.
	mostAsked = 64
	// mostStale is how often in a row a waiter is asked about again at once because limits had changed.
	mostStale = 3
	// mostNews is how many may be about to be asked about beyond those that may wait.
	mostNews = 4096
	// onceTimeout bounds what never answers; a verdict comes within some 100 ms.
	onceTimeout = 10 * time.Second

	retryFrom = 25 * time.Millisecond
	retryTo   = 250 * time.Millisecond
)

// backoff is the time until the next try, longer each time.
type backoff struct{ tries uint }

func (b *backoff) next() time.Duration {
	wait := min(retryFrom<<min(b.tries, 8), retryTo)
	b.tries++
	return wait + rand.N(wait/4)
}

// inquiry is what a gate asks the shared state: one question at a time, about the next waiters in order.
type inquiry struct {
	// out: a question is on its way, about asked.
	out   bool
	asked []*waiter
	// claims are what they asked for.
	claims []Claim
	// freedSince and kickedSince: something became free after the question had left, so that the answer may not know of it.
	freedSince, kickedSince bool
	// batch is how many the next question is about.
	batch int
	// Until then nobody up to this band is asked about again, for this reason.
	until  time.Time
	band   int
	reason Reason
	// need is how many tokens were lacking, if it was these. lax: who needs fewer is not held, because who needed so many has gone.
	need int
	lax  bool
	// patience is the backoff for what ends at no known time.
	patience backoff
	// elsewhere is how many leases other gateways had when they were last seen.
	elsewhere int
}

func (i *inquiry) holds(w *waiter, now time.Time) bool {
	return i.reason != Granted && w.band <= i.band && now.Before(i.until) && !i.spares(&w.arrival)
}

// hold reports whether it is this that holds now; of one answer the first reason does.
func (i *inquiry) hold(reason Reason, band int, now time.Time, wait time.Duration) bool {
	if i.reason == Granted || band > i.band || !now.Before(i.until) || i.lax && reason == ModelTokens {
		i.reason, i.band, i.until, i.lax = reason, band, now.Add(wait), false
		return true
	}
	return false
}

// forget lets the next question come at once.
func (i *inquiry) forget() { i.reason = Granted }

// kicked is forget after a replica got a free slot.
func (i *inquiry) kicked() {
	i.kickedSince = i.out
	if i.reason == ReplicaFull {
		i.forget()
	}
}

// freed is forget after a lease has ended.
func (i *inquiry) freed() {
	i.freedSince = i.out
	if i.reason != ModelTokens {
		i.forget()
	}
}

// answered ends the question, and lets the next come at once if the answer may be too old.
func (i *inquiry) answered() {
	if i.freedSince && i.reason == ModelConcurrency || (i.freedSince || i.kickedSince) && i.reason == ReplicaFull {
		i.forget()
	}
	i.out, i.asked, i.claims, i.freedSince, i.kickedSince = false, nil, nil, false, false
}

// outdated reports whether the limits that the n-th of those asked was held against are others now.
func (i *inquiry) outdated(n int, g *gate) bool {
	return i.claims[n].Limits != g.book.limits || i.claims[n].TenantLimits != i.asked[n].tenant.limits
}

// spares reports whether it is only those that need more tokens who are held.
func (i *inquiry) spares(a *arrival) bool {
	return i.reason == ModelTokens && i.lax && a.Tokens < i.need
}

// tokens is how long the model's tokens are known to take.
func (i *inquiry) tokens(a *arrival, now time.Time) time.Duration {
	if i.reason != ModelTokens || i.spares(a) {
		return 0
	}
	return max(i.until.Sub(now), 0)
}

// waiting and bytes count those asked about that had to wait before.
func (i *inquiry) waiting() int {
	n := 0
	for _, w := range i.asked {
		if !w.fresh && !w.gone {
			n++
		}
	}
	return n
}

func (i *inquiry) bytes() int64 {
	n := int64(0)
	for _, w := range i.asked {
		if !w.fresh && !w.gone {
			n += int64(w.Bytes)
		}
	}
	return n
}

// bring puts a request where it is asked about. It waits only if the answer says so.
func (c *Controller) bring(q *queue, t *tenant, a *arrival, now time.Time) (*waiter, error) {
	if t.denied != Granted && t.denied != TenantPrefill && !a.Admitted && !a.Preempted {
		return nil, &Refused{Reason: t.denied, RetryAfter: jittered(max(t.until.Sub(now), 0)), Quota: c.quota(t, now)}
	}
	if !a.Preempted && (q.news >= mostNews || c.held+int64(a.Bytes) > c.maxBytes && !c.makeRoom(q, t, a, now)) {
		return nil, c.refused(q, t, QueueFull, now)
	}
	w := newWaiter(a, q, t, now)
	if a.once {
		w.deadline = now.Add(onceTimeout)
	}
	w.held, w.fresh, w.waits = true, true, make(chan struct{})
	c.hold(w, 1)
	if w.id = a.taskID; w.id == "" && !a.Admitted {
		w.id = c.newID()
	}
	if q.gate != nil {
		q.push(w)
		c.pump(q.gate, now)
	} else {
		c.bind(w, now)
	}
	return w, nil
}

// bind sends a fresh request for a pool to the model whose turn it is, or, if none can be asked now, to the pool's queue.
func (c *Controller) bind(w *waiter, now time.Time) {
	p := w.home.pool
	m := p.offer(w.cost, func(g *gate) bool {
		for _, tried := range w.tried {
			if g == tried {
				return false
			}
		}
		return g.takes(&w.arrival) && !g.holds(w, now) && p.queue.bands[w.band].flows[w.Tenant] == nil &&
			(g.ask.out || g.clear(c, &w.arrival, now))
	}, func(*gate) bool { return true })
	if m == nil {
		p.queue.push(w)
		c.pumpQueue(&p.queue, now)
		return
	}
	w.tried = append(w.tried, m.gate)
	m.gate.queue.push(w)
	c.pump(m.gate, now)
}

// inquire asks about the next waiters of a gate, unless an answer is still to come.
func (c *Controller) inquire(g *gate, now time.Time) {
	if g.ask.out {
		return
	}
	batch, wait := c.gather(g, now)
	g.arm(c, wait)
	if len(batch) == 0 {
		c.greet(&g.queue, now)
		for _, m := range g.members {
			c.greet(&m.pool.queue, now)
		}
		if g.loosen() {
			c.pump(g, now)
		}
		for _, m := range g.members {
			c.unstick(m.pool, now)
		}
		return
	}
	claims := make([]Claim, len(batch))
	g.ask.out, g.ask.asked, g.ask.claims = true, batch, claims
	for i, w := range batch {
		claims[i] = c.claimOf(g, w)
	}
	c.after = append(c.after, func() {
		c.shared.Acquire(claims, func(verdicts []Verdict) { c.judge(g, batch, verdicts) })
	})
}

// gather takes out those whom the next question is about, each with a slot on a replica. If somebody must not be asked about yet, the
// second result is for how long.
func (c *Controller) gather(g *gate, now time.Time) ([]*waiter, time.Duration) {
	if g.ask.batch == 0 {
		g.ask.batch = mostAsked
	}
	var batch []*waiter
	for len(batch) < g.ask.batch {
		w, from := g.next(c, now)
		if w == nil {
			break
		}
		if !w.Admitted && g.holds(w, now) {
			if g.ask.reason == ModelTokens {
				g.lacks = w
			}
			c.craveShared(g, w)
			return batch, g.ask.until.Sub(now)
		}
		if w.Place != nil {
			if w.slot, w.placed = w.Place(g.model); !w.placed {
				c.makeWay(g, w, true)
				break
			}
		}
		if w.state != chosen {
			g.served(w, from)
		}
		w.queue.remove(w, true)
		if w.Admitted {
			c.hold(w, -1)
			c.firm(w, now)
			w.decide(c.lease(g, w.tenant, &w.arrival, now), nil)
			continue
		}
		w.state = asking
		batch = append(batch, w)
	}
	return batch, 0
}

// claimOf is what the waiter asks of the model.
func (c *Controller) claimOf(g *gate, w *waiter) Claim {
	return Claim{
		ID: w.id, Model: g.model, Tenant: w.Tenant, Limits: g.book.limits, TenantLimits: w.tenant.limits, Tokens: int64(w.Tokens),
		Prefill: w.Prefill, Replica: w.slot.Replica, ReplicaLimit: w.slot.Limit, Task: w.task,
	}
}

// claim is what a lease has that nobody was asked about.
func (c *Controller) claim(l *Lease, task *TaskClaim, tokens int) Claim {
	return Claim{
		ID: l.id, Model: l.gate.model, Tenant: l.tenant.name, Limits: l.gate.book.limits, TenantLimits: l.tenant.limits,
		Tokens: int64(tokens), Prefill: l.prefill, Replica: l.replica, Task: task,
	}
}

// greet makes those wait who have come, and were not let in by the first answer. It does nothing while an answer may still come.
func (c *Controller) greet(q *queue, now time.Time) {
	if len(q.fresh) == 0 || q.pool != nil && q.pool.quiet {
		return
	}
	for _, g := range q.gates() {
		if g.ask.out {
			return
		}
	}
	for len(q.fresh) > 0 {
		w := q.fresh[0]
		if w.home != q {
			q.remove(w, false)
			c.bind(w, now)
			continue
		}
		if err := c.denies(q, w, now); err != nil {
			c.refuse(w, err)
			continue
		}
		q.fresh = q.fresh[1:]
		q.news--
		w.fresh = false
		close(w.waits)
	}
}

// denies says why a fresh waiter may not wait.
func (c *Controller) denies(q *queue, w *waiter, now time.Time) error {
	t := w.tenant
	if w.Preempted {
		return c.mayWait(q, t, &w.arrival, now)
	}
	if t.denied != Granted && t.denied != TenantPrefill && !w.Admitted {
		return &Refused{Reason: t.denied, RetryAfter: jittered(max(t.until.Sub(now), 0)), Quota: c.quota(t, now)}
	}
	if g := q.gate; g != nil && !w.once && !w.Admitted && g.holds(w, now) && now.Add(g.ask.tokens(&w.arrival, now)).After(w.deadline) {
		return &Refused{Reason: ModelTokens, RetryAfter: jittered(g.ask.tokens(&w.arrival, now)), Quota: c.quota(t, now)}
	}
	if w.once {
		return c.postponed(q, t, &w.arrival, now)
	}
	return c.mayWait(q, t, &w.arrival, now)
}

// listener hears from the other gateways.
type listener struct{ c *Controller }

// Freed implements Listener.
func (l listener) Freed(model string) {
	l.c.mu.Lock()
	defer l.c.unlock()
	if g, ok := l.c.gates[model]; ok {
		g.ask.forget() // tokens may have come back too
		l.c.pump(g, time.Now())
	}
}

// Served implements Listener: what a tenant got elsewhere is charged to its flows here.
func (l listener) Served(model, tenant string, tokens int64) {
	l.c.mu.Lock()
	defer l.c.unlock()
	g, ok := l.c.gates[model]
	if !ok || tokens <= 0 {
		return
	}
	for b := range g.queue.bands {
		if f := g.queue.bands[b].flows[tenant]; f != nil {
			f.deficit = max(f.deficit-min(tokens, f.most()), -f.most())
		}
	}
}
