package admission

import (
	"cmp"
	"math/rand/v2"
	"time"
)

const (
	// minRetryAfter and maxRetryAfter bound a Retry-After that was learned and not calculated.
	minRetryAfter = time.Second
	maxRetryAfter = time.Minute

	// minSlotBackoff and maxSlotBackoff bound the time after which a task that lacks a slot tries
	// again. How long requests last is unknown, so the time is random.
	minSlotBackoff = 100 * time.Millisecond
	maxSlotBackoff = 250 * time.Millisecond
)

// slotBackoff returns a random time after which to try a model without a free slot again.
func slotBackoff() time.Duration { return minSlotBackoff + rand.N(maxSlotBackoff-minSlotBackoff+1) }

// admissionPace learns the mean interval between the admissions of a model. Its zero value knows
// nothing.
type admissionPace struct {
	lastAdmission time.Time
	meanInterval  time.Duration
}

// paceWindow is about the number of admissions that the mean covers.
const paceWindow = 8

func (p *admissionPace) observe(now time.Time) {
	if !p.lastAdmission.IsZero() {
		since := max(now.Sub(p.lastAdmission), 0)
		p.meanInterval = cmp.Or(p.meanInterval, since)
		p.meanInterval += (since - p.meanInterval) / paceWindow
	}
	p.lastAdmission = now
}

// retryAfter is the time that n admissions will take, between minRetryAfter and maxRetryAfter. If
// the last admission is longer ago than the mean interval, that time is taken as the interval.
func (p *admissionPace) retryAfter(n int, now time.Time) time.Duration {
	interval := p.meanInterval
	if !p.lastAdmission.IsZero() {
		interval = max(interval, now.Sub(p.lastAdmission))
	}
	if interval >= maxRetryAfter || n >= int(maxRetryAfter/max(interval, 1)) {
		return maxRetryAfter
	}
	return max(interval*time.Duration(n), minRetryAfter)
}

// refusal makes the error for a reason that ends when other requests end. A full queue has room for
// a new request when its present waiters were admitted. A tenant at a limit needs one of its
// requests to end.
func (c *Controller) refusal(q *queue, t *tenant, reason Reason, now time.Time) *Refused {
	n := 1
	if reason == QueueFull || reason == Evicted {
		n = max(q.length, 1)
	}
	wait := maxRetryAfter
	for g := range q.gates {
		wait = min(wait, g.pace.retryAfter(n, now))
	}
	return &Refused{Reason: reason, RetryAfter: spread(wait), Quota: c.quota(t, now)}
}

// refusalUntil makes the error for a limit of the tenant that has room after wait.
func (c *Controller) refusalUntil(t *tenant, reason Reason, wait time.Duration, now time.Time) *Refused {
	return &Refused{Reason: reason, RetryAfter: t.returns.reserve(max(wait, 0), now), Quota: c.quota(t, now)}
}

// checkTokenWait returns why a request would wait in vain for the model's tokens. left is how long
// it may wait, ahead is the tokens of its own tenant before it. The waiters of other tenants may
// give up, so they only make RetryAfter longer.
func (c *Controller) checkTokenWait(g *gate, a *arrival, ahead int64, left time.Duration) error {
	if !a.fits(g.usage.limits.TokensPerMinute) {
		return ErrNeverFits
	}
	if !a.needsLease() && a.needTokens == 0 {
		return nil
	}
	now := time.Now()
	if c.shared != nil || a.Preempted || g.usage.bucket.wait(g.tokensAheadAtLeast(a, ahead), now) <= max(left, 0) {
		return nil
	}
	t := c.tenant(a.Tenant)
	wait := g.usage.bucket.wait(g.tokensAheadLikely(t, a, ahead), now)
	return &Refused{Reason: ModelTokens, RetryAfter: g.returns.reserve(wait, now), Quota: c.quota(t, now)}
}

// tokensAheadAtLeast is the number of tokens that the bucket gives before the request has its own,
// at least.
func (g *gate) tokensAheadAtLeast(a *arrival, ahead int64) int64 {
	for b := a.band + 1; b < bands; b++ {
		ahead += g.queue.bands[b].tokens
	}
	return ahead + a.needTokens
}

// tokensAheadLikely adds what the fair shares of other tenants of the band take until then.
func (g *gate) tokensAheadLikely(t *tenant, a *arrival, ahead int64) int64 {
	b := &g.queue.bands[a.band]
	others, weights := b.tokens, b.ring.weights
	if f := b.flows[a.Tenant]; f != nil {
		others -= f.tokens
		if f.next != nil && !f.parked {
			weights -= f.ringWeight
		}
	}
	// The product of a weight and tokens may be too large for an int64.
	mine := float64(ahead + a.needTokens)
	return g.tokensAheadAtLeast(a, ahead) + int64(min(float64(others), mine*float64(weights)/float64(t.limits.weight())))
}

// postponement is how long a request that does not wait should stay away. For each model that it
// may go to, this is the longer of the wait for tokens and the wait for a slot. The shortest of
// them counts. It is never 0.
func (c *Controller) postponement(q *queue, a *arrival, now time.Time) time.Duration {
	slot := slotBackoff()
	if q.gate != nil {
		wait, tokens := c.gatePostponement(q.gate, a, slot, now)
		return q.gate.reserveReturn(wait, tokens, now)
	}
	best, bestTokens := slot, time.Duration(0)
	var bestGate *gate
	for _, m := range q.pool.memberships {
		if !m.gate.canServe(a) {
			continue
		}
		if wait, tokens := c.gatePostponement(m.gate, a, slot, now); bestGate == nil || wait < best {
			best, bestTokens, bestGate = wait, tokens, m.gate
		}
		if q.pool.gatesWithFreeLease == 0 && best == slot {
			break // while no model has a free lease, none has a shorter wait
		}
	}
	return bestGate.reserveReturn(best, bestTokens, now)
}

// reserveReturn reserves the end of a wait for tokens, which is exact. The wait for a slot is
// random already.
func (g *gate) reserveReturn(wait, tokens time.Duration, now time.Time) time.Duration {
	if tokens > 0 && tokens >= wait {
		return g.returns.reserve(tokens, now)
	}
	return wait
}

// gatePostponement is how long to stay away from one model, and how much of that is for tokens.
func (c *Controller) gatePostponement(g *gate, a *arrival, slot time.Duration, now time.Time) (wait, tokens time.Duration) {
	if c.shared != nil {
		tokens = g.inquiry.tokenWait(a, now)
	} else {
		ahead := int64(0)
		for b := bands - 1; b >= a.band; b-- {
			ahead += g.queue.bands[b].tokens
		}
		tokens = g.usage.bucket.wait(ahead+a.needTokens, now)
	}
	// Any other obstacle, such as a slot or earlier waiters, ends when a request ends.
	if tokens == 0 || !g.usage.hasFreeLease() || g.hasWaiters() {
		return max(tokens, slot), tokens
	}
	return tokens, tokens
}
