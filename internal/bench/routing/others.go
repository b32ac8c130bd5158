package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/ringhash"
)

// roundRobin picks the replicas in turn.
type roundRobin struct {
	blind
	*fleet
	next int
}

func (r *roundRobin) pick(time.Duration, *job) int {
	r.next++
	return (r.next - 1) % len(r.replicas)
}

// leastConnections picks the replica with the fewest requests in flight; of several such, the one
// that has served the fewest.
type leastConnections struct {
	blind
	*fleet
}

func (r *leastConnections) pick(time.Duration, *job) int {
	best := 0
	for i, x := range r.replicas {
		b := r.replicas[best]
		if cmp.Or(cmp.Compare(x.running, b.running), cmp.Compare(x.served, b.served)) < 0 {
			best = i
		}
	}
	return best
}

// boundedLoads is consistent hashing with bounded loads.
type boundedLoads struct {
	blind
	*fleet
	bound ringhash.Bound
}

func (r *boundedLoads) pick(_ time.Duration, j *job) int {
	return r.ring.Pick(j.key, r.loads(), r.bound)
}

// conversationMemory is the strategy `prefix` of before: bounded loads, and a conversation stays on
// the replica that has served its longest known beginning, within the bound.
type conversationMemory struct {
	boundedLoads
	homes map[beginning]int
}

// beginning is a whole prompt, or a prompt without its last block.
type beginning struct {
	last   int32
	blocks int
}

func (r *conversationMemory) pick(now time.Duration, j *job) int {
	home := r.boundedLoads.pick(now, j)
	for n := len(j.Blocks); n > 0; n-- {
		known, ok := r.homes[beginning{j.Blocks[n-1], n}]
		if !ok {
			continue
		}
		if loads := r.loads(); loads[known]+1 <= r.limit(loads) {
			home = known
		}
		break
	}
	for n := len(j.Blocks); n > max(len(j.Blocks)-2, 0); n-- {
		r.homes[beginning{j.Blocks[n-1], n}] = home
	}
	return home
}

// limit is the largest load within the bound, with the new request.
func (r *conversationMemory) limit(loads []int) int {
	total := 1
	for _, load := range loads {
		total += load
	}
	return max(r.bound.Floor, int(r.bound.Factor*float64(total)/float64(len(loads))))
}

// approximate is an index of what each replica was given, in blocks, as other routers keep it.
type approximate struct {
	*fleet
	given []*blockCache
}

func newApproximate(f *fleet) approximate {
	a := approximate{fleet: f}
	for _, r := range f.replicas {
		a.given = append(a.given, newBlockCache(r.cache.limit, f.blocks))
	}
	return a
}

// matched returns the share of the prompt that each replica was given before.
func (a *approximate) matched(j *job) []float64 {
	shares := make([]float64, len(a.given))
	for i, c := range a.given {
		shares[i] = float64(c.match(j.Blocks)) / float64(len(j.Blocks))
	}
	return shares
}

func (a *approximate) sent(_ time.Duration, j *job)   { a.given[j.replica].touch(j.Blocks) }
func (a *approximate) firstToken(time.Duration, *job) {}
func (a *approximate) ended(time.Duration, *job)      {}

// weightedScores adds a score for the matched share (weight 3) and one for the queue (weight 2).
// The default scorers of llm-d and of the Gateway API inference extension do the same.
type weightedScores struct {
	approximate
	random *rand.Rand
}

func (r *weightedScores) pick(_ time.Duration, j *job) int {
	loads, scores := r.loads(), r.matched(j)
	least, most := slices.Min(loads), slices.Max(loads)
	for i := range scores {
		queue := 1.0
		if most > least {
			queue = float64(most-loads[i]) / float64(most-least)
		}
		scores[i] = 3*scores[i] + 2*queue
	}
	best := slices.Max(scores)
	var ties []int
	for i, score := range scores {
		if score == best {
			ties = append(ties, i)
		}
	}
	return ties[r.random.IntN(len(ties))]
}

// thresholds picks the replica with the longest match if it is more than half of the prompt, else
// the one with the smallest index. While the loads differ by more than 32 and by 10 %, it picks the
// shortest queue. So do the cache-aware routers of SGLang and smg.
type thresholds struct{ approximate }

func (r *thresholds) pick(_ time.Duration, j *job) int {
	loads := r.loads()
	least, most := slices.Min(loads), slices.Max(loads)
	if most-least > 32 && float64(most) > 1.1*float64(least) {
		return slices.Index(loads, least)
	}
	shares := r.matched(j)
	if best := slices.Max(shares); best > 0.5 {
		return slices.Index(shares, best)
	}
	smallest := 0
	for i, c := range r.given {
		if c.size < r.given[smallest].size {
			smallest = i
		}
	}
	return smallest
}

// boundName is the name of sharedCache in the tables.
const boundName = "one cache for all, least work"

// sharedCache picks the replica with the least work, and all replicas use one cache that is as
// large as all together. It shows how much is left to gain: no real fleet has such a cache.
type sharedCache struct {
	blind
	*fleet
}

func newSharedCache(f *fleet) *sharedCache {
	shared := newBlockCache(len(f.replicas)*f.replicas[0].cache.limit, f.blocks)
	for _, r := range f.replicas {
		r.cache = shared
	}
	return &sharedCache{fleet: f}
}

func (r *sharedCache) pick(time.Duration, *job) int {
	first := slices.MinFunc(r.replicas, func(a, b *replica) int { return cmp.Compare(a.free, b.free) })
	return slices.Index(r.replicas, first)
}
