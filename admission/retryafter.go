package admission

import (
	"math/rand/v2"
	"time"
)

const (
	// jitterPart of a wait is the most that is put on top, but at least jitterFloor … jitterLeast.
	jitterFraction = 4
	minJitter      = 20 * time.Millisecond
	minJitterRange = 50 * time.Millisecond

	// shortestAdvice and longestAdvice bound what is learned rather than known.
	minRetryAfter = time.Second
	maxRetryAfter = time.Minute

	// slotBackoffFrom … slotBackoffTo is how long a task is told to stay away when it lacks a slot: nobody guesses durations.
	minSlotBackoff = 100 * time.Millisecond
	maxSlotBackoff = 250 * time.Millisecond
)

// jittered adds to a wait, so that those who were told the same do not come back at once. It never takes away.
func addJitter(wait time.Duration) time.Duration {
	return wait + minJitter + rand.N(max(wait/jitterFraction, minJitterRange)-minJitter)
}

// slotBackoff is how long to stay away from a model without a free slot.
func slotBackoff() time.Duration { return minSlotBackoff + rand.N(maxSlotBackoff-minSlotBackoff+1) }

// pace learns how often a model admits.
type admissionPace struct {
	lastAdmission time.Time
	meanInterval  time.Duration
}

// paceMemory is about how many admissions the mean goes back.
const paceWindow = 8

func (p *admissionPace) observe(now time.Time) {
	if !p.lastAdmission.IsZero() {
		since := max(now.Sub(p.lastAdmission), 0)
		if p.meanInterval == 0 {
			p.meanInterval = since
		}
		p.meanInterval += (since - p.meanInterval) / paceWindow
	}
	p.lastAdmission = now
}

// advice is how long so many admissions take, within bounds. A model that has stood still for longer than usual is slower than it was.
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

// refused is a refusal for a reason that ends when others end. What waits in a full queue now has to go before a new request finds it
// better; of a tenant's requests one has to end.
func (c *Controller) refusal(q *queue, t *tenant, reason Reason, now time.Time) *Refused {
	n := 1
	if reason == QueueFull || reason == Evicted {
		n = max(q.length, 1)
	}
	wait := maxRetryAfter
	if q.gate != nil {
		wait = q.gate.pace.retryAfter(n, now)
	} else {
		for _, m := range q.pool.memberships {
			wait = min(wait, m.gate.pace.retryAfter(n, now))
		}
	}
	return &Refused{Reason: reason, RetryAfter: addJitter(wait), Quota: c.quota(t, now)}
}

// hopeless says why a request that may wait for this long, behind so many tokens of its own tenant, would wait in vain. Those of other
// tenants may go after it or leave, and only make the advice longer.
func (c *Controller) checkTokenWait(g *gate, a *arrival, ahead int64, left time.Duration) error {
	if a.SlotOnly {
		return nil
	}
	if !g.usage.fits(a.Tokens) {
		return ErrNeverFits
	}
	now := time.Now()
	if c.shared != nil || a.Preempted || g.usage.bucket.wait(g.tokensAheadAtLeast(a, ahead), now) <= max(left, 0) {
		return nil
	}
	t := c.tenant(a.Tenant)
	wait := g.usage.bucket.wait(g.tokensAheadLikely(t, a, ahead), now)
	return &Refused{Reason: ModelTokens, RetryAfter: addJitter(wait), Quota: c.quota(t, now)}
}

// surely is how many tokens go until the request has its own, at least.
func (g *gate) tokensAheadAtLeast(a *arrival, ahead int64) int64 {
	for b := a.band + 1; b < bands; b++ {
		ahead += g.queue.bands[b].tokens
	}
	return ahead + int64(a.Tokens)
}

// likely adds what fair shares let others of its band have until then.
func (g *gate) tokensAheadLikely(t *tenant, a *arrival, ahead int64) int64 {
	b := &g.queue.bands[a.band]
	others, weights := b.tokens, int64(0)
	for f, n := b.ring.cursor, 0; n < b.ring.length; f, n = f.next, n+1 {
		weights += f.tenant.limits.weight()
	}
	if f := b.flows[a.Tenant]; f != nil {
		others -= f.tokens
		weights -= t.limits.weight()
	}
	// Weights and tokens are bounded so that their product may be too large for an int64.
	mine := float64(ahead + int64(a.Tokens))
	return g.tokensAheadAtLeast(a, ahead) + int64(min(float64(others), mine*float64(max(weights, 0))/float64(t.limits.weight())))
}

// postpone is how long a request that does not wait should stay away: the smallest over the models that it may go to, of the longer
// of its wait for tokens and its wait for a slot. It is never 0.
func (c *Controller) postponement(q *queue, a *arrival, now time.Time) time.Duration {
	slot := slotBackoff()
	if q.gate != nil {
		wait, tokens := c.gatePostponement(q.gate, a, slot, now)
		return withTokenJitter(wait, tokens)
	}
	best, known := slot, false
	var bestTokens time.Duration
	for _, m := range q.pool.memberships {
		if !m.gate.canServe(a) {
			continue
		}
		if wait, tokens := c.gatePostponement(m.gate, a, slot, now); !known || wait < best {
			best, bestTokens, known = wait, tokens, true
		}
		if q.pool.gatesWithFreeLease == 0 && best == slot {
			break // where no model has room, none has a shorter wait
		}
	}
	return withTokenJitter(best, bestTokens)
}

// advised puts jitter on top of what is known exactly; the wait for a slot is random as it is.
func withTokenJitter(wait, tokens time.Duration) time.Duration {
	if tokens > 0 {
		return max(wait, addJitter(tokens))
	}
	return wait
}

// stay is how long to stay away from one model, and how much of that is for tokens.
func (c *Controller) gatePostponement(g *gate, a *arrival, slot time.Duration, now time.Time) (wait, tokens time.Duration) {
	if c.shared != nil {
		tokens = g.inquiry.tokenWait(a, now)
	} else {
		ahead := int64(0)
		for b := bands - 1; b >= a.band; b-- {
			ahead += g.queue.bands[b].tokens
		}
		tokens = g.usage.bucket.wait(ahead+int64(a.Tokens), now)
	}
	// Whatever else keeps it, a slot or others that come first, ends when somebody ends.
	if tokens == 0 || !g.usage.hasFreeLease() || g.hasWaiters() {
		return max(tokens, slot), tokens
	}
	return tokens, tokens
}
