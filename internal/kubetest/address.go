package kubetest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// port is a TCP port of 127.0.0.1 that is ours as long as we live. It is bound here and never listened at; the API server binds it too (both say
// SO_REUSEPORT), so that nobody takes it while the API server is away, and clients are refused meanwhile.
type port struct {
	fd     int
	number int
}

func takePort() (*port, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	p := &port{fd: fd}
	if err := p.bind(); err != nil {
		p.free()
		return nil, fmt.Errorf("port of the API server: %w", err)
	}
	return p, nil
}

func (p *port) bind() error {
	if err := unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	if err := unix.Bind(p.fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	address, err := unix.Getsockname(p.fd)
	if err != nil {
		return err
	}
	p.number = address.(*unix.SockaddrInet4).Port
	return nil
}

func (p *port) free() {
	if p != nil {
		_ = unix.Close(p.fd) // nothing was written
	}
}

// subnet is a 127.x.0.0/16 for the addresses of one cluster's pods.
type subnet struct {
	x    int
	hold net.Listener
	last atomic.Int32
}

const (
	firstSubnet = 64 // below it is what people use by hand
	subnets     = 128
)

// takeSubnet begins the search at a place of this process's own. A Unix socket in the abstract namespace is the hold on a subnet: there is one such
// namespace for each 127.0.0.0/8, and the kernel gives it back when we die.
func takeSubnet() (*subnet, error) {
	for i := range subnets {
		x := firstSubnet + (os.Getpid()+i)%subnets
		hold, err := net.Listen("unix", fmt.Sprintf("@sluice-kubetest-127.%d", x))
		if err == nil {
			return &subnet{x: x, hold: hold}, nil
		}
	}
	return nil, errors.New("all subnets of 127.0.0.0/8 for pods are taken")
}

// next is an address that no pod of the cluster had so far (the 60000 pods before).
func (s *subnet) next() string {
	const hosts = 250
	n := int(s.last.Add(1) - 1)
	return fmt.Sprintf("127.%d.%d.%d", s.x, n/hosts%hosts, n%hosts+1)
}

func (s *subnet) free() {
	if s != nil {
		s.hold.Close()
	}
}
