package admission

import "time"

// tenant is the state of one tenant over all models.
type tenant struct {
	name   string
	limits TenantLimits
	// running counts leases: prefill of them have had no token yet, and tasks of them are tasks.
	running, prefill, tasks int
	// waiting counts waiters that need a lease. waitingRequests and waitingTokens are what the
	// waiters will be charged, which the buckets reserve for them.
	waiting                        int
	waitingRequests, waitingTokens int64
	waitingBytes                   int64
	// waiters counts all waiters, also those with Request.UnderTask.
	waiters  int
	requests bucket
	tokens   bucket

	// parked are flows that the tenant's own limits keep from being served.
	parked ring
	// deniedReason is the last denial of the shared state for the tenant's limits, and holds until
	// deniedUntil. Granted means none.
	deniedReason Reason
	deniedUntil  time.Time
	sharedQuota  sharedQuota
	backoff      backoff
	deniedTimer  *time.Timer
	// returns are the times at which callers were told that the tenant's limits have room.
	returns returnTimes
}

// sharedQuota is the tenant's quota by the last verdict of the shared state, as buckets that fill
// from then on. known is false if there was none, or if this gateway decides alone.
type sharedQuota struct {
	known            bool
	requests, tokens bucket
}

func (s *sharedQuota) resize(l TenantLimits, now time.Time) {
	s.requests.resize(l.RequestsPerMinute, now)
	s.tokens.resize(l.TokensPerMinute, now)
}

func (s *sharedQuota) quota(now time.Time) Quota {
	return Quota{Requests: allowance(&s.requests, 0, now), Tokens: allowance(&s.tokens, 0, now)}
}

// setSharedQuota sets what the shared state has just told. Limits may have changed since it was
// asked.
func (t *tenant) setSharedQuota(q Quota, now time.Time) {
	t.sharedQuota = sharedQuota{known: q != (Quota{}), requests: q.Requests.bucket(false, now), tokens: q.Tokens.bucket(true, now)}
	t.sharedQuota.resize(t.limits, now)
}

// bucket returns a bucket that has this allowance now.
func (a Allowance) bucket(deep bool, now time.Time) bucket {
	b := bucket{perMinute: min(max(a.Limit, 0), maxTokens), updatedAt: now, deep: deep}
	if b.perMinute == 0 {
		return b
	}
	longest := (b.size() - b.lowest()) / b.perMinute
	b.level = b.size() - min(a.Reset.Microseconds(), longest)*b.perMinute
	if a.Remaining > 0 { // Reset is rounded up
		b.level = min(max(b.level, a.Remaining*unitsPerToken), b.size())
	}
	return b
}

// isAtLimit reports whether the tenant's own limits keep the request from being admitted now.
// checkTenantLimits has checked the limit of requests at once on arrival, except for a preempted
// request.
func (t *tenant) isAtLimit(a *arrival) bool {
	if t.deniedReason != Granted && a.concernedBy(t.deniedReason) {
		return true
	}
	return a.Prefill && isReached(t.prefill, t.limits.MaxPrefill) ||
		a.Preempted && a.needsLease() && isReached(t.running, t.limits.MaxConcurrent)
}

// isDenied reports whether the shared state has denied the tenant a limit that refuses the request.
// TenantPrefill makes requests wait.
func (t *tenant) isDenied(a *arrival) bool {
	return t.deniedReason != Granted && t.deniedReason != TenantPrefill && a.needsLease()
}

// concernedBy reports whether the limit of a tenant that reason names bounds the request.
func (a *arrival) concernedBy(reason Reason) bool {
	switch reason {
	case TenantPrefill:
		return a.Prefill
	case TenantStreams:
		return a.needsLease()
	}
	return a.needsLease() || a.needTokens > 0 || a.needRequests > 0
}

func (t *tenant) unpark(f *flow) {
	t.parked.remove(f)
	f.parked = false
	f.band.parked -= f.count
}

// setLimits changes the limits. The buckets get the part that share returns.
func (t *tenant) setLimits(l TenantLimits, share func(int) int, now time.Time) {
	t.limits = l
	t.requests.resize(share(l.RequestsPerMinute), now)
	t.tokens.resize(share(l.TokensPerMinute), now)
	t.sharedQuota.resize(l, now)
}

// shortage returns which bucket has too little for one more request behind the waiters, and for how
// long.
func (t *tenant) shortage(a *arrival, now time.Time) (Reason, time.Duration) {
	var requests, tokens time.Duration
	if a.needRequests > 0 {
		requests = t.requests.wait(t.waitingRequests+a.needRequests, now)
	}
	if a.needsLease() || a.needTokens > 0 {
		tokens = t.tokens.wait(t.waitingTokens+a.needTokens, now)
	}
	switch {
	case requests > 0:
		return TenantRequests, max(requests, tokens)
	case tokens > 0:
		return TenantTokens, tokens
	}
	return Granted, 0
}

// countWaiter counts a waiter (n = 1), or uncounts it (n = -1).
func (t *tenant) countWaiter(w *waiter, n int) {
	t.waiters += n
	t.waitingBytes += int64(n * w.Bytes)
	t.waitingRequests += int64(n) * w.needRequests
	t.waitingTokens += int64(n) * w.needTokens
	if w.needsLease() {
		t.waiting += n
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
		Requests: allowance(&t.requests, t.waitingRequests, now),
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
	if wait := t.requests.wait(t.waitingRequests, now); wait > 0 {
		return TenantRequests, wait
	}
	if wait := t.tokens.wait(t.waitingTokens, now); wait > 0 {
		return TenantTokens, wait
	}
	return Granted, 0
}
