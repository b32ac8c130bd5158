package predict

import (
	"math"
	"time"

	"github.com/sluice-gateway/sluice/ringhash"
)

// Candidate is a replica as Choose sees it.
type Candidate struct {
	// TTFT is the predicted time to the first token, Own the part of it in which the replica
	// computes the request's own tokens.
	TTFT, Own time.Duration
	// Queued is the number of requests whose tokens the replica has yet to compute.
	Queued float64
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

// queueWeight is the second part of what a request costs those that come after it. The more
// requests wait, the more will have to wait for its own tokens. So these count once more for each
// request that waits at the usual replica, and queueWeight times for each that waits at the replica
// itself. The second part sends long prompts to where few requests wait, out of the way of short
// ones. Without requests that wait, the cost is the time to the first token.
const queueWeight = 0.1

// crowdCost is what each request costs beyond the bound of loads. A crowd at one replica gets its
// tokens late, although prompts that are in the cache wait for nothing.
const crowdCost = 10 * time.Millisecond

// Costs within tieShare and tieSlack of the least count as equal. A session may cost sessionShare
// and sessionSlack more than the least.
const (
	tieShare     = 0.02
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
	// Hot remembers the beginnings that requests wait for; nil: they are not looked at. Beginning
	// is the hash of the longest beginning of the request that a replica has; 0: there is none.
	// Now is the time of the choice.
	Hot       *Hot
	Beginning uint64
	Now       time.Time
	// Peek says that Hot does not learn from the choice.
	Peek bool
}

// Choose returns the index of the replica that shall serve the request, and why; -1 if all are
// excluded. The least cost wins: the predicted time to the first token, what the request costs
// others, and whether the replica is crowded. Of the costs that are about equal, the replica with
// most of the beginning in its cache wins, if its load is within the bound. Otherwise the ring
// decides, so that several gateways agree and requests that have nothing in common spread.
//
// loads is storage of the length of candidates.
func (c Choice) Choose(candidates []Candidate, loads []int) (int, Reason) {
	f := c.survey(candidates)
	if f.count == 0 {
		return -1, ""
	}
	chosen, why := c.among(candidates, loads, &f)
	if c.Hot != nil && c.Beginning != 0 && !c.Peek {
		c.remember(&f, &candidates[chosen])
	}
	return chosen, why
}

// among returns the choice among candidates of which one at least is not excluded.
func (c Choice) among(candidates []Candidate, loads []int, f *overview) (int, Reason) {
	if s := c.Session; s >= 0 && candidates[s].Load >= 0 && f.cost(&candidates[s]) <= within(f.least, sessionShare, sessionSlack) {
		return s, Session
	}
	limit := within(f.least, tieShare, tieSlack)
	tied, last, cached := 0, -1, -1
	for i := range candidates {
		x := &candidates[i]
		loads[i] = -1
		if x.Load < 0 || f.cost(x) > limit {
			continue
		}
		loads[i] = x.Load
		tied++
		last = i
		if x.Matched > 0 && x.Load < f.maxLoad && (cached < 0 || x.holdsMore(&candidates[cached])) {
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

// remember tells Hot what the request waits for its beginning, or that its replica computes the
// beginning once more.
func (c Choice) remember(f *overview, x *Candidate) {
	switch again, waits := f.again(x), f.full(x)-f.everywhere; {
	case again > 0 && f.waited > 0:
		c.Hot.forget(c.Beginning)
	case again <= 0 && waits > 0:
		c.Hot.add(c.Beginning, c.Now, waits)
	}
}

// overview is what Choose knows of the replicas that are not excluded.
type overview struct {
	// count is their number, maxLoad the bound of their loads.
	count, maxLoad int
	// queued is the mean number of requests that wait there.
	queued float64
	// own is the least time in which a replica computes the request's own tokens.
	own time.Duration
	// waited is what requests with the same beginning have waited for it.
	waited time.Duration
	// least is the least cost. everywhere is what it would be if all replicas had the beginning.
	least, everywhere time.Duration
}

func (c Choice) survey(candidates []Candidate) (f overview) {
	total := 0
	f.own, f.least, f.everywhere = math.MaxInt64, math.MaxInt64, math.MaxInt64
	for i := range candidates {
		if x := &candidates[i]; x.Load >= 0 {
			f.own = min(f.own, x.Own)
			f.count++
			total += x.Load
			f.queued += x.Queued
		}
	}
	f.queued /= float64(max(f.count, 1))
	f.maxLoad = c.Bound.MaxLoad(total, max(f.count, 1))
	if c.Hot != nil && c.Beginning != 0 {
		f.waited = c.Hot.waited(c.Beginning, c.Now)
	}
	for i := range candidates {
		if x := &candidates[i]; x.Load >= 0 {
			f.least = min(f.least, f.cost(x))
			f.everywhere = min(f.everywhere, f.full(x)-f.again(x))
		}
	}
	return f
}

// cost returns what a request costs at the replica. What others have waited for its beginning is
// what it may cost more to compute the beginning once more.
func (f *overview) cost(x *Candidate) time.Duration { return f.full(x) - min(f.waited, f.again(x)) }

// full returns what a request costs at the replica by itself.
func (f *overview) full(x *Candidate) time.Duration {
	crowd := time.Duration(max(x.Load+1-f.maxLoad, 0)) * crowdCost
	return x.TTFT + crowd + time.Duration(float64(x.Own)*f.delays(x))
}

// again returns how much of the cost is for what another replica has in its cache.
func (f *overview) again(x *Candidate) time.Duration {
	return time.Duration(float64(x.Own-f.own) * (1 + f.delays(x)))
}

// delays returns how many other requests the own tokens of a request delay.
func (f *overview) delays(x *Candidate) float64 { return f.queued + queueWeight*x.Queued }

// holdsMore reports whether the replica has more of the request's beginning than y, or has as much
// and is faster.
func (x *Candidate) holdsMore(y *Candidate) bool {
	return x.Matched > y.Matched || x.Matched == y.Matched && x.TTFT < y.TTFT
}

func within(best time.Duration, share float64, slack time.Duration) time.Duration {
	return best + time.Duration(share*float64(best)) + slack
}
