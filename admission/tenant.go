package admission

import "time"

// tenant is the state of one tenant over all models.
type tenant struct {
	name   string
	limits TenantLimits
	// running counts leases: prefill of them have had no token yet, and tasks of them are tasks.
	running, prefill, tasks int
	// waiting counts waiters that are no task's. They were not charged yet, but the buckets reserve
	// their tokens and requests for them.
	waiting       int
	waitingTokens int64
	waitingBytes  int64
	// waiters counts all waiters, also those with Request.SlotOnly.
	waiters  int
	requests bucket
	tokens   bucket

	// parked are flows that the tenant's own limits keep from being served.
	parked ring
	// deniedReason is the last denial of the shared state for the tenant's limits, and holds until
	// deniedUntil. Granted means none.
	deniedReason Reason
	deniedUntil  time.Time
	sharedQuota  Quota
	backoff      backoff
	deniedTimer  *time.Timer
}

// isAtLimit reports whether the tenant's own limits keep the request from being admitted now.
// checkTenantLimits has checked the limit of requests at once on arrival, except for a preempted
// request.
func (t *tenant) isAtLimit(a *arrival) bool {
	if a.SlotOnly {
		return false
	}
	if t.deniedReason != Granted && (t.deniedReason != TenantPrefill || a.Prefill) {
		return true
	}
	return a.Prefill && isReached(t.prefill, t.limits.MaxPrefill) || a.Preempted && isReached(t.running, t.limits.MaxConcurrent)
}

func (t *tenant) unpark(f *flow) {
	t.parked.remove(f)
	f.parked = false
}

// setLimits changes the limits. The buckets get the part that share returns.
func (t *tenant) setLimits(l TenantLimits, share func(int) int, now time.Time) {
	t.limits = l
	t.requests.resize(share(l.RequestsPerMinute), now)
	t.tokens.resize(share(l.TokensPerMinute), now)
}

// shortage returns which bucket has too little for one more request behind the waiters, and for how
// long.
func (t *tenant) shortage(tokens int, now time.Time) (Reason, time.Duration) {
	if wait := t.requests.wait(int64(t.waiting)+1, now); wait > 0 {
		return TenantRequests, max(wait, t.tokens.wait(t.waitingTokens+int64(tokens), now))
	}
	if wait := t.tokens.wait(t.waitingTokens+int64(tokens), now); wait > 0 {
		return TenantTokens, wait
	}
	return Granted, 0
}

// countWaiter counts a waiter (n = 1), or uncounts it (n = -1).
func (t *tenant) countWaiter(w *waiter, n int) {
	t.waiters += n
	t.waitingBytes += int64(n * w.Bytes)
	if !w.SlotOnly {
		t.waiting += n
		t.waitingTokens += int64(n * w.Tokens)
	}
	if t.waiters == 0 {
		t.deniedReason = Granted // the denial was for waiters that have left
	}
}

// isIdle reports whether a new tenant would be in the same state.
func (t *tenant) isIdle(now time.Time) bool {
	t.requests.refill(now)
	t.tokens.refill(now)
	return t.running == 0 && t.waiters == 0 && t.limits == (TenantLimits{}) &&
		t.requests.level >= t.requests.size() && t.tokens.level >= t.tokens.size()
}

// localQuota is the tenant's quota by this gateway's counts.
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

// overdraft returns which bucket has less than the waiters need, and for how long.
func (t *tenant) overdraft(now time.Time) (Reason, time.Duration) {
	if wait := t.requests.wait(int64(t.waiting), now); wait > 0 {
		return TenantRequests, wait
	}
	if wait := t.tokens.wait(t.waitingTokens, now); wait > 0 {
		return TenantTokens, wait
	}
	return Granted, 0
}
