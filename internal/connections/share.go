package connections

import (
	"maps"
	"math"
	"net/netip"
	"slices"
)

// fairShare returns how many connections one source may have so that all sources together have
// total at most: the max-min fair share. Sources that have fewer keep theirs, and the others divide
// the rest evenly. The result is math.MaxInt if the sources have less than total together.
func fairShare(sources map[netip.Addr]int, total int) int {
	counts := slices.Sorted(maps.Values(sources))
	left := total
	for i, n := range counts {
		share := max(left, 0) / (len(counts) - i)
		if n > share {
			return share
		}
		left -= n
	}
	if left == 0 && len(counts) > 0 {
		return counts[len(counts)-1]
	}
	return math.MaxInt
}

// sum returns the number of connections of all sources.
func sum(sources map[netip.Addr]int) int {
	total := 0
	for _, n := range sources {
		total += n
	}
	return total
}

// largest returns the source with the most connections.
func largest(sources map[netip.Addr]int) (source netip.Addr, n int) {
	for s, have := range sources {
		if have > n || have == n && s.Less(source) {
			source, n = s, have
		}
	}
	return source, n
}
