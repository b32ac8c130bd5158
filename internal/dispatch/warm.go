package dispatch

import "time"

// Slow start: a replica that becomes pickable beside others that serve is idle, so that a rule
// which looks at loads would send it everything at once, with an empty prefix cache and perhaps
// kernels yet to be compiled. For Policy.SlowStart its load counts as higher than it is. Replicas
// that are all new have nobody to be compared with, and start at once.

// clock is the time while a replica warms up, and zero when none does: then no pick asks for the
// time.
func (t *modelRoute) clock() time.Time {
	if !t.warming.Load() {
		return time.Time{}
	}
	now := time.Now()
	if !now.Before(t.warmAt) {
		t.warming.Store(false)
		return time.Time{}
	}
	return now
}

// beginWarming notes until when some replica warms up.
func (t *modelRoute) beginWarming(now time.Time) {
	if t.policy.SlowStart <= 0 || len(t.replicas) < 2 {
		return
	}
	for _, r := range t.replicas {
		if at := r.since.Add(t.policy.SlowStart); at.After(t.warmAt) {
			t.warmAt = at
		}
	}
	t.warming.Store(t.warmAt.After(now))
}

// warmth is how far the replica is in its slow start: 1 is warm.
func (t *modelRoute) warmth(i int, now time.Time) float64 {
	return min(max(float64(now.Sub(t.replicas[i].since))/float64(t.policy.SlowStart), 0), 1)
}

// someWarm says whether there is a warm replica to compare the others with.
func (t *modelRoute) someWarm(now time.Time) bool {
	for i := range t.replicas {
		if t.warmth(i, now) == 1 {
			return true
		}
	}
	return false
}

// handicap adds to the loads of replicas that warm up: at first the average load of the warm ones
// (at least 1, at most the replica's limit), less and less until nothing. The full ones are warm
// too. It makes no candidate a full one.
func (t *modelRoute) handicap(loads []int, now time.Time) {
	total, warm := int64(0), 0
	for i := range t.replicas {
		if t.warmth(i, now) == 1 {
			total += t.replicas[i].load.Load()
			warm++
		}
	}
	if warm == 0 {
		return
	}
	average := max(float64(total)/float64(warm), 1)
	for i := range t.replicas {
		left := 1 - t.warmth(i, now)
		if loads[i] < 0 || left == 0 {
			continue
		}
		if limit := t.replicas[i].limit; limit > 0 {
			loads[i] += int(min(average, float64(limit))*left + 0.5)
		} else {
			loads[i] += int(average*left + 0.5)
		}
	}
}

// wholeTurn is what a replica's turns of round robin add up to when it takes one.
const wholeTurn = 1 << 16

// passes says whether the replica lets this turn of round robin pass: it takes the share of its
// turns that is its warmth. taken is how many parts of a turn it has had, this one included.
func passes(warmth float64, taken func(step uint64) uint64) bool {
	if warmth == 1 {
		return false
	}
	step := uint64(warmth * wholeTurn)
	after := taken(step)
	return after/wholeTurn == (after-step)/wholeTurn
}
