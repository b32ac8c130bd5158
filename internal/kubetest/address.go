package kubetest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// port is a TCP port of 127.0.0.1 that this process owns. The process binds the port and never
// listens on it. The API server binds it too, which SO_REUSEPORT allows. So no other process gets
// the port while the API server is stopped, and clients are refused meanwhile.
type port struct {
	fd     int
	number int
}

// reservePort binds a free port.
func reservePort() (*port, error) {
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
		_ = unix.Close(p.fd) // Nothing was written.
	}
}

// subnet is a 127.x.0.0/16 for the addresses of one cluster's pods.
type subnet struct {
	second      int
	reservation net.Listener
	last        atomic.Int32
}

const (
	firstSubnet = 64 // Addresses below are used by hand.
	subnets     = 128
)

// reserveSubnet reserves a free subnet. The search starts at an offset that depends on the process
// id. The reservation is a Unix socket in the abstract namespace. There is one such namespace for
// each 127.0.0.0/8, and the kernel releases the socket when the process dies.
func reserveSubnet() (*subnet, error) {
	for i := range subnets {
		x := firstSubnet + (os.Getpid()+i)%subnets
		hold, err := net.Listen("unix", fmt.Sprintf("@sluice-kubetest-127.%d", x))
		if err == nil {
			return &subnet{second: x, reservation: hold}, nil
		}
	}
	return nil, errors.New("all subnets of 127.0.0.0/8 for pods are in use: stop other tests")
}

// next returns an address that none of the cluster's last 60000 pods had.
func (s *subnet) next() string {
	const hosts = 250
	n := int(s.last.Add(1) - 1)
	return fmt.Sprintf("127.%d.%d.%d", s.second, n/hosts%hosts, n%hosts+1)
}

func (s *subnet) free() {
	if s != nil {
		s.reservation.Close()
	}
}
