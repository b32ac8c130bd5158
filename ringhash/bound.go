package ringhash

import "math"

// DefaultFactor is the default of Bound.Factor.
const DefaultFactor = 1.25

// Bound says which load makes a replica too busy to be picked for its own keys. The zero value is
// the rule of the paper with DefaultFactor.
type Bound struct {
	// Factor times the average load is the largest load that a replica may have. Both include the
	// new request: the average is (total + 1) / candidates. 0 or less means DefaultFactor. Below 1
	// no replica is within the bound, so the bound has no effect.
	Factor float64
	// Floor is a load up to which a replica is never too busy, the new request included. Without a
	// Floor, all replicas are too busy while there are fewer requests than replicas, and
	// conversations lose their replica. A good Floor is the batch size up to which the engine's
	// latency stays flat. 0 means none.
	Floor int
}

// Pick returns the index of the replica that should serve the key. It is the first candidate from
// the key on whose load, with this request added, is within the bound. If none is, it is the first
// candidate. Without a candidate, Pick returns -1.
//
// loads has one entry for each of the Len replicas. It is the number of requests that the replica
// serves now. It is negative if the replica must not get this request, because it is draining or
// full, or was tried. Only candidates count in the average. Pick reserves nothing: a caller that
// picks and adds to the load in two steps must hold a lock over both.
//
// Pick allocates nothing and takes time linear in Len.
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
	maxLoad := b.MaxLoad(total, candidates) - 1
	if minLoad > maxLoad {
		// All are over the bound, so the bound decides nothing: the first candidate wins.
		maxLoad = math.MaxInt
	}
	// At least one candidate passes, so the loop ends. A replica that is met again is refused
	// again, which is cheaper than remembering it.
	for i := r.firstNode(key); ; i = r.nextNode(i) {
		owner := int(r.owners[i])
		if load := loads[owner]; load >= 0 && load <= maxLoad {
			return owner
		}
	}
}

// MaxLoad returns the largest load that a replica may have with the new request added. total is the
// load of all candidates without it.
func (b Bound) MaxLoad(total, candidates int) int {
	factor := b.Factor
	if !(factor > 0) { // also for NaN
		factor = DefaultFactor
	}
	// The multiplication comes first: with a factor such as 1.25 it is exact, and so is a whole
	// quotient. The slack is for factors that binary numbers cannot hold: 100 × 1.15 / 5 must be
	// 23, not 22.999….
	const slack = 1e-9
	maximum := factor*float64(total+1)/float64(candidates) + slack
	if maximum >= math.MaxInt {
		return math.MaxInt
	}
	return max(int(maximum), b.Floor, 0)
}
