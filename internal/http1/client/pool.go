package h1client

import (
	"slices"
	"sync"
	"time"
)

// target is where a connection leads.
type target struct {
	// address is host and port
	address string
	secure  bool
}

// pool has the connections that wait for a request. The zero value is empty.
type pool struct {
	mu sync.Mutex
	// idle by target, the one that has waited longest first; guarded by mu
	idle map[target][]*conn
	// timer runs while connections wait; guarded by mu
	timer *time.Timer
}

// take returns the connection to the target that has waited least, or nil. Those that the engine has closed meanwhile are passed over.
func (p *pool) take(to target, timeout time.Duration) *conn {
	for {
		c := p.pop(to)
		if c == nil {
			return nil
		}
		if time.Since(c.since) < timeout && c.quiet() {
			return c
		}
		c.close()
	}
}

func (p *pool) pop(to target) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	waiting := p.idle[to]
	last := len(waiting) - 1
	if last < 0 {
		return nil
	}
	c := waiting[last]
	waiting[last] = nil
	p.keepLocked(to, waiting[:last])
	return c
}

// keepLocked puts what is left for a target.
func (p *pool) keepLocked(to target, waiting []*conn) {
	if len(waiting) == 0 {
		delete(p.idle, to)
	} else {
		p.idle[to] = waiting
	}
}

// put lets the connection wait for another request, unless as many wait as may.
func (t *Transport) put(c *conn) {
	most := t.MaxIdlePerHost
	if most == 0 {
		most = DefaultMaxIdlePerHost
	}
	if !t.pool.push(c, most, t.idleTimeout()) {
		c.close()
	}
}

func (p *pool) push(c *conn, most int, timeout time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle[c.to]) >= most {
		return false
	}
	if p.idle == nil {
		p.idle = map[target][]*conn{}
	}
	c.since = time.Now()
	p.idle[c.to] = append(p.idle[c.to], c)
	if p.timer == nil {
		p.timer = time.AfterFunc(timeout, func() { p.expire(timeout) })
	}
	return true
}

// expire closes what has waited for too long. It comes again for as long as anything waits.
func (p *pool) expire(timeout time.Duration) {
	var old []*conn
	p.mu.Lock()
	next := timeout
	for to, waiting := range p.idle {
		n := 0
		for n < len(waiting) && time.Since(waiting[n].since) >= timeout {
			n++
		}
		if n < len(waiting) {
			next = min(next, timeout-time.Since(waiting[n].since))
		}
		old = append(old, waiting[:n]...)
		p.keepLocked(to, slices.Delete(waiting, 0, n))
	}
	if len(p.idle) == 0 {
		p.timer = nil
	} else if p.timer != nil {
		p.timer.Reset(max(next, time.Millisecond))
	}
	p.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

func (p *pool) clear() {
	p.mu.Lock()
	all := p.idle
	p.idle = nil
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	p.mu.Unlock()
	for _, waiting := range all {
		for _, c := range waiting {
			c.close()
		}
	}
}
