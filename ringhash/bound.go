package ringhash

import "math"

// DefaultFactor is how far above the average a replica's load may be when nobody says otherwise.
const DefaultFactor = 1.25

// Bound says when a replica has too much to do to be picked for a key that belongs to it. The zero value is the textbook rule
// with DefaultFactor.
type Bound struct {
	// Factor times the average load is the most that a replica may have, the new request included. The average counts the
	// new request too: (total + 1) / candidates. 0 or less means DefaultFactor; below 1 the bound holds for nobody.
	Factor float64
	// Floor is a load up to which a replica is never too busy, the new request included. Without it the textbook rule finds
	// everybody too busy while there are fewer requests than replicas, and conversations lose their replica. A good floor
	// is the batch size up to which the engine's latency stays flat. 0 means none.
	Floor int
}

// Pick returns the index of the replica that should serve the key: the first candidate from the key on whose load, with this
// request added, is within the bound; the first candidate of all when none is; -1 when there is no candidate.
//
// loads has one entry for each of the Len replicas: the requests that it serves now, or a negative number when it must not get
// this one (draining, full, already tried). Only candidates count in the average. Pick does not reserve anything: who picks
// and adds to the load in two steps must hold a lock over both.
//
// It allocates nothing and takes time linear in Len.
func (r *Ring) Pick(key uint64, loads []int, b Bound) int {
	total, candidates, minLoad := 0, 0, math.MaxInt
	for _, load := range loads[:len(r.ids)] {
		if load < 0 {
			continue
		}
		candidates++
		total += load
		minLoad = min(minLoad, load)
	}
	if candidates == 0 {
		return -1
	}
	maxLoad := b.maxLoad(total, candidates) - 1
	if minLoad > maxLoad {
		// Everybody is over the bound, so it decides nothing: the first candidate wins.
		maxLoad = math.MaxInt
	}
	// Somebody passes, so this ends. A replica met again is refused again, which is cheaper than remembering it.
	for i := r.firstNode(key); ; i = r.nextNode(i) {
		owner := int(r.owners[i])
		if load := loads[owner]; load >= 0 && load <= maxLoad {
			return owner
		}
	}
}

// most is the largest load a replica may have with the new request added.
func (b Bound) maxLoad(total, candidates int) int {
	factor := b.Factor
	if !(factor > 0) { // also for NaN
		factor = DefaultFactor
	}
	// The multiplication comes first: with a factor like 1.25 it is exact, so the quotient is too where it is whole. The slack
	// lets a factor that binary cannot hold (1.15) mean what was written: 100 × 1.15 / 5 is 23, not 22.999….
	const slack = 1e-9
	maximum := factor*float64(total+1)/float64(candidates) + slack
	if maximum >= math.MaxInt {
		return math.MaxInt
	}
	return max(int(maximum), b.Floor, 0)
}
