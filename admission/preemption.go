package admission

import "time"

// A lease is preemptible as long as its request has had no token, if the request said so (Request.Preempt). When the next in order lacks a
// place, a preemptible lease of a lower band may be asked to make way: of the lowest band, the youngest. It keeps what it holds until
// its holder releases it, and until then no other lease of the model is asked. A request causes this once. One that was let in because
// it had waited long (Config.Ageing) is never asked: otherwise ageing would be in vain.

// preemptible is what is known of such a lease. Guarded by Controller.mu.
type preemptionCandidate struct {
	lease *Lease
	band  int
	// preempt and helps are those of the request.
	onPreempt     func()
	wouldFreeSlot func() bool
	// The neighbours in the gate's list of the band.
	older, younger *preemptionCandidate
}

// preemptibles are those of one band of one gate; last is the youngest.
type preemptibleLeases struct{ last *preemptionCandidate }

func (l *preemptibleLeases) add(p *preemptionCandidate) {
	p.older = l.last
	if l.last != nil {
		l.last.younger = p
	}
	l.last = p
}

func (l *preemptibleLeases) remove(p *preemptionCandidate) {
	if p.older != nil {
		p.older.younger = p.younger
	}
	if p.younger != nil {
		p.younger.older = p.older
	} else {
		l.last = p.older
	}
	p.older, p.younger = nil, nil
}

// yielding notes that the lease may be preempted.
func (l *Lease) makePreemptible(a *arrival) {
	l.preemptible = &preemptionCandidate{lease: l, band: a.band, onPreempt: a.Unlocked.OnPreempt, wouldFreeSlot: a.Locked.WouldFreeSlot}
	l.gate.preemptible[a.band].add(l.preemptible)
}

// steady ends that.
func (l *Lease) endPreemptible() {
	if p := l.preemptible; p != nil {
		l.preemptible = nil
		l.gate.preemptible[p.band].remove(p)
	}
}

// firm makes the lease to come of one that has waited for so long that it goes before its turn one that is never preempted.
func (c *Controller) exemptAged(w *waiter, now time.Time) {
	if now.Sub(w.arrived) >= c.ageing {
		w.Unlocked.OnPreempt = nil
	}
}

// candidates bounds how many leases of a band are asked whether their end would help.
const maxCandidates = 64

// makeWay has a lease preempted for w, the next in order of the gate, which lacks a place. slotOnly says that it lacks nothing but a slot on
// a replica, so that the lease of a task's request will do too.
func (c *Controller) preemptFor(g *gate, w *waiter, slotOnly bool) {
	if !g.mayPreemptFor(w) {
		return
	}
	for b := range w.band {
		p := g.preemptible[b].last
		for n := 0; n < maxCandidates && p != nil; n++ {
			if (slotOnly || !p.lease.slotOnly) && (w.Locked.ReserveSlot == nil || p.wouldFreeSlot == nil || p.wouldFreeSlot()) {
				w.causedPreemption, g.preempted, p.lease.preempted = true, p.lease, true
				p.lease.endPreemptible()
				c.afterUnlock = append(c.afterUnlock, p.onPreempt)
				return
			}
			p = p.older
		}
	}
}

// mayYield reports whether there is anybody to ask, and this waiter may have somebody asked.
func (g *gate) mayPreemptFor(w *waiter) bool {
	if w.causedPreemption || g.preempted != nil || w.state == stateDecided {
		return false
	}
	for b := range w.band {
		if g.preemptible[b].last != nil {
			return true
		}
	}
	return false
}

// crave is makeWay for one that cannot go by the book of this process, if it is a place that it lacks and one less lease would do.
func (c *Controller) preemptIfBlocked(g *gate, w *waiter, now time.Time) {
	switch {
	case !g.mayPreemptFor(w):
	case g.closed || !w.SlotOnly && g.usage.bucket.wait(int64(w.Tokens), now) > 0:
	case w.SlotOnly || g.usage.hasFreeLease():
		c.preemptFor(g, w, true)
	case g.usage.leases == g.usage.limits.MaxConcurrent:
		c.preemptFor(g, w, false)
	}
}

// craveShared is crave for one that is held because of what gateways share.
func (c *Controller) preemptIfHeld(g *gate, w *waiter) {
	switch g.inquiry.heldReason {
	case ReplicaFull:
		c.preemptFor(g, w, true)
	case ModelConcurrency:
		c.preemptFor(g, w, false)
	}
}
