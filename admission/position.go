package admission

// WaitHandle lets others ask for the position of a waiting request (Request.WaitHandle). It serves
// one Admit at a time. The zero value is ready to use.
type WaitHandle struct {
	// nil until the request waits; guarded by Controller.mu
	waiter *waiter
}

// maxWalked is the number of waiters that Position looks at.
const maxWalked = 1000

// Position returns the position of the request in its queue, counted from 1, if no other request
// arrives; 0 if it does not wait. Tenants are taken as served side by side by their weights, which
// deficit round robin approximates. Waiters behind a limit of their own tenant do not count. If
// Position would have to look at more than 1,000 waiters, it takes the request for the last of its
// band.
func (c *Controller) Position(s *WaitHandle) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := s.waiter
	switch {
	case w == nil || w.state == stateDecided || w.state == stateIdle:
		return 0
	case w.state == stateAsked || w.state == stateDenied:
		return 1
	}
	before := 0
	if g := w.queue.gate; g != nil {
		before = len(g.inquiry.waiters)
	}
	for b := w.band + 1; b < bands; b++ {
		before += w.queue.bands[b].length
	}
	return before + w.queue.bands[w.band].position(w)
}

// position returns w's position within the band, from 1.
func (b *band) position(w *waiter) int {
	n, left := 1, maxWalked
	for x := b.returned.first; x != nil; x = x.links[flowOrder].next {
		if x == w {
			return n
		}
		n++
		left--
	}
	mine := int64(0) // tokens of w's tenant up to w
	for x := w.flow.waiters.first; x != nil && left > 0; x = x.links[flowOrder].next {
		mine += x.cost
		if x == w {
			break
		}
		n++
		left--
	}
	f := b.ring.cursor
	for i := 0; i < b.ring.length && left > 0; i++ {
		if f != w.flow {
			ahead, looked := f.countAhead(w, mine, left)
			n, left = n+ahead, left-looked
		}
		f = f.next
	}
	if left <= 0 {
		return b.length
	}
	return n
}

// countAhead returns how many waiters of the flow go before w, and how many it looked at. mine is
// the tokens that w's tenant has been served by then.
func (f *flow) countAhead(w *waiter, mine int64, most int) (ahead, looked int) {
	share := float64(mine) / float64(w.flow.tenant.limits.weight())
	had := int64(0)
	for x := f.waiters.first; x != nil && looked < most; x = x.links[flowOrder].next {
		looked++
		had += x.cost
		theirs := float64(had) / float64(f.tenant.limits.weight())
		if theirs > share || theirs == share && w.arrived.Before(x.arrived) {
			break
		}
		ahead++
	}
	return ahead, looked
}
