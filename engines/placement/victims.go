package placement

import (
	"cmp"
	"slices"
)

// mostTries bounds for how many choices on one host Victims looks whether they are enough, after it has found one that is.
const mostTries = 256

// Victims are the fewest replicas of idle that must go so that the want fits on some host; nil when it fits already, or when all of idle
// are not enough on any host. idle lists ids, the one to go first first; of equally many those that come first are taken, and they are
// returned in that order. Each of those returned is needed: without it the want does not fit.
//
// On each host the first of idle are taken until the want fits, and those that turn out not to be needed are left out again. Then smaller
// choices are tried, 256 at most: up to 22 idle replicas on a host a choice of one or two is found if there is one; among more, the
// result may not be the smallest. With n idle replicas on a host that is at most 2n+257 times the work of Fits.
func Victims(hosts []Host, w Want, idle []string) []string {
	order := make(map[string]int, len(idle))
	for i, id := range slices.Backward(idle) {
		order[id] = i
	}
	if len(idle) == 0 || Find(hosts, w) >= 0 {
		return nil
	}
	var best []int // places in idle
	for i := range hosts {
		if hosts[i].Lost {
			continue
		}
		h := &crowd{Host: &hosts[i], want: w}
		found := h.fewest(order)
		if len(found) > 0 && (best == nil || worse(best, found)) {
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

// worse tells that a is the larger choice, or one whose last to go was to go later.
func worse(a, b []int) bool {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a[len(a)-1], b[len(b)-1])) > 0
}

// crowd is a host on which room is looked for.
type crowd struct {
	*Host
	want Want
	// rest is reused.
	rest []Claim
}

// fits tells whether the want fits when these claims, by their places in Claims, are gone.
func (h *crowd) fits(gone ...int) bool {
	h.rest = h.rest[:0]
	for i, c := range h.Claims {
		if !slices.Contains(gone, i) {
			h.rest = append(h.rest, c)
		}
	}
	return Fits(h.Node, h.rest, h.want)
}

// fewest returns places in idle, in ascending order.
func (h *crowd) fewest(order map[string]int) []int {
	var idle []int // places in Claims
	for i, c := range h.Claims {
		if _, ok := order[c.ID]; ok {
			idle = append(idle, i)
		}
	}
	slices.SortFunc(idle, func(a, b int) int { return cmp.Compare(order[h.Claims[a].ID], order[h.Claims[b].ID]) })
	if len(idle) == 0 {
		return nil
	}
	gone := h.smaller(idle, h.enough(idle))
	for i, at := range gone {
		gone[i] = order[h.Claims[at].ID]
	}
	return gone
}

// enough takes the first ones until the want fits, and leaves out those that are not needed, the last first.
func (h *crowd) enough(idle []int) []int {
	if !h.fits(idle...) {
		return nil
	}
	n := 1
	for !h.fits(idle[:n]...) {
		n++
	}
	gone := slices.Clone(idle[:n])
	for i := n - 1; i >= 0; i-- {
		if fewer := slices.Delete(slices.Clone(gone), i, i+1); h.fits(fewer...) {
			gone = fewer
		}
	}
	return gone
}

// smaller looks for a choice that is smaller than one that is enough, and returns that one when it finds none.
func (h *crowd) smaller(idle, gone []int) []int {
	tries := mostTries
	for size := 1; size < len(gone) && tries > 0; size++ {
		at := make([]int, size) // places in idle, ascending
		for i := range at {
			at[i] = i
		}
		chosen := make([]int, size)
		for ok := true; ok && tries > 0; ok = next(at, len(idle)) {
			tries--
			for i, place := range at {
				chosen[i] = idle[place]
			}
			if h.fits(chosen...) {
				return chosen
			}
		}
	}
	return gone
}

// next makes the following choice out of n, in lexical order, of a choice in ascending order. It tells false after the last.
func next(at []int, n int) bool {
	for i := len(at) - 1; i >= 0; i-- {
		if at[i] < n-len(at)+i {
			at[i]++
			for j := i + 1; j < len(at); j++ {
				at[j] = at[j-1] + 1
			}
			return true
		}
	}
	return false
}
