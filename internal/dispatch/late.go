package dispatch

import (
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// The answer to a request for a response in the background mostly comes before the engine knows the
// usage, so the request is charged its estimate. The engine tells the usage to whoever reads the
// stored response after its end. The first reader's answer replaces the estimate by that usage.
// This process alone knows which charge belongs to which response. A response that is read at
// another gateway, or after a restart of this one, keeps its estimate.

// lateCharge is the charge of a response whose usage is told later.
type lateCharge struct {
	lease     *admission.Lease
	estimator *estimator
	estimate  estimate
	// since is when the replica began with the response.
	since time.Time
	// late is told the usage.
	late request.LateUsage
	// over says that the usage is not awaited any more; guarded by lateCharges.mu
	over bool
}

// correct charges the usage if it is known by now, and the request was charged before.
func (c *lateCharge) correct() {
	if u, ok := c.late.Told(); ok {
		c.lease.CorrectAgain(int(u.Prompt + u.Completion))
	}
}

// maxLateCharges bounds the responses whose usage is awaited. Of more, the oldest keep their
// estimates.
const maxLateCharges = 1 << 14

// lateCharges are the charges whose usage is awaited, by response. The zero value is ready to use.
type lateCharges struct {
	mu sync.Mutex
	// recent are the charges that came last. When they are half of maxLateCharges, they become
	// earlier, and those that were earlier are dropped. Guarded by mu.
	recent, earlier map[sessionID]*lateCharge
}

// add awaits the usage of a response. It does nothing while its id or its charge is not known.
func (l *lateCharges) add(id sessionID, c *lateCharge) {
	if id == (sessionID{}) || c == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.over {
		return // the id is told again
	}
	if l.recent == nil || len(l.recent) >= maxLateCharges/2 {
		l.earlier, l.recent = l.recent, map[sessionID]*lateCharge{}
	}
	l.recent[id] = c
}

// has reports whether the usage of a response is awaited.
func (l *lateCharges) has(id sessionID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.recent[id] != nil || l.earlier[id] != nil
}

// take returns the charge of a response once, and nil if there is none.
func (l *lateCharges) take(id sessionID) *lateCharge {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.recent[id]
	if c == nil {
		c = l.earlier[id]
	}
	if c != nil {
		c.over = true
	}
	delete(l.recent, id)
	delete(l.earlier, id)
	return c
}

// awaitUsageLocked awaits the usage of a response in the background whose id is known. Its engine
// may tell the usage before Correct is called. Ticket.mu is held.
func (t *Ticket) awaitUsageLocked() {
	if t.late == nil && t.estimate.background && !t.corrected {
		t.late = t.newLateCharge()
	}
	t.dispatcher.late.add(t.response, t.late)
}

func (t *Ticket) newLateCharge() *lateCharge {
	return &lateCharge{lease: t.lease, estimator: t.estimator, estimate: t.estimate, since: t.reservedAt}
}

// lateUsage returns where the usage of the response is told later, or was told before. nil: the
// answer has told it, or the request has no response in the background. It is called after the
// lease was corrected.
func (t *Ticket) lateUsage(r Response) *request.LateUsage {
	if !t.estimate.background {
		return nil
	}
	t.mu.Lock()
	response := t.response
	if t.late == nil {
		t.late = t.newLateCharge()
	}
	late := t.late
	t.mu.Unlock()
	if refused := r.Failed && !r.Abandoned; refused || plausible(r).Known {
		t.dispatcher.late.take(response)
		return nil
	}
	late.correct()
	return &late.late
}

// AwaitsUsage reports whether TellUsage would change what the response of the tenant has cost.
func (d *Dispatcher) AwaitsUsage(tenant, responseID string) bool {
	return d.late.has(responseOf(tenant, openai.ResponseSession(responseID)))
}

// TellUsage tells what a response has used that has ended. If it was charged its estimate, its
// model and its tenant are charged the usage instead, once.
func (d *Dispatcher) TellUsage(tenant, responseID string, u request.Usage) {
	r := plausible(Response{Known: u.Known, Prompt: u.Prompt, Completion: u.Completion})
	if !r.Known {
		return
	}
	c := d.late.take(responseOf(tenant, openai.ResponseSession(responseID)))
	if c == nil || !c.estimate.believes(r, time.Since(c.since)) {
		return
	}
	c.late.Tell(u)
	c.correct()
	c.estimator.learnLate(u, &c.estimate)
}

// learnLate learns from the usage of a response whose size in bytes nobody knows.
func (l *estimator) learnLate(u request.Usage, q *estimate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if u.Prompt > 0 && q.promptBytes > 0 {
		l.prompt.learnBounded(int64(q.promptBytes), u.Prompt, bytesPerPromptToken)
	}
	if u.Completion > 0 {
		l.learnLengthLocked(u.Completion, q)
	}
}
