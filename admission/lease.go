package admission

import (
	"strconv"
	"time"
)

// Lease is a part of a model's capacity, and of its tenant's. It lasts until Release.
type Lease struct {
	c      *Controller
	gate   *gate
	tenant *tenant
	id     string
	tokens int
	quota  Quota

	// What follows is guarded by Controller.mu.

	replica string
	// admitted leases hold nothing but a slot.
	admitted bool
	// silent leases are no longer known to the shared state.
	silent   bool
	prefill  bool
	task     bool
	released bool
	settled  bool
	// correction is what Settle found before Release, for the shared state.
	correction int64
	// preemptible is nil when nobody may take the lease back. preempted: it was, and is yet to be released.
	preemptible *preemptible
	preempted   bool
}

// Model is the name of the model that the lease is of.
func (l *Lease) Model() string { return l.gate.model }

// ID is unique over all gateways. It is empty where nobody else needs to know the lease.
func (l *Lease) ID() string { return l.id }

// Quota is what the tenant had left after the admission.
func (l *Lease) Quota() Quota { return l.quota }

// lease takes what the request needs; nobody asks whether there is room.
func (c *Controller) lease(g *gate, t *tenant, a *arrival, now time.Time) *Lease {
	l := &Lease{c: c, gate: g, tenant: t, tokens: a.Tokens, admitted: a.Admitted, id: a.taskID, task: a.task != nil}
	if !a.Admitted {
		c.take(l, a.Prefill)
		g.book.bucket.refill(now)
		g.book.bucket.spend(int64(l.tokens))
		t.requests.refill(now)
		t.requests.spend(1)
		t.tokens.refill(now)
		t.tokens.spend(int64(l.tokens))
	}
	if a.Preempt != nil {
		l.yielding(a)
	}
	g.pace.tick(now)
	l.quota = c.quota(t, now)
	return l
}

// take counts the lease.
func (c *Controller) take(l *Lease, prefill bool) {
	l.gate.book.leases++
	l.gate.note()
	l.tenant.running++
	if l.prefill = prefill; prefill {
		l.tenant.prefill++
	}
	if l.task {
		l.tenant.tasks++
	}
}

// Resume returns a lease for a request that runs already. It asks for nothing and cannot be refused for want of room; until
// leases have ended, a model or a tenant may so be over its limits. It takes no tokens. The error is ErrUnknownModel.
func (c *Controller) Resume(r Resumed) (*Lease, error) {
	c.mu.Lock()
	defer c.unlock()
	g, ok := c.gates[r.Model]
	if !ok {
		return nil, ErrUnknownModel
	}
	l := c.resume(g, r, time.Now())
	if c.shared != nil && l.id == "" {
		l.id = c.newID()
	}
	if c.shared != nil {
		c.shared.Keep(c.claim(l, nil, 0))
	}
	return l, nil
}

func (c *Controller) resume(g *gate, r Resumed, now time.Time) *Lease {
	t := c.tenant(r.Tenant)
	l := &Lease{c: c, gate: g, tenant: t, id: r.ID, tokens: min(max(r.Tokens, 0), maxTokens)}
	c.take(l, false)
	l.quota = c.quota(t, now)
	return l
}

// newID makes the id of a lease.
func (c *Controller) newID() string {
	c.leases++
	return c.gateway + "-" + strconv.FormatUint(c.leases, 36)
}

// Release gives back everything but the tokens, which are spent, and lets the next requests in. Only the first call counts. Give the
// replica's slot back before, so that the next request finds it.
func (l *Lease) Release() {
	l.c.mu.Lock()
	defer l.c.unlock()
	l.c.end(l, true)
}

// end ends a lease. One that was not used gives back all that it took.
func (c *Controller) end(l *Lease, used bool) {
	if l.released {
		return
	}
	l.released = true
	l.steady()
	if l.preempted {
		used = l.settled
		if l.gate.victim == l {
			l.gate.victim = nil
		}
	}
	now := time.Now()
	if !l.admitted {
		c.forget(l)
		correction := l.correction
		if !used {
			l.gate.book.bucket.correct(int64(l.tokens))
			l.tenant.tokens.correct(int64(l.tokens))
			l.tenant.requests.correct(1)
			correction, l.settled = int64(l.tokens), true
		}
		if c.shared != nil && !l.silent {
			c.after = append(c.after, func() { c.shared.Release(l.id, correction, !used) })
		}
	}
	c.freed(l.gate, l.tenant, now)
}

// forget takes the lease out of the book.
func (c *Controller) forget(l *Lease) {
	l.gate.book.leases--
	l.gate.note()
	l.tenant.running--
	if l.prefill {
		l.prefill = false
		l.tenant.prefill--
	}
	if l.task {
		l.tenant.tasks--
	}
	if l.replica != "" {
		if c.replicas[l.replica]--; c.replicas[l.replica] <= 0 {
			delete(c.replicas, l.replica)
		}
	}
}

// freed lets in who may go after a lease of this model and tenant has ended.
func (c *Controller) freed(g *gate, t *tenant, now time.Time) {
	g.ask.freed()
	c.pump(g, now)
	if t.parked.length > 0 {
		t.denied = Granted
		c.welcome(t, now)
	}
}

// FirstToken tells that the response has begun: the request is no longer in prefill. Only the first call counts. False: the lease was
// preempted before.
func (l *Lease) FirstToken() bool {
	c := l.c
	c.mu.Lock()
	defer c.unlock()
	if l.preempted {
		return false
	}
	l.steady()
	if !l.prefill {
		return true
	}
	l.prefill = false
	l.tenant.prefill--
	if c.shared != nil {
		c.after = append(c.after, func() { c.shared.FirstToken(l.id) })
	}
	if l.tenant.parked.length > 0 {
		if l.tenant.denied == TenantPrefill {
			l.tenant.denied = Granted
		}
		c.welcome(l.tenant, time.Now())
	}
	return true
}

// Settle tells what the request has really cost. Its model's bucket and its tenant's get back what was estimated too much, or
// lose what was too little, down to a debt of one full bucket. Only the first call counts; less than 0 is not known, and
// changes nothing. It may come before Release or after. Of a preempted lease nothing is charged, whatever it says.
func (l *Lease) Settle(actual int) {
	l.c.mu.Lock()
	defer l.c.unlock()
	l.c.settle(l, actual)
}

func (c *Controller) settle(l *Lease, actual int) {
	if actual < 0 || l.settled || l.admitted || l.preempted {
		return
	}
	l.settled = true
	l.steady() // the response is known, so it has begun
	correction := int64(l.tokens) - int64(min(actual, maxTokens))
	now := time.Now()
	l.gate.book.bucket.refill(now)
	l.gate.book.bucket.correct(correction)
	l.tenant.tokens.refill(now)
	l.tenant.tokens.correct(correction)
	if c.shared != nil && l.released {
		c.after = append(c.after, func() { c.shared.Settle(l.gate.model, l.tenant.name, correction) })
	} else {
		l.correction = correction
	}
	if correction > 0 {
		l.gate.ask.forget() // what was wanting may be there now
	}
	if correction != 0 {
		c.pump(l.gate, now)
	}
}
