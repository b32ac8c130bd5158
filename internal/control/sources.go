package control

import (
	"net"
	"net/netip"
	"sync"
)

// sources counts the handshakes that each address has begun and not ended. The zero value is ready
// to use.
type sources struct {
	mu sync.Mutex
	// handshakes has the addresses that have any. Guarded by mu.
	handshakes map[netip.Addr]int
}

// begin counts a handshake. It returns false if the address has as many as it may have.
func (s *sources) begin(from netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handshakes[from] == maxOfSource {
		return false
	}
	if s.handshakes == nil {
		s.handshakes = map[netip.Addr]int{}
	}
	s.handshakes[from]++
	return true
}

// end is called once after each begin that has returned true.
func (s *sources) end(from netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handshakes[from]--; s.handshakes[from] == 0 {
		delete(s.handshakes, from)
	}
}

// sourceOf returns the address of a peer. An address that cannot be read is that of all such peers.
func sourceOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
