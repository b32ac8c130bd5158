package predict

import (
	"time"

	"github.com/sluice-gateway/sluice/ringhash"
)

// Candidate is a replica as Choose sees it.
type Candidate struct {
	// TTFT is the predicted time to the first token.
	TTFT time.Duration
	// Matched is the length of the request's beginning that the replica has in its cache.
	Matched int32
	// Load is the number of requests at the replica. A negative load excludes it.
	Load int
}

// Reason is why a replica was chosen.
type Reason string

// The reasons.
const (
	// Fastest: the replica has the least predicted time to the first token, by far.
	Fastest Reason = "fastest"
	// Cached: of the replicas that are about as fast, it has most of the beginning.
	Cached Reason = "cached"
	// Session: it serves the session, and is not much slower than the fastest.
	Session Reason = "session"
	// Ring: the replicas are about as fast, and the hash ring decides.
	Ring Reason = "ring"
)

// Predicted times within tieShare and tieSlack of the least count as equal. A session may cost
// sessionShare and sessionSlack more than the least.
const (
	tieShare     = 0.05
	tieSlack     = 5 * time.Millisecond
	sessionShare = 0.25
	sessionSlack = 50 * time.Millisecond
)

// Choice is the input of Choose.
type Choice struct {
	// Ring has the replicas in the order of Candidates.
	Ring *ringhash.Ring
	// Key is the position of the request on the ring, Bound the bound of loads there.
	Key   uint64
	Bound ringhash.Bound
	// Session is the index of the replica that serves the session of the request; negative means
	// none.
	Session int
}

// Choose returns the index of the replica that shall serve the request, and why; -1 if all are
// excluded. The least predicted time wins. Of those that are about equal, the one with most of the
// beginning in its cache wins, if its load is within the bound. Otherwise the ring decides, so that
// several gateways agree and requests that have nothing in common spread.
//
// loads is storage of the length of candidates.
func (c Choice) Choose(candidates []Candidate, loads []int) (int, Reason) {
	best := time.Duration(-1)
	total, free := 0, 0
	for i := range candidates {
		if candidates[i].Load < 0 {
			continue
		}
		free++
		total += candidates[i].Load
		if best < 0 || candidates[i].TTFT < best {
			best = candidates[i].TTFT
		}
	}
	if free == 0 {
		return -1, ""
	}
	if s := c.Session; s >= 0 && candidates[s].Load >= 0 && candidates[s].TTFT <= within(best, sessionShare, sessionSlack) {
		return s, Session
	}
	limit := within(best, tieShare, tieSlack)
	tied, last := 0, -1
	cached := -1
	for i := range candidates {
		x := &candidates[i]
		loads[i] = -1
		if x.Load < 0 || x.TTFT > limit {
			continue
		}
		loads[i] = x.Load
		tied++
		last = i
		if x.Matched > 0 && c.Bound.Allows(x.Load, total, free) && (cached < 0 || x.Matched > candidates[cached].Matched ||
			x.Matched == candidates[cached].Matched && x.TTFT < candidates[cached].TTFT) {
			cached = i
		}
	}
	switch {
	case tied == 1:
		return last, Fastest
	case cached >= 0:
		return cached, Cached
	}
	return c.Ring.Pick(c.Key, loads, c.Bound), Ring
}

func within(best time.Duration, share float64, slack time.Duration) time.Duration {
	return best + time.Duration(share*float64(best)) + slack
}
