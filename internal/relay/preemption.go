package relay

import "sync"

// preemption passes a request to preempt a generation on to its current attempt. The request may
// come before the attempt has begun. A generation has one preemption for each ticket.
type preemption struct {
	mu sync.Mutex
	// requested says that a more urgent request wants the slot. mu guards it.
	requested bool
	// abandon ends the current attempt. nil: no attempt has begun. mu guards it.
	abandon func()
}

// request abandons the current attempt, or the next one if none has begun. Any goroutine may call
// it.
func (p *preemption) request() {
	p.mu.Lock()
	p.requested = true
	abandon := p.abandon
	p.mu.Unlock()
	if abandon != nil {
		abandon()
	}
}

// setAttempt sets how the current attempt is abandoned. If a request came before, it calls abandon.
func (p *preemption) setAttempt(abandon func()) {
	p.mu.Lock()
	p.abandon = abandon
	requested := p.requested
	p.mu.Unlock()
	if requested {
		abandon()
	}
}
