package admission

import (
	"slices"
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

	// key is the lease of the caller's key, which ends with this one; nil: there is none.
	key *Lease

	// The fields below are guarded by Controller.mu.

	replica string
	// underTask is Request.UnderTask. If it is set, the lease holds nothing but a slot.
	underTask string
	// account is that of the task whose lease this is, or to which the request belongs. nil means
	// none, or that of another gateway.
	account *account
	// unknownToShared says that the shared state has forgotten the lease, so its release is not
	// reported.
	unknownToShared bool
	// grantedAlone says that this gateway granted the lease without the shared state, which did not
	// answer and may not know the lease yet.
	grantedAlone bool
	prefill      bool
	task         bool
	released     bool
	corrected    bool
	// cost is what Correct was told last, in tokens; 0 unless corrected.
	cost int64
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

// Tokens returns the estimate that was charged, which may be less than what was asked for: see
// Request.Guessed.
func (l *Lease) Tokens() int { return l.tokens }

// Quota returns what the tenant had left after the admission, or its key if that had less.
func (l *Lease) Quota() Quota { return l.quota }

// acquireLease counts a lease and charges its estimate. It does not check whether there is room.
func (c *Controller) acquireLease(g *gate, t *tenant, a *arrival, now time.Time) *Lease {
	l := &Lease{c: c, gate: g, tenant: t, tokens: a.Tokens, underTask: a.UnderTask, account: a.account, id: a.leaseID, key: a.key, task: a.task != nil}
	if l.task {
		l.account = &account{estimate: int64(l.tokens), lease: l}
	}
	c.countLease(l, a.Prefill)
	tokens, requests := int64(l.tokens), int64(1)
	if l.underTask != "" {
		tokens, requests = l.account.spend(tokens, requests)
	}
	g.usage.bucket.refill(now)
	g.usage.bucket.charge(tokens)
	t.requests.refill(now)
	t.requests.charge(requests)
	t.tokens.refill(now)
	t.tokens.charge(tokens)
	if a.Unlocked.OnPreempt != nil {
		l.makePreemptible(a)
	}
	g.pace.observe(now)
	if l.quota = c.quota(t, now); l.key != nil {
		l.quota = tighter(l.quota, l.key.quota)
	}
	return l
}

// countLease adds the lease to the sums of its model and its tenant. The sums have the lease of a
// task already when one of its requests comes.
func (c *Controller) countLease(l *Lease, prefill bool) {
	if l.prefill = prefill; prefill {
		l.tenant.prefill++
	}
	if l.underTask != "" {
		l.account.hold(1)
		return
	}
	l.gate.usage.leases++
	l.gate.reportFreeLease()
	l.tenant.running++
	if l.task {
		l.tenant.tasks++
	}
}

// RecoverRequest returns a lease for a request that runs already. It always grants the lease, so a
// model or a tenant may be over its limits until leases are released. It charges no tokens. The
// lease of a model that has no limits counts when the model gets some.
func (c *Controller) RecoverRequest(r RecoveredRequest) *Lease {
	c.mu.Lock()
	defer c.unlockAndRun()
	l := c.recoverLease(c.findOrCreateGate(r.Model), r, time.Now())
	l.key = c.recoverKey(r, time.Now())
	if c.shared != nil && l.id == "" {
		l.id = c.newLeaseID()
	}
	if c.shared != nil {
		c.shared.ReportLease(c.claimForLease(l, nil, 0))
	}
	return l
}

func (c *Controller) recoverLease(g *gate, r RecoveredRequest, now time.Time) *Lease {
	t := c.tenant(r.Tenant)
	l := &Lease{c: c, gate: g, tenant: t, id: r.ID, tokens: min(max(r.Tokens, 0), maxTokens)}
	if task := c.tasks.find(r.Tenant, r.UnderTask, now); task != nil && task.Model == g.model {
		l.underTask, l.account = r.UnderTask, task.lease.account
	} else if task == nil && c.shared != nil { // another gateway may have admitted the task
		l.underTask = r.UnderTask
	}
	c.countLease(l, false)
	c.setReplica(l, r.Replica)
	l.quota = c.quota(t, now)
	return l
}

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
	if l.released || l.task && l.account.isHeld() {
		return // the last request of the task releases the lease of an ended task
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
	c.uncountLease(l)
	correction := l.correction
	if !used {
		c.undoCharge(l)
		correction, l.corrected = int64(l.tokens), true
	}
	if l.key != nil {
		c.endLease(l.key, used)
	}
	if c.shared != nil && !l.unknownToShared {
		c.afterUnlock = append(c.afterUnlock, func() { c.shared.Release(l.id, correction, !used) })
	}
	c.admitAfterRelease(l.gate, l.tenant, now)
	c.forgetKey(l, now)
	if l.underTask != "" && l.account.hold(-1) {
		c.endLease(l.account.lease, true)
	}
}

// undoCharge gives back all that a lease was charged.
func (c *Controller) undoCharge(l *Lease) {
	tokens, requests := int64(l.tokens), int64(1)
	if l.underTask != "" {
		tokens, requests = l.account.spend(-tokens, -requests)
		tokens, requests = -tokens, -requests
	}
	l.gate.usage.bucket.correct(tokens)
	l.tenant.tokens.correct(tokens)
	l.tenant.requests.correct(requests)
}

// uncountLease removes the lease from the sums of its model and its tenant.
func (c *Controller) uncountLease(l *Lease) {
	if l.prefill {
		l.prefill = false
		l.tenant.prefill--
	}
	c.setReplica(l, "")
	if l.underTask != "" {
		return
	}
	l.gate.usage.leases--
	l.gate.reportFreeLease()
	l.tenant.running--
	if l.task {
		l.tenant.tasks--
	}
}

// setReplica counts the lease at this replica instead of the one before; "" is none.
func (c *Controller) setReplica(l *Lease, replica string) {
	if l.replica != "" {
		if c.replicaLeases[l.replica]--; c.replicaLeases[l.replica] <= 0 {
			delete(c.replicaLeases, l.replica)
		}
	}
	if l.replica = replica; replica != "" {
		c.replicaLeases[replica]++
	}
}

// MoveSlot says that the request holds its slot on another replica now. replica returns where, as
// Slot.Replica. It is called with Controller.mu held, so that of several moves the last one counts.
func (l *Lease) MoveSlot(replica func() string) {
	c := l.c
	c.mu.Lock()
	defer c.unlockAndRun()
	if c.shared == nil || l.released {
		return
	}
	if to := replica(); to != l.replica {
		c.setReplica(l, to)
		c.shared.MoveSlot(l.id, to)
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
	c.admitUnderTasks(t, now)
}

// admitUnderTasks admits waiters under tasks when one of the tenant's requests may have left
// prefill. Their flows are not parked while another flow has the head, which they may pass.
func (c *Controller) admitUnderTasks(t *tenant, now time.Time) {
	if t.limits.MaxPrefill <= 0 || t.waiters == t.waiting {
		return
	}
	for _, g := range c.gates {
		if slices.ContainsFunc(g.queue.underTasks, func(w *waiter) bool { return w.tenant == t }) {
			c.admitWaiters(g, now)
		}
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
	c.admitUnderTasks(l.tenant, time.Now())
	return true
}

// Keep says that the request may not be preempted any more, although it is still in prefill. It
// returns false if the lease was preempted before.
func (l *Lease) Keep() bool {
	c := l.c
	c.mu.Lock()
	defer c.unlockAndRun()
	if l.preempted {
		return false
	}
	l.endPreemptible()
	return true
}

// Correct replaces the estimate by what the request has really cost: the buckets of its model and
// its tenant get back the difference, or are charged it. The model's bucket owes one full bucket at
// most, so that a tenant cannot close the model to others. The tenant's own owes up to 60. Only
// the first call counts. A cost below 0 is unknown and changes nothing. Correct may be called
// before Release or after. A preempted lease costs nothing, whatever Correct is told.
func (l *Lease) Correct(actual int) {
	l.c.mu.Lock()
	defer l.c.unlockAndRun()
	l.c.correctLease(l, actual)
}

func (c *Controller) correctLease(l *Lease, actual int) {
	if actual < 0 || l.corrected || l.preempted {
		return
	}
	l.corrected = true
	if l.key != nil {
		c.correctLease(l.key, actual)
	}
	l.endPreemptible() // the cost is known, so the response has begun
	l.cost = int64(min(actual, maxTokens))
	c.chargeCorrection(l, int64(l.tokens)-l.cost)
}

// CorrectAgain replaces the cost that Correct was told by one that is known better now. It does
// nothing before Correct, and for a preempted lease. A cost below 0 is unknown and changes nothing.
// CorrectAgain may be called before Release or after.
func (l *Lease) CorrectAgain(actual int) {
	l.c.mu.Lock()
	defer l.c.unlockAndRun()
	l.c.correctLeaseAgain(l, actual)
}

func (c *Controller) correctLeaseAgain(l *Lease, actual int) {
	if actual < 0 || !l.corrected || l.preempted {
		return
	}
	if l.key != nil {
		c.correctLeaseAgain(l.key, actual)
	}
	before := l.cost
	l.cost = int64(min(actual, maxTokens))
	c.chargeCorrection(l, before-l.cost)
}

// chargeCorrection gives the tokens of a correction back to the buckets of the lease, or charges
// them if the number is negative.
func (c *Controller) chargeCorrection(l *Lease, correction int64) {
	back := correction
	switch {
	case l.underTask != "":
		back, _ = l.account.spend(-correction, 0)
		back = -back
	case l.task:
		back = l.account.correct(l.cost)
	}
	now := time.Now()
	for _, b := range []*bucket{&l.gate.usage.bucket, &l.tenant.tokens} {
		b.refill(now)
		if c.shared != nil && !l.grantedAlone {
			b.correctWithoutDebt(back)
		} else {
			b.correct(back)
		}
	}
	if c.shared != nil && l.released {
		c.afterUnlock = append(c.afterUnlock, func() { c.shared.Correct(l.gate.model, l.tenant.name, l.underTask, correction) })
	} else {
		l.correction += correction
	}
	if back > 0 {
		l.gate.inquiry.clearHold() // the tokens that were missing may be there now
	}
	if back != 0 {
		c.admitWaiters(l.gate, now)
	}
	if back > 0 && l.tenant.parked.length > 0 {
		l.tenant.deniedReason = Granted
		c.unparkFlows(l.tenant, now)
	}
}
