package local

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// ports hands out free loopback ports. A port is held by a listener of ours until just before its engine starts, and is not
// given to another replica while it has one.
type ports struct {
	mu sync.Mutex
	// taken by our replicas; guarded by mu
	taken map[uint16]bool
}

func newPorts() *ports { return &ports{taken: map[uint16]bool{}} }

// hold finds a free port. Closing the listener lets the engine have it; release gives it back for good.
func (p *ports) hold() (net.Listener, netip.AddrPort, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, netip.AddrPort{}, fmt.Errorf("find a free port: %w", err)
		}
		address := listener.Addr().(*net.TCPAddr).AddrPort()
		if !p.taken[address.Port()] {
			p.taken[address.Port()] = true
			return listener, address, nil
		}
		// Its replica does not listen yet. Held until we return, it does not come up again.
		defer listener.Close()
	}
}

// keep marks the port of an adopted replica.
func (p *ports) keep(port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[port] = true
}

func (p *ports) release(port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taken, port)
}

// occupied tells whether somebody listens on the address, or has it in another way.
func occupied(address netip.AddrPort) bool {
	listener, err := net.Listen("tcp", address.String())
	if err != nil {
		return errors.Is(err, syscall.EADDRINUSE)
	}
	_ = listener.Close()
	return false
}
