package admission

import "time"

// A lease is a preemption candidate until its request has had a token, if the request has a hook
// OnPreempt. When the head waiter lacks a lease or a slot, a candidate of a lower band is
// preempted: the youngest of the lowest band. It keeps what it holds until its holder releases it,
// and until then no other lease of the model is preempted. A waiter causes this at most once. A
// request that was admitted because it had aged (Config.Ageing) is no candidate; otherwise ageing
// would be in vain.

// preemptionCandidate is the entry of a lease in the list of its gate. Controller.mu guards it.
type preemptionCandidate struct {
	lease *Lease
	band  int
	// onPreempt and wouldFreeSlot are hooks of the request.
	onPreempt     func()
	wouldFreeSlot func() bool
	// older and younger are the neighbours in the list.
	older, younger *preemptionCandidate
}

// preemptibleLeases are the candidates of one band of one gate. last is the youngest.
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

func (l *Lease) makePreemptible(a *arrival) {
	l.preemptible = &preemptionCandidate{lease: l, band: a.band, onPreempt: a.Unlocked.OnPreempt, wouldFreeSlot: a.Locked.WouldFreeSlot}
	l.gate.preemptible[a.band].add(l.preemptible)
}

// endPreemptible removes the lease from the candidates, if it is one.
func (l *Lease) endPreemptible() {
	if p := l.preemptible; p != nil {
		l.preemptible = nil
		l.gate.preemptible[p.band].remove(p)
	}
}

// exemptAged makes the lease of a waiter that has aged one that cannot be preempted.
func (c *Controller) exemptAged(w *waiter, now time.Time) {
	if now.Sub(w.arrived) >= c.ageing {
		w.Unlocked.OnPreempt = nil
	}
}

// maxCandidates is the number of candidates of a band that preemptFor tries.
const maxCandidates = 64

// preemptFor preempts a lease for w, the head waiter of the gate. slotOnly says that w lacks
// nothing but a slot, so that the slot of a task's request will do too.
func (c *Controller) preemptFor(g *gate, w *waiter, slotOnly bool) {
	if !g.mayPreemptFor(w) {
		return
	}
	for b := range w.band {
		p := g.preemptible[b].last
		for n := 0; n < maxCandidates && p != nil; n++ {
			if (slotOnly || p.lease.underTask == "") && (w.Locked.ReserveSlot == nil || p.wouldFreeSlot == nil || p.wouldFreeSlot()) {
				w.causedPreemption, g.preempted, p.lease.preempted = true, p.lease, true
				p.lease.endPreemptible()
				c.afterUnlock = append(c.afterUnlock, p.onPreempt)
				return
			}
			p = p.older
		}
	}
}

// mayPreemptFor reports whether there is a candidate for w, and w may cause a preemption.
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

// preemptIfBlocked preempts a lease for a head waiter that this gateway's counts keep waiting, if
// it lacks a lease or a slot and one less lease is enough.
func (c *Controller) preemptIfBlocked(g *gate, w *waiter, now time.Time) {
	switch {
	case !g.mayPreemptFor(w) || w.holdsOut():
	case g.closed || w.waitFor(&g.usage.bucket, now) > 0:
	case !w.needsLease() || g.usage.hasFreeLease():
		c.preemptFor(g, w, true)
	case g.usage.leases == g.usage.limits.MaxConcurrent:
		c.preemptFor(g, w, false)
	}
}

// preemptIfHeld preempts a lease for a head waiter that the shared state keeps waiting.
func (c *Controller) preemptIfHeld(g *gate, w *waiter) {
	switch g.inquiry.heldReason {
	case ReplicaFull:
		c.preemptFor(g, w, true)
	case ModelConcurrency:
		c.preemptFor(g, w, false)
	}
}
