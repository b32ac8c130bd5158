package admission

import (
	"math/rand/v2"
	"slices"
	"sort"
	"time"
)

const (
	// returnSpacing is the time between two callers that are told to come back.
	returnSpacing = 5 * time.Millisecond
	// A told wait is longer than the exact one by at most a returnFraction-th of it. That bound is
	// never below minReturnSpread, and never above maxReturnSpread.
	returnFraction  = 20
	minReturnSpread = 50 * time.Millisecond
	maxReturnSpread = time.Second
	// maxReturnTimes bounds the reserved times. It is more than fit into one maxReturnSpread.
	maxReturnTimes = 512
)

// returnTimes are the times at which callers were told to come back. Each caller reserves a time of
// its own, so that callers which wait for the same capacity do not come back together. The zero
// value has none.
//
// A time reserves no capacity. A caller may come late, never, or ask more than once. So a caller
// after it is told when the capacity can be there, and not when it is the caller's turn.
type returnTimes struct {
	// told is sorted, in time since epoch, which is the first call of reserve. Two of its times are
	// at least returnSpacing apart.
	told  []time.Duration
	epoch time.Time
}

// returnSpread is how much longer than wait a caller may be told to stay away.
func returnSpread(wait time.Duration) time.Duration {
	return min(max(wait/returnFraction, minReturnSpread), maxReturnSpread)
}

// reserve returns how long a caller should stay away whose capacity is there after wait. This is
// wait itself, or a little more if other callers have reserved that time. It is never less.
func (r *returnTimes) reserve(wait time.Duration, now time.Time) time.Duration {
	if r.epoch.IsZero() {
		r.epoch = now
	}
	current := now.Sub(r.epoch)
	r.told = slices.Delete(r.told, 0, sort.Search(len(r.told), func(i int) bool { return r.told[i] > current }))
	at := current + wait
	latest := at + returnSpread(wait)
	i := sort.Search(len(r.told), func(i int) bool { return r.told[i] > at-returnSpacing })
	for ; i < len(r.told) && r.told[i] < at+returnSpacing; i++ {
		at = r.told[i] + returnSpacing
	}
	if at > latest || len(r.told) >= maxReturnTimes {
		return spread(wait)
	}
	r.told = slices.Insert(r.told, i, at)
	return at - current
}

// spread returns wait, longer by a random part of its returnSpread. It is for waits that are
// learned, and for callers that find no time of their own.
func spread(wait time.Duration) time.Duration { return wait + rand.N(returnSpread(wait)) }
