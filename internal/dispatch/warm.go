package dispatch

import (
	"sync/atomic"
	"time"
)

// Slow start: a replica that becomes pickable is idle, so a strategy that compares loads would send
// it every new request. Its prefix cache is still empty, and its engine may have kernels left to
// compile. So for Policy.SlowStart the replica's load counts as higher than it is. Without a warm
// replica beside it there is nothing to compare with, and no load is raised.

// warmUpTime returns the current time while some replica warms up, and the zero time otherwise.
// Most picks so need not read the clock.
func (t *modelRoute) warmUpTime() time.Time {
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

// startWarming sets warmAt, the time at which the last replica of the route is warm, and warming.
func (t *modelRoute) startWarming(now time.Time) {
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

// warmth returns how far replica i is in its slow start, from 0 to 1. 1 means warm.
func (t *modelRoute) warmth(i int, now time.Time) float64 {
	return min(max(float64(now.Sub(t.replicas[i].since))/float64(t.policy.SlowStart), 0), 1)
}

// anyWarm reports whether at least one replica is warm.
func (t *modelRoute) anyWarm(now time.Time) bool {
	for i := range t.replicas {
		if t.warmth(i, now) == 1 {
			return true
		}
	}
	return false
}

// raiseWarmingLoads raises the loads of the replicas that warm up. The increase is at first the
// average load of the warm replicas, at least 1 and at most the replica's limit. It falls linearly
// to 0. The average includes replicas without a free slot. A load of -1, which means no free slot,
// stays.
func (t *modelRoute) raiseWarmingLoads(loads []int, now time.Time) {
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

// wholeRound is one round of round robin in the unit of counter.rounds.
const wholeRound = 1 << 16

// skipsRound reports whether a replica that warms up is skipped in this round of round robin. The
// replica is picked in a share of the rounds that equals its warmth. rounds are its counter.rounds.
func (p *pickInput) skipsRound(warmth float64, rounds *atomic.Uint64) bool {
	if warmth == 1 {
		return false
	}
	step := uint64(warmth * wholeRound)
	after := rounds.Load() + step
	if !p.peek {
		after = rounds.Add(step)
	}
	return after/wholeRound == (after-step)/wholeRound
}
