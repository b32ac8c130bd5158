package admission

import (
	"strconv"
	"time"
)

// Lease is a hold on a part of the capacity of a model and of a tenant. It lasts until Release.
type Lease struct {
	c      *Controller
	gate   *gate
	tenant *tenant
	id     string
	tokens int
	quota  Quota

	// The fields below are guarded by Controller.mu.

	replica string
	// slotOnly says that the lease holds nothing but a slot (Request.SlotOnly).
	slotOnly bool
	// unknownToShared says that the shared state has forgotten the lease, so its release is not
	// reported.
	unknownToShared bool
	prefill         bool
	task            bool
	released        bool
	corrected       bool
	// correction is what Correct found before Release. Release reports it to the shared state.
	correction int64
	// preemptible is the lease's entry among the preemption candidates; nil means that the lease
	// cannot be preempted. preempted says that it was, and that it waits to be released.
	preemptible *preemptionCandidate
	preempted   bool
}

// Model returns the name of the model that the lease belongs to.
func (l *Lease) Model() string { return l.gate.model }

// ID returns the id of the lease, which is unique over all gateways. It is "" if no other process
// needs to know the lease.
func (l *Lease) ID() string { return l.id }

// Quota returns what the tenant had left after the admission.
func (l *Lease) Quota() Quota { return l.quota }

// acquireLease counts a lease and charges its estimate. It does not check whether there is room.
func (c *Controller) acquireLease(g *gate, t *tenant, a *arrival, now time.Time) *Lease {
	l := &Lease{c: c, gate: g, tenant: t, tokens: a.Tokens, slotOnly: a.SlotOnly, id: a.taskID, task: a.task != nil}
	if !a.SlotOnly {
		c.countLease(l, a.Prefill)
		g.usage.bucket.refill(now)
		g.usage.bucket.charge(int64(l.tokens))
		t.requests.refill(now)
		t.requests.charge(1)
		t.tokens.refill(now)
		t.tokens.charge(int64(l.tokens))
	}
	if a.Unlocked.OnPreempt != nil {
		l.makePreemptible(a)
	}
	g.pace.observe(now)
	l.quota = c.quota(t, now)
	return l
}

// countLease adds the lease to the sums of its model and its tenant.
func (c *Controller) countLease(l *Lease, prefill bool) {
	l.gate.usage.leases++
	l.gate.reportFreeLease()
	l.tenant.running++
	if l.prefill = prefill; prefill {
		l.tenant.prefill++
	}
	if l.task {
		l.tenant.tasks++
	}
}

// RecoverRequest returns a lease for a request that runs already. It always grants the lease, so a
// model or a tenant may be over its limits until leases are released. It charges no tokens. The
// error is ErrUnknownModel.
func (c *Controller) RecoverRequest(r RecoveredRequest) (*Lease, error) {
	c.mu.Lock()
	defer c.unlockAndRun()
	g, ok := c.gates[r.Model]
	if !ok {
		return nil, ErrUnknownModel
	}
	l := c.recoverLease(g, r, time.Now())
	if c.shared != nil && l.id == "" {
		l.id = c.newLeaseID()
	}
	if c.shared != nil {
		c.shared.ReportLease(c.claimForLease(l, nil, 0))
	}
	return l, nil
}

func (c *Controller) recoverLease(g *gate, r RecoveredRequest, now time.Time) *Lease {
	t := c.tenant(r.Tenant)
	l := &Lease{c: c, gate: g, tenant: t, id: r.ID, tokens: min(max(r.Tokens, 0), maxTokens)}
	c.countLease(l, false)
	l.quota = c.quota(t, now)
	return l
}

// newLeaseID returns the id of a new lease.
func (c *Controller) newLeaseID() string {
	c.lastLeaseID++
	return c.gateway + "-" + strconv.FormatUint(c.lastLeaseID, 36)
}

// Release gives back everything but the tokens, which are spent, and admits the next waiters. Only
// the first call counts. Release the replica's slot before, so that the next waiter finds it.
func (l *Lease) Release() {
	l.c.mu.Lock()
	defer l.c.unlockAndRun()
	l.c.endLease(l, true)
}

