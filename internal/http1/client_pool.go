package http1

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// target is where a connection leads to.
type target struct {
	// address is host:port.
	address string
	secure  bool
}

// idlePool holds the idle connections. The zero value is empty and ready to use.
type idlePool struct {
	mu sync.Mutex
	// idle holds the connections by target, the longest idle first. Guarded by mu.
	idle map[target][]*clientConn
	// timer runs while connections are idle. Guarded by mu.
	timer *time.Timer
}

// acquire returns the connection to the target that was idle for the shortest time, or nil. It
// closes connections that have been idle for too long or that the engine has closed.
func (p *idlePool) acquire(to target, timeout time.Duration) *clientConn {
	for {
		c := p.pop(to)
		if c == nil {
			return nil
		}
		if time.Since(c.idleSince) < timeout && c.isQuiet() {
			return c
		}
		c.close()
	}
}

func (p *idlePool) pop(to target) *clientConn {
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

// keepLocked sets the idle connections of a target. The lock is held.
func (p *idlePool) keepLocked(to target, waiting []*clientConn) {
	if len(waiting) == 0 {
		delete(p.idle, to)
	} else {
		p.idle[to] = waiting
	}
}

// releaseIdle makes a connection idle, or closes it if enough connections to its target are idle.
func (t *Transport) releaseIdle(c *clientConn) {
	most := cmp.Or(t.MaxIdlePerHost, DefaultMaxIdlePerHost)
	if !t.pool.add(c, most, t.idleTimeout()) {
		c.close()
	}
}

func (p *idlePool) add(c *clientConn, most int, timeout time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle[c.target]) >= most {
		return false
	}
	if p.idle == nil {
		p.idle = map[target][]*clientConn{}
	}
	c.idleSince = time.Now()
	p.idle[c.target] = append(p.idle[c.target], c)
	if p.timer == nil {
		p.timer = time.AfterFunc(timeout, func() { p.closeExpired(timeout) })
	}
	return true
}

// closeExpired closes the connections that have been idle for too long. Its timer runs while any
// connection is idle.
func (p *idlePool) closeExpired(timeout time.Duration) {
	var old []*clientConn
	p.mu.Lock()
	next := timeout
	for to, waiting := range p.idle {
		n := 0
		for n < len(waiting) && time.Since(waiting[n].idleSince) >= timeout {
			n++
		}
		if n < len(waiting) {
			next = min(next, timeout-time.Since(waiting[n].idleSince))
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

func (p *idlePool) closeAll() {
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
