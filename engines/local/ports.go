package local

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// ports hands out free ports of one address. A listener holds a port until just before the engine
// starts. A port is not given to another replica until it is released.
type ports struct {
	address netip.Addr

	mu sync.Mutex
	// taken are the ports of replicas; guarded by mu
	taken map[uint16]bool
}

func newPorts(address netip.Addr) *ports { return &ports{address: address, taken: map[uint16]bool{}} }

// hold finds a free port. The caller closes the listener to let the engine listen, and calls
// release when the engine has ended.
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
		// The replica that has this port does not listen yet. The listener is held until hold
		// returns, so that the kernel does not offer the port again.
		defer listener.Close()
	}
}

// keep marks the port of an adopted replica as taken.
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

func occupied(address netip.AddrPort) bool {
	listener, err := net.Listen("tcp", address.String())
	if err != nil {
		return errors.Is(err, syscall.EADDRINUSE)
	}
	_ = listener.Close()
	return false
}
