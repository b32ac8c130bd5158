package admission

// Spot is where a request waits, for whoever wants to look while it does: put it into Request.Spot. It is good for one Admit at a time. The
// zero value is ready to use.
type WaitHandle struct {
	// waiter is nil before it waits; guarded by Controller.mu
	waiter *waiter
}

// walked bounds how many waiting requests are looked at for one position.
const maxWalked = 1000

// Position tells how many requests go before this one in its queue, counted from 1, if nobody else comes; 0 when it does not wait. The
// order between tenants is taken as if they were served side by side by their weights, which is what deficit round robin comes close
// to. What waits behind a limit of its own tenant does not count. Where more than 1,000 would have to be looked at, it is the last of its band.
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

// position is w's within the band, from 1.
func (b *band) position(w *waiter) int {
	n, left := 1, maxWalked
	for x := b.returned.first; x != nil; x = x.links[flowOrder].next {
		if x == w {
			return n
		}
		n++
		left--
	}
	mine := int64(0) // tokens of its tenant until it has gone
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

// before counts those of the flow that go before w, when w's tenant has had so many tokens by then, and those looked at.
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
