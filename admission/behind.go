package admission

import "time"

// maxBehind bounds how many waiters are tried in the place of a head that holds out. It bounds
// apart those that took no slot because there was none, and those that hold out themselves.
const maxBehind = 16

// reserveBehind reserves a slot for a waiter behind a head that holds out, and returns that waiter
// and its membership, as head does; or nil.
func (g *gate) reserveBehind(head *waiter, now time.Time) (*waiter, *membership) {
	return g.behind(head, func(w *waiter) bool { return g.reserve(&w.arrival, now) })
}

// behind returns the first waiter behind a head that holds out for which try returns true, and its
// membership; or nil. Bands are strict, as for a head: a waiter that does not hold out, and for
// which try returns false, holds up the bands below its own. Of a queue the oldest is tried first.
func (g *gate) behind(head *waiter, try func(*waiter) bool) (*waiter, *membership) {
	if !head.holdsOut() {
		return nil, nil
	}
	s := search{gate: g, head: head, try: try, blocked: maxBehind, holding: maxBehind}
	for b := bands - 1; b >= 0 && s.blocked == maxBehind; b-- {
		if w := s.in(&g.queue.bands[b]); w != nil {
			return w, nil
		}
		for _, m := range g.memberships {
			if w := s.in(&m.pool.queue.bands[b]); w != nil {
				return w, m
			}
		}
	}
	return nil, nil
}

// search looks for a waiter behind a head that holds out.
type search struct {
	gate *gate
	head *waiter
	try  func(*waiter) bool
	// blocked and holding are how many waiters may still be tried in vain: those that found no
	// slot, and those that hold out.
	blocked, holding int
}

// in returns the oldest waiter of a band that try accepts, or nil.
func (s *search) in(b *band) *waiter {
	for w := b.arrivals.first; w != nil && s.blocked > 0; w = w.links[arrivalOrder].next {
		switch {
		case w == s.head || w.state != stateQueued || w.tenant.isAtLimit(&w.arrival) || !s.gate.canServe(&w.arrival):
		case w.holdsOut() && s.holding == 0: // there are many of its kind
		case s.try(w):
			return w
		case w.holdsOut():
			s.holding--
		default:
			s.blocked--
		}
	}
	return nil
}
