package admission

import "time"

// A lease is preemptible as long as its request has had no token, if the request said so (Request.Preempt). When the next in order lacks a
// place, a preemptible lease of a lower band may be asked to make way: of the lowest band, the youngest. It keeps what it holds until
// its holder releases it, and until then no other lease of the model is asked. A request causes this once. One that was let in because
// it had waited long (Config.Ageing) is never asked: otherwise ageing would be in vain.

// preemptible is what is known of such a lease. Guarded by Controller.mu.
type preemptible struct {
	lease *Lease
	band  int
	// preempt and helps are those of the request.
	preempt func()
	helps   func() bool
	// The neighbours in the gate's list of the band.
	older, younger *preemptible
}

// preemptibles are those of one band of one gate; last is the youngest.
type preemptibles struct{ last *preemptible }

func (l *preemptibles) add(p *preemptible) {
	p.older = l.last
	if l.last != nil {
		l.last.younger = p
	}
	l.last = p
}

func (l *preemptibles) remove(p *preemptible) {
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
func (l *Lease) yielding(a *arrival) {
	l.preemptible = &preemptible{lease: l, band: a.band, preempt: a.Preempt, helps: a.Helps}
	l.gate.preemptibles[a.band].add(l.preemptible)
}

// steady ends that.
func (l *Lease) steady() {
	if p := l.preemptible; p != nil {
		l.preemptible = nil
		l.gate.preemptibles[p.band].remove(p)
	}
}

// firm makes the lease to come of one that has waited for so long that it goes before its turn one that is never preempted.
func (c *Controller) firm(w *waiter, now time.Time) {
	if now.Sub(w.came) >= c.ageing {
		w.Preempt = nil
	}
}

// candidates bounds how many leases of a band are asked whether their end would help.
const candidates = 64

// makeWay has a lease preempted for w, the next in order of the gate, which lacks a place. slotOnly says that it lacks nothing but a slot on
// a replica, so that the lease of a task's request will do too.
func (c *Controller) makeWay(g *gate, w *waiter, slotOnly bool) {
	if !g.mayYield(w) {
		return
	}
	for b := range w.band {
		p := g.preemptibles[b].last
		for n := 0; n < candidates && p != nil; n++ {
			if (slotOnly || !p.lease.admitted) && (w.Place == nil || p.helps == nil || p.helps()) {
				w.madeWay, g.victim, p.lease.preempted = true, p.lease, true
				p.lease.steady()
				c.after = append(c.after, p.preempt)
				return
			}
			p = p.older
		}
	}
}

// mayYield reports whether there is anybody to ask, and this waiter may have somebody asked.
func (g *gate) mayYield(w *waiter) bool {
	if w.madeWay || g.victim != nil || w.state == decided {
		return false
	}
	for b := range w.band {
		if g.preemptibles[b].last != nil {
			return true
		}
	}
	return false
}

// crave is makeWay for one that cannot go by the book of this process, if it is a place that it lacks and one less lease would do.
func (c *Controller) crave(g *gate, w *waiter, now time.Time) {
	switch {
	case !g.mayYield(w):
	case g.closed || !w.Admitted && g.book.bucket.wait(int64(w.Tokens), now) > 0:
	case w.Admitted || g.book.free():
		c.makeWay(g, w, true)
	case g.book.leases == g.book.limits.MaxConcurrent:
		c.makeWay(g, w, false)
	}
}

// craveShared is crave for one that is held because of what gateways share.
func (c *Controller) craveShared(g *gate, w *waiter) {
	switch g.ask.reason {
	case ReplicaFull:
		c.makeWay(g, w, true)
	case ModelConcurrency:
		c.makeWay(g, w, false)
	}
}
