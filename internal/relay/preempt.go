package relay

import "sync"

// preemption brings a wish for room to the attempt that can give it. The wish may come before the attempt has begun.
type preemption struct {
	mu sync.Mutex
	// wished, and who is to be told; guarded by mu
	wished bool
	tell   func()
}

func (p *preemption) call() {
	p.mu.Lock()
	p.wished = true
	tell := p.tell
	p.mu.Unlock()
	if tell != nil {
		tell()
	}
}

// to has wishes told from now on, and the one of before.
func (p *preemption) to(tell func()) {
	p.mu.Lock()
	p.tell = tell
	wished := p.wished
	p.mu.Unlock()
	if wished {
		tell()
	}
}
