package admission

import (
	"context"
	"time"
)

// Pending is a request that Begin has put into a queue. One goroutine at a time uses it, and may
// hand it to another. Its last user calls Await once: a lease that nobody collects is never
// released.
type Pending struct {
	controller *Controller
	waiter     *waiter
}

// Begin is the first half of Admit. It blocks only for the verdict of shared state on a key that
// has limits of its own. Exactly one of its results is not nil. An admitted request has a lease,
// one that has to wait has a Pending, and a refused one has an error. With shared state every
// request waits, if only for the answer of the other gateways.
func (c *Controller) Begin(r Request) (*Lease, *Pending, error) {
	lease, w, err := c.begin(r)
	if w == nil {
		return lease, nil, err
	}
	return nil, &Pending{c, w}, nil
}

// Await is the second half of Admit: it blocks until the request is admitted or refused, or until
// ctx ends. A request whose ctx has ended leaves the queue, and gives back what it was granted.
func (p *Pending) Await(ctx context.Context) (*Lease, error) {
	return p.controller.await(ctx, p.waiter)
}

// AwaitFor calls UnlockedHooks.OnWait if the request has to wait, and waits no longer than patience
// after it has entered the queue. It returns false when the request is still in the queue; it then
// keeps its place there. True means that Await returns at once, or ends a wait whose time or whose
// ctx is over.
func (p *Pending) AwaitFor(ctx context.Context, patience time.Duration) (decided bool) {
	w := p.waiter
	w.reportBlock()
	timer := time.NewTimer(time.Until(w.deadline))
	defer timer.Stop()
	late := w.lateVerdict()
	for undecided := w.mustWait != nil; undecided; { // the verdict of the shared state is still to come
		select {
		case <-w.mustWait:
			undecided = false
		case <-late:
			w.reportWait()
		case <-w.done:
			return true
		case <-ctx.Done():
			return true
		case <-timer.C:
			return true
		}
	}
	w.reportWait()
	left := time.Until(w.deadline)
	timer.Reset(min(patience, left))
	select {
	case <-w.done:
	case <-ctx.Done():
	case <-timer.C:
		return patience >= left
	}
	return true
}
