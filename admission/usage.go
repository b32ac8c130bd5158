package admission

import "time"

// book is what one model has given.
type usage struct {
	limits Limits
	leases int
	bucket bucket
}

// free reports whether there may be one more lease.
func (b *usage) hasFreeLease() bool {
	return b.limits.MaxConcurrent <= 0 || b.leases < b.limits.MaxConcurrent
}

func (b *usage) fits(tokens int) bool { return fits(tokens, b.limits.TokensPerMinute) }

// tenant is what one tenant has, over all models.
type tenant struct {
	name   string
	limits TenantLimits
	// running are leases; prefill of them have had no token; tasks of them are tasks.
	running, prefill, tasks int
	// waiting requests have not taken anything from the buckets, but what they will take is theirs.
	waiting       int
	waitingTokens int64
	waitingBytes  int64
	// waiters counts all in queues, those of admitted tasks too.
	waiters  int
	requests bucket
	tokens   bucket

	// parked are flows that the tenant's own limits keep from going.
	parked ring
	// denied is what the shared state said last about the tenant's limits, and until when that stands; Granted is nothing.
	deniedReason Reason
	deniedUntil  time.Time
	sharedQuota  Quota
	backoff      backoff
	deniedTimer  *time.Timer
}

func (l TenantLimits) weight() int64 { return weight(l.Weight) }

// full reports whether the tenant's own limits keep the request from going now. That it may have one more at once was made sure when it
// came, unless it was preempted.
func (t *tenant) isAtLimit(a *arrival) bool {
	if a.SlotOnly {
		return false
	}
	if t.deniedReason != Granted && (t.deniedReason != TenantPrefill || a.Prefill) {
		return true
	}
	return a.Prefill && reached(t.prefill, t.limits.MaxPrefill) || a.Preempted && reached(t.running, t.limits.MaxConcurrent)
}

func (t *tenant) unpark(f *flow) {
	t.parked.remove(f)
	f.parked = false
}

// set changes the limits. share of them hold for the buckets.
func (t *tenant) setLimits(l TenantLimits, share func(int) int, now time.Time) {
	t.limits = l
	t.requests.resize(share(l.RequestsPerMinute), now)
	t.tokens.resize(share(l.TokensPerMinute), now)
}

// lacks says which of the buckets has too little for a request behind those that wait already, and for how long.
func (t *tenant) shortage(tokens int, now time.Time) (Reason, time.Duration) {
	if wait := t.requests.wait(int64(t.waiting)+1, now); wait > 0 {
		return TenantRequests, max(wait, t.tokens.wait(t.waitingTokens+int64(tokens), now))
	}
	if wait := t.tokens.wait(t.waitingTokens+int64(tokens), now); wait > 0 {
		return TenantTokens, wait
	}
	return Granted, 0
}

// hold counts a waiting request, or no longer.
func (t *tenant) countWaiter(w *waiter, n int) {
	t.waiters += n
	t.waitingBytes += int64(n * w.Bytes)
	if !w.SlotOnly {
		t.waiting += n
		t.waitingTokens += int64(n * w.Tokens)
	}
	if t.waiters == 0 {
		t.deniedReason = Granted // it was said of those who are gone
	}
}

// idle reports whether nobody would miss the tenant.
func (t *tenant) isIdle(now time.Time) bool {
	t.requests.refill(now)
	t.tokens.refill(now)
	return t.running == 0 && t.waiters == 0 && t.limits == (TenantLimits{}) &&
		t.requests.level >= t.requests.size() && t.tokens.level >= t.tokens.size()
}

// left is the tenant's quota by this book.
func (t *tenant) localQuota(now time.Time) Quota {
	return Quota{
		Requests: allowance(&t.requests, int64(t.waiting), now),
		Tokens:   allowance(&t.tokens, t.waitingTokens, now),
	}
}

func allowance(b *bucket, reserved int64, now time.Time) Allowance {
	if b.perMinute == 0 {
		return Allowance{}
	}
	reset := b.wait(b.perMinute+reserved, now)
	return Allowance{Limit: b.perMinute, Remaining: max(b.level/unitsPerToken-reserved, 0), Reset: reset}
}

// overdrawn says which bucket has less than those who wait are to have of it.
func (t *tenant) overdraft(now time.Time) (Reason, time.Duration) {
	if wait := t.requests.wait(int64(t.waiting), now); wait > 0 {
		return TenantRequests, wait
	}
	if wait := t.tokens.wait(t.waitingTokens, now); wait > 0 {
		return TenantTokens, wait
	}
	return Granted, 0
}
