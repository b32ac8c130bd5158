package placement

import (
	"cmp"
	"slices"
)

// maxTries limits how many smaller sets PickEvictions tries on one node after it has found a
// sufficient one.
const maxTries = 256

// PickEvictions picks the fewest idle replicas that must be evicted so that the wanted replica fits
// on some node. It returns nil if the replica fits already, or if evicting all idle replicas is not
// enough on any node.
//
// idle lists the ids of replicas in the order of eviction. Among sets of equal size, the one that
// comes first in this order is picked; the result is in this order too. Every replica of the result
// is needed: without its eviction the wanted replica does not fit.
//
// On each node PickEvictions takes idle replicas in order until the wanted replica fits, and then
// drops those that are not needed. After that it tries at most maxTries smaller sets. With up to 22
// idle replicas on a node this finds every set of one or two. With more, the result may not be the
// smallest. n idle replicas on a node cost at most 2n+257 calls of Fits.
func PickEvictions(nodes []Node, w Want, idle []string) []string {
	order := make(map[string]int, len(idle))
	for i, id := range slices.Backward(idle) {
		order[id] = i
	}
	if len(idle) == 0 || PickNode(nodes, w) >= 0 {
		return nil
	}
	var best []int // indices of idle
	for i := range nodes {
		if nodes[i].Lost {
			continue
		}
		s := &evictionSearch{node: &nodes[i], want: w}
		found := s.fewest(order)
		if len(found) > 0 && (best == nil || isWorse(best, found)) {
			best = found
		}
	}
	if best == nil {
		return nil
	}
	ids := make([]string, len(best))
	for i, at := range best {
		ids[i] = idle[at]
	}
	return ids
}

// isWorse reports whether a is larger than b, or as large and its last eviction is later in order.
func isWorse(a, b []int) bool {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a[len(a)-1], b[len(b)-1])) > 0
}

// evictionSearch looks for the fewest evictions on one node.
type evictionSearch struct {
	node *Node
	want Want
	// buffer is reused by fitsWithout.
	buffer []Claim
}

// fitsWithout reports whether the wanted replica fits after the claims at these indices are gone.
func (s *evictionSearch) fitsWithout(gone ...int) bool {
	s.buffer = s.buffer[:0]
	for i, c := range s.node.Claims {
		if !slices.Contains(gone, i) {
			s.buffer = append(s.buffer, c)
		}
	}
	return Fits(s.node.Node, s.buffer, s.want)
}

// fewest returns the positions of the replicas to evict in the order of eviction, ascending. order
// maps the id of an idle replica to its position.
func (s *evictionSearch) fewest(order map[string]int) []int {
	var idle []int // indices of Claims
	for i, c := range s.node.Claims {
		if _, ok := order[c.ID]; ok {
			idle = append(idle, i)
		}
	}
	position := func(claim int) int { return order[s.node.Claims[claim].ID] }
	slices.SortFunc(idle, func(a, b int) int { return cmp.Compare(position(a), position(b)) })
	if len(idle) == 0 {
		return nil
	}
	gone := s.smaller(idle, s.sufficient(idle))
	for i, claim := range gone {
		gone[i] = position(claim)
	}
	return gone
}

// sufficient takes idle claims in order until the wanted replica fits, then drops those that are
// not needed, the last first. It returns nil if all are not enough.
func (s *evictionSearch) sufficient(idle []int) []int {
	if !s.fitsWithout(idle...) {
		return nil
	}
	n := 1
	for !s.fitsWithout(idle[:n]...) {
		n++
	}
	gone := slices.Clone(idle[:n])
	for i := n - 1; i >= 0; i-- {
		if fewer := slices.Delete(slices.Clone(gone), i, i+1); s.fitsWithout(fewer...) {
			gone = fewer
		}
	}
	return gone
}

// smaller looks for a sufficient set of claims that is smaller than gone. It returns gone if it
// finds none.
func (s *evictionSearch) smaller(idle, gone []int) []int {
	tries := maxTries
	for size := 1; size < len(gone) && tries > 0; size++ {
		indices := make([]int, size) // of idle, ascending
		for i := range indices {
			indices[i] = i
		}
		set := make([]int, size)
		for ok := true; ok && tries > 0; ok = nextCombination(indices, len(idle)) {
			tries--
			for i, at := range indices {
				set[i] = idle[at]
			}
			if s.fitsWithout(set...) {
				return set
			}
		}
	}
	return gone
}

// nextCombination advances an ascending combination of indices below n to the next in lexical
// order. It returns false after the last.
func nextCombination(indices []int, n int) bool {
	for i := len(indices) - 1; i >= 0; i-- {
		if indices[i] < n-len(indices)+i {
			indices[i]++
			for j := i + 1; j < len(indices); j++ {
				indices[j] = indices[j-1] + 1
			}
			return true
		}
	}
	return false
}
