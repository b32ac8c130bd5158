package main

import (
	"strconv"

	"github.com/sluice-gateway/sluice/ringhash"
)

// shape is a fleet of replicas that can be simulated.
type shape struct {
	replicas int
	// cache is how many tokens the cache of each replica holds
	cache int
	// rate is how many prompt tokens a replica computes in a second
	rate float64
	// slowdown is replica.slowdown
	slowdown float64
	// slow says that the first replica has half of the rate
	slow bool
}

// fleet is the replicas of one simulation, and what every gateway knows of them.
type fleet struct {
	replicas []*replica
	ring     *ringhash.Ring
	// rate is that of the usual replica
	rate float64
	// blocks is the number of different blocks of the workload
	blocks int
}

func newFleet(s shape, w *workload) *fleet {
	f := &fleet{rate: s.rate, blocks: w.blocks}
	ids := make([]string, s.replicas)
	for i := range ids {
		ids[i] = "r-" + strconv.Itoa(i)
		f.replicas = append(f.replicas, &replica{cache: newBlockCache(s.cache/blockTokens, w.blocks), rate: s.rate, slowdown: s.slowdown})
	}
	if s.slow {
		f.replicas[0].rate /= 2
	}
	f.ring = ringhash.New(ids, 0)
	return f
}

// loads returns the requests in flight at each replica.
func (f *fleet) loads() []int {
	loads := make([]int, len(f.replicas))
	for i, r := range f.replicas {
		loads[i] = r.running
	}
	return loads
}
