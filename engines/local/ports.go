package local

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// ports hands out free ports of one address. A port is held by a listener of ours until just before its engine starts, and is not
// given to another replica while it has one.
type ports struct {
	address netip.Addr

	mu sync.Mutex
	// taken by our replicas; guarded by mu
	taken map[uint16]bool
}

func newPorts(address netip.Addr) *ports { return &ports{address: address, taken: map[uint16]bool{}} }

// hold finds a free port. Closing the listener lets the engine have it; release gives it back for good.
func (p *ports) hold() (net.Listener, netip.AddrPort, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		listener, err := net.Listen("tcp", netip.AddrPortFrom(p.address, 0).String())
		if err != nil {
			return nil, netip.AddrPort{}, fmt.Errorf("find a free port: %w", err)
		}
		address := netip.AddrPortFrom(p.address, listener.Addr().(*net.TCPAddr).AddrPort().Port())
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
