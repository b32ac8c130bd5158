// Package sources counts the connections of strangers by the address that they come from, so that
// one address does not keep others out. Packages internal/control and engines/join use it.
package sources

import (
	"net"
	"net/netip"
	"sync"
)

// Counter counts connections that have not shown yet who they are. Its methods are safe for
// concurrent use.
type Counter struct {
	// Most is how many may be counted at once; 0: there is no limit. MostOfSource is how many of
	// them one address may have.
	Most, MostOfSource int

	mu sync.Mutex
	// total is the sum of bySource, which has the addresses that have any. Guarded by mu.
	total    int
	bySource map[netip.Addr]int
}

// Begin counts a connection and returns what ends that, which may be called repeatedly. It returns
// nil if there are too many.
func (c *Counter) Begin(connection net.Conn) (end func()) {
	from := addressOf(connection)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Most > 0 && c.total == c.Most || c.bySource[from] == c.MostOfSource {
		return nil
	}
	if c.bySource == nil {
		c.bySource = map[netip.Addr]int{}
	}
	c.total++
	c.bySource[from]++
	return sync.OnceFunc(func() { c.end(from) })
}

func (c *Counter) end(from netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if c.bySource[from]--; c.bySource[from] == 0 {
		delete(c.bySource, from)
	}
}

// addressOf returns the address of a peer. An address that cannot be read is that of all such
// peers.
func addressOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
