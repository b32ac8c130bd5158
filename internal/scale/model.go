package scale

import (
	"cmp"
	"time"
)

// modelState is the state of one model. Scaler.mu guards it.
type modelState struct {
	Model
	desired int
	// last is the last change of desired.
	last Change
	// due is when the model is updated again. The zero time means at once.
	due time.Time
	// hasDemand is true if a request waits, or may wait after an eviction, and the model was not
	// updated since.
	hasDemand bool
	// admitted is Load.Admitted at the last update.
	admitted uint64
	// noted is the load when noteRefusals was last called; known says that it was.
	noted Load
	known bool
	// hasRefused is true if a request was refused and the model was neither updated nor evicted
	// since. The last one was refused at about refusedAt, which is the zero time if the model has
	// served since. At unreadyAt no replica was ready.
	hasRefused           bool
	refusedAt, unreadyAt time.Time
	// belowSince is since when fewer than desired replicas are enough, or the zero time if they are
	// not. peak is the largest number that was needed since.
	belowSince time.Time
	peak       int
	// patience is by how much the cooldown is longer because fewer replicas were not enough after
	// the last falls. 0 stands for 1.
	patience int
	// fell is when the number fell for want of load.
	fell time.Time
}

// interval returns the time between two updates of the model.
func (st *modelState) interval() time.Duration {
	usual := usualInterval
	if st.Min == st.Max {
		return usual
	}
	if st.Target != (Target{}) {
		usual = min(usual, targetInterval)
	}
	return min(usual, max(st.Cooldown/2, minInterval))
}

// apply changes the desired number for the load.
func (st *modelState) apply(l Load, now time.Time) {
	st.noteRefusals(l, now)
	need, reason := st.needed(l, 1)
	// Fewer replicas must hold the target with a margin, or the next request would start one again.
	keep, _ := st.needed(l, keepShare)
	st.forgetRequests(l)
	switch {
	case need > st.desired:
		st.learnPatience(now)
		st.change(need, reason, now)
		return
	case keep >= st.desired:
		st.belowSince, st.peak = time.Time{}, 0
		return
	}
	if st.peak = max(st.peak, keep); st.belowSince.IsZero() {
		st.belowSince = now
	}
	cooldown := st.Cooldown
	if l.busy() > 0 {
		cooldown *= time.Duration(max(st.patience, 1))
	}
	if now.Sub(st.belowSince) >= cooldown {
		if reason = FewerEnough; st.peak == 0 {
			reason = Idle
		}
		st.change(st.peak, reason, now)
		st.fell = now
	}
}

// forgetRequests makes the requests that have come and gone until now count no more.
func (st *modelState) forgetRequests(l Load) {
	st.admitted, st.hasRefused = l.Admitted, false
}

// retryTime is how long the client of a refused request may take to try again once a replica is
// ready. Until then the replica is not evicted.
const retryTime = 30 * time.Second

// isNeeded reports whether the model has requests, or has refused one and served none since. The
// client of that one is to find the replica that it has started. A model whose replicas keep
// failing is not kept for that.
func (st *modelState) isNeeded(l Load, now time.Time) bool {
	st.noteRefusals(l, now)
	switch {
	case l.Running+l.Queued > 0:
		return true
	case st.refusedAt.IsZero() || l.Failing || now.Sub(st.refusedAt) >= max(st.Cooldown, retryTime):
		return false
	case l.Ready == 0:
		st.unreadyAt = now
		return true
	}
	return now.Sub(st.refusedAt) < retryTime || now.Sub(st.unreadyAt) < retryTime
}

// noteRefusals notes whether requests were refused since it was last called. What a gateway refused
// before it was known counts as nothing. Requests are refused only while no replica is ready, so a
// model that has a ready one and has admitted requests has served since.
func (st *modelState) noteRefusals(l Load, now time.Time) {
	refused := st.known && l.Refused > st.noted.Refused
	for gateway, n := range l.RefusedElsewhere {
		before, known := st.noted.RefusedElsewhere[gateway]
		refused = refused || known && n > before
	}
	if refused {
		st.hasRefused, st.refusedAt = true, now
	}
	if l.Ready > 0 && l.Admitted != st.noted.Admitted {
		st.refusedAt = time.Time{}
	}
	st.noted, st.known = l, true
}

// maxPatience bounds patience.
const maxPatience = 4

// learnPatience is called when the number rises. If it fell shortly before, the next fall takes
// twice as long. Otherwise the load has changed, and the next fall takes one cooldown.
func (st *modelState) learnPatience(now time.Time) {
	if st.fell.IsZero() {
		return
	}
	patience := max(st.patience, 1)
	if now.Sub(st.fell) < st.Cooldown*time.Duration(patience) {
		st.patience = min(2*patience, maxPatience)
	} else {
		st.patience = 1
	}
	st.fell = time.Time{}
}

// change sets the desired number and keeps why.
func (st *modelState) change(to int, reason Reason, now time.Time) {
	if to != st.desired {
		st.last = Change{From: st.desired, To: to, Reason: reason, At: now}
	}
	st.desired, st.belowSince, st.peak = to, time.Time{}, 0
}

// needed returns how many replicas the load needs now, and what needs them. share is the share of
// the Target that counts as the target.
func (st *modelState) needed(l Load, share float64) (int, Reason) {
	need, reason := st.neededByQueue(l), RequestsWait
	if n, r := st.neededByTarget(l, share); n > need {
		need, reason = n, r
	}
	return min(max(need, st.Min), st.Max), reason
}

// busy returns how many of the model's requests replicas could serve at once.
func (l Load) busy() int {
	n := l.Running + l.Queued - l.Held
	if l.MaxRunning > 0 {
		n = min(n, max(l.MaxRunning, l.Running))
	}
	return n
}

// neededByQueue returns how many replicas the waiting requests need.
func (st *modelState) neededByQueue(l Load) int {
	known := cmp.Or(max(l.PerReplica, 0), st.PerReplica)
	per := cmp.Or(known, unknownPerReplica)
	need := (l.busy() + per - 1) / per
	if known == 0 && l.Ready == 0 {
		need = min(need, 1) // The first replica may tell how many requests it handles.
	}
	if l.Queued == l.Held {
		need = min(need, max(st.desired, 1)) // No request waits for a replica, so the current number is enough.
	}
	if need == 0 && (l.Queued > 0 || st.hasRefused) {
		need = 1 // A request that is held, or did not wait, wants a replica.
	}
	if need == 0 && l.Admitted != st.admitted {
		need = min(1, st.desired) // A request has come and gone since the last update.
	}
	return need
}