// endLease releases a lease. A lease that was not used gives back its charge too.
func (c *Controller) endLease(l *Lease, used bool) {
	if l.released {
		return
	}
	l.released = true
	l.endPreemptible()
	if l.preempted {
		used = l.corrected
		if l.gate.preempted == l {
			l.gate.preempted = nil
		}
	}
	now := time.Now()
	if !l.slotOnly {
		c.uncountLease(l)
		correction := l.correction
		if !used {
			l.gate.usage.bucket.correct(int64(l.tokens))
			l.tenant.tokens.correct(int64(l.tokens))
			l.tenant.requests.correct(1)
			correction, l.corrected = int64(l.tokens), true
		}
		if c.shared != nil && !l.unknownToShared {
			c.afterUnlock = append(c.afterUnlock, func() { c.shared.Release(l.id, correction, !used) })
		}
	}
	c.admitAfterRelease(l.gate, l.tenant, now)
}

// uncountLease removes the lease from the sums of its model and its tenant.
func (c *Controller) uncountLease(l *Lease) {
	l.gate.usage.leases--
	l.gate.reportFreeLease()
	l.tenant.running--
	if l.prefill {
		l.prefill = false
		l.tenant.prefill--
	}
	if l.task {
		l.tenant.tasks--
	}
	if l.replica != "" {
		if c.replicaLeases[l.replica]--; c.replicaLeases[l.replica] <= 0 {
			delete(c.replicaLeases, l.replica)
		}
	}
}

// admitAfterRelease admits waiters after a lease of this model and tenant was released.
func (c *Controller) admitAfterRelease(g *gate, t *tenant, now time.Time) {
	g.inquiry.onLeaseReleased()
	c.admitWaiters(g, now)
	if t.parked.length > 0 {
		t.deniedReason = Granted
		c.unparkFlows(t, now)
	}
}

// FirstToken says that the response has begun, so the request is no longer in prefill. Only the
// first call counts. It returns false if the lease was preempted before.
func (l *Lease) FirstToken() bool {
	c := l.c
	c.mu.Lock()
	defer c.unlockAndRun()
	if l.preempted {
		return false
	}
	l.endPreemptible()
	if !l.prefill {
		return true
	}
	l.prefill = false
	l.tenant.prefill--
	if c.shared != nil {
		c.afterUnlock = append(c.afterUnlock, func() { c.shared.FirstToken(l.id) })
	}
	if l.tenant.parked.length > 0 {
		if l.tenant.deniedReason == TenantPrefill {
			l.tenant.deniedReason = Granted
		}
		c.unparkFlows(l.tenant, time.Now())
	}
	return true
}

// Correct replaces the estimate by what the request has really cost: the buckets of its model and
// its tenant get back the difference, or are charged it, down to a debt of one full bucket. Only
// the first call counts. A cost below 0 is unknown and changes nothing. Correct may be called
// before Release or after. A preempted lease costs nothing, whatever Correct is told.
func (l *Lease) Correct(actual int) {
	l.c.mu.Lock()
	defer l.c.unlockAndRun()
	l.c.correctLease(l, actual)
}

func (c *Controller) correctLease(l *Lease, actual int) {
	if actual < 0 || l.corrected || l.slotOnly || l.preempted {
		return
	}
	l.corrected = true
	l.endPreemptible() // the cost is known, so the response has begun
	correction := int64(l.tokens) - int64(min(actual, maxTokens))
	now := time.Now()
	l.gate.usage.bucket.refill(now)
	l.gate.usage.bucket.correct(correction)
	l.tenant.tokens.refill(now)
	l.tenant.tokens.correct(correction)
	if c.shared != nil && l.released {
		c.afterUnlock = append(c.afterUnlock, func() { c.shared.Correct(l.gate.model, l.tenant.name, correction) })
	} else {
		l.correction = correction
	}
	if correction > 0 {
		l.gate.inquiry.clearHold() // the tokens that were missing may be there now
	}
	if correction != 0 {
		c.admitWaiters(l.gate, now)
	}
}
