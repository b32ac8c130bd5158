package admission

import (
	"context"
	"sync"
	"time"
)

// gate is one model's way in: its capacity and the queue before it. Whatever changes one of them ends with advanceLocked, so
// that outside the lock the head of the queue is always one that cannot go.
type gate struct {
	held *heldBytes

	mu       sync.Mutex
	capacity capacity
	queue    queue
	// refill fires when the head's tokens are there. nil until a head waits for tokens for the first time.
	refill *time.Timer
	closed bool
}

// open sets the limits, and lets requests in if the gate was closed.
func (g *gate) open(l Limits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.closed = false
	if l != g.capacity.limits {
		g.capacity.set(l, now)
		g.refuseHopelessLocked(now)
	}
	g.advanceLocked(now)
}

// refuseHopelessLocked ends the waiting of those whose tokens can no longer come in time.
func (g *gate) refuseHopelessLocked(now time.Time) {
	ahead := int64(0)
	for w := range g.queue.all() {
		if err := g.hopelessLocked(w.Tokens, ahead, w.deadline.Sub(now), now); err != nil {
			g.refuseLocked(w, err)
			continue
		}
		ahead += int64(w.Tokens)
	}
}

// hopelessLocked says why a request that may wait for this long, behind others with this many tokens, would wait in vain.
func (g *gate) hopelessLocked(tokens int, ahead int64, left time.Duration, now time.Time) error {
	if !g.capacity.fits(tokens) {
		return ErrNeverFits
	}
	if wait := g.capacity.bucket.wait(ahead+int64(tokens), now); wait > max(left, 0) {
		return &RateLimited{RetryAfter: wait}
	}
	return nil
}

// close ends all waiting and lets nobody in.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for w := range g.queue.all() {
		g.refuseLocked(w, ErrRemoved)
	}
	g.advanceLocked(time.Now())
}

// idle reports whether a new gate would be just like this one.
func (g *gate) idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.capacity.bucket.refill(time.Now())
	return g.capacity.inFlight == 0 && g.capacity.bucket.level == g.capacity.bucket.size()
}

// enter admits the request, refuses it, or puts it in the queue: one of the three results is not nil.
func (g *gate) enter(r Request) (*Lease, *waiter, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, nil, ErrRemoved
	}
	if !g.capacity.fits(r.Tokens) {
		return nil, nil, ErrNeverFits
	}
	now := time.Now()
	if g.queue.head() == nil && g.passesLocked(&r, now) {
		return g.leaseLocked(r.Tokens), nil, nil
	}
	w, err := g.enqueueLocked(r, now)
	return nil, w, err
}

func (g *gate) enqueueLocked(r Request, now time.Time) (*waiter, error) {
	limits := g.capacity.limits
	if g.queue.length >= limits.maxQueue() {
		return nil, ErrQueueFull
	}
	timeout := limits.timeout(r.Timeout)
	if err := g.hopelessLocked(r.Tokens, g.queue.ahead(), timeout, now); err != nil {
		return nil, err
	}
	if !g.held.take(int64(r.Bytes)) {
		return nil, ErrQueueFull
	}
	w := &waiter{Request: r, deadline: now.Add(timeout), decided: make(chan struct{})}
	g.queue.push(w)
	g.armLocked(now)
	return w, nil
}

// passesLocked reports whether the request can go now; if so it has its slot on a replica, and must go.
func (g *gate) passesLocked(r *Request, now time.Time) bool {
	return g.capacity.free() && g.capacity.bucket.wait(int64(r.Tokens), now) == 0 && (r.Place == nil || r.Place())
}

func (g *gate) leaseLocked(tokens int) *Lease {
	g.capacity.take(tokens)
	return &Lease{gate: g, tokens: tokens}
}

// advanceLocked admits from the head of the queue until one cannot go.
func (g *gate) advanceLocked(now time.Time) {
	for w := g.queue.head(); w != nil && g.passesLocked(&w.Request, now); w = g.queue.head() {
		g.removeLocked(w)
		w.lease = g.leaseLocked(w.Tokens)
		close(w.decided)
	}
	g.armLocked(now)
}

// armLocked sets the timer if tokens, and nothing else that is known here, keep the head waiting. Everything else that it may
// wait for announces itself.
func (g *gate) armLocked(now time.Time) {
	var wait time.Duration
	if head := g.queue.head(); head != nil && g.capacity.free() {
		wait = g.capacity.bucket.wait(int64(head.Tokens), now)
	}
	switch {
	case wait > 0 && g.refill == nil:
		g.refill = time.AfterFunc(wait, g.kick)
	case wait > 0:
		g.refill.Reset(wait)
	case g.refill != nil:
		g.refill.Stop()
	}
}

func (g *gate) kick() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.advanceLocked(time.Now())
}

// removeLocked takes a waiter out of the queue, with its bytes.
func (g *gate) removeLocked(w *waiter) {
	g.queue.remove(w)
	g.held.give(int64(w.Bytes))
}

func (g *gate) refuseLocked(w *waiter, err error) {
	g.removeLocked(w)
	w.err = err
	close(w.decided)
}

// wait blocks until w is decided, out of time, or its context ends.
func (g *gate) wait(ctx context.Context, w *waiter) (*Lease, error) {
	if w.OnWait != nil {
		w.OnWait()
	}
	timer := time.NewTimer(time.Until(w.deadline))
	defer timer.Stop()
	select {
	case <-w.decided:
	case <-timer.C:
		g.leave(w, ErrTimeout)
	case <-ctx.Done():
		g.leave(w, ctx.Err())
	}
	// Whoever lost the race against an admission has a lease now. It is welcome after a timeout; a caller whose context has
	// ended could do nothing with it.
	if err := ctx.Err(); err != nil && w.lease != nil {
		g.undo(w)
		return nil, err
	}
	return w.lease, w.err
}

// leave takes w out of the queue, unless it was decided before.
func (g *gate) leave(w *waiter, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !w.queued {
		return
	}
	g.refuseLocked(w, err)
	g.advanceLocked(time.Now())
}

// undo takes back the admission of a waiter, as if it had never been.
func (g *gate) undo(w *waiter) {
	if w.Place != nil && w.Unplace != nil {
		w.Unplace()
	}
	g.end(w.lease, false)
}

// end ends a lease. The tokens of one that was not used go back into the bucket.
func (g *gate) end(l *Lease, used bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.released {
		return
	}
	l.released = true
	g.capacity.inFlight--
	if !used {
		g.capacity.bucket.refund(l.tokens)
	}
	g.advanceLocked(time.Now())
}

func (g *gate) limits() Limits {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.capacity.limits
}

func (g *gate) stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Stats{
		InFlight:    g.capacity.inFlight,
		Queued:      g.queue.length,
		QueuedBytes: g.queue.bytes,
		Tokens:      g.capacity.bucket.tokens(time.Now()),
	}
}
