package connections

import (
	"errors"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// skfAdRandom is where a classic BPF program reads a random number (linux/filter.h).
const skfAdRandom = 0xfffff000 + 56

// ErrNoOlder means that all listeners of an address are among the newest.
var ErrNoOlder = errors.New("there is no older listener")

// Steer has the kernel give the new connections to the newest listeners of an address, which older
// ones share with SO_REUSEPORT. The older ones only accept those that wait for them. After a while
// they can be closed, and no connection is lost: see Steering.Close.
//
// The listeners are those of processes of this user. The kernel chooses by a program that belongs
// to all sockets of the address, and any of them can set it. So Steer opens one more for a moment.
// That one takes no packet: a client whose first packet meets it sends it again, a second later.
func Steer(address netip.AddrPort, newest int) (*Steering, error) {
	all, err := Listeners(address)
	if err != nil {
		return nil, err
	}
	s := &Steering{address: address, older: all - newest, newest: newest}
	if s.older <= 0 || newest <= 0 {
		if err := s.Stop(); err != nil { // a process that was killed may have left its program
			return nil, err
		}
		return nil, ErrNoOlder
	}
	return s, s.toNewest()
}

// Steering is the time in which new connections go to the newest listeners of an address.
type Steering struct {
	address netip.AddrPort
	// older is the number of the older listeners. The kernel has them first.
	older, newest int
}

// toNewest has the kernel choose one of the newest listeners at random.
func (s *Steering) toNewest() error {
	return s.choose([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: skfAdRandom},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(s.newest)},
		{Code: unix.BPF_ALU | unix.BPF_ADD | unix.BPF_K, K: uint32(s.older)},
		{Code: unix.BPF_RET | unix.BPF_A},
	})
}

// Close has all older listeners closed by a function, which returns whether that is done. Then the
// kernel chooses among those that are left. If it is not done, new connections still go to the
// newest listeners, and Close may be called again if none of the older ones was closed.
//
// Where a listener is closed, the kernel puts the last one. The first of the newest keeps its place
// until the others have moved, so meanwhile it gets all connections. With fewer newest than older
// ones, a connection that comes between the ends of two older ones may be lost.
func (s *Steering) Close(closeOlder func() (done bool)) error {
	err := s.choose([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(s.older)}})
	if !closeOlder() {
		return errors.Join(err, s.toNewest())
	}
	return errors.Join(err, s.Stop())
}

// Stop has the kernel choose among all listeners again.
func (s *Steering) Stop() error {
	return withListener(s.address, func(fd int) error {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
		if errors.Is(err, unix.ENOENT) {
			return nil // there is no program
		}
		return os.NewSyscallError("setsockopt", err)
	})
}

// choose sets the program by which the kernel chooses.
func (s *Steering) choose(program []unix.SockFilter) error {
	return withListener(s.address, func(fd int) error { return setProgram(fd, unix.SO_ATTACH_REUSEPORT_CBPF, program) })
}

// withListener calls set with a listener at an address beside those that are there. It takes no
// packet and is closed then.
func withListener(address netip.AddrPort, set func(fd int) error) error {
	family, at := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(address.Port()), Addr: address.Addr().As16()})
	if address.Addr().Is4() {
		family, at = unix.AF_INET, &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := listenDeaf(fd, at, address.Addr()); err != nil {
		return err
	}
	return set(fd)
}

// listenDeaf has a socket listen at an address and drop each packet.
func listenDeaf(fd int, at unix.Sockaddr, address netip.Addr) error {
	if address.Is6() {
		only := 1 // as Envoy sets it
		if address.IsUnspecified() {
			only = 0
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := setProgram(fd, unix.SO_ATTACH_FILTER, []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}); err != nil {
		return err
	}
	if err := unix.Bind(fd, at); err != nil {
		return os.NewSyscallError("bind", err)
	}
	return os.NewSyscallError("listen", unix.Listen(fd, 1))
}

// setProgram gives a socket a classic BPF program.
func setProgram(fd, option int, program []unix.SockFilter) error {
	err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, option, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	return os.NewSyscallError("setsockopt", err)
}

// Listeners returns how many sockets listen at an address.
func Listeners(address netip.AddrPort) (n int, err error) {
	err = each(address, listening, func(local, _ netip.Addr) {
		if local == address.Addr() {
			n++
		}
	})
	return n, err
}
