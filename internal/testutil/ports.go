package testutil

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
)

// lastPort is the offset of the last port that FreePort tried.
var lastPort atomic.Int64

// FreePort returns a port of 127.0.0.1 that nothing listens on. No other test process gets it while
// this one runs.
//
// The ports count up from a base that depends on the process id. They lie below the range from
// which the kernel takes ports for outgoing connections. A port of the kernel's choice would not
// do. Envoy and Sluice listen on the port a moment later, and the kernel could give it to another
// socket first.
func FreePort(t testing.TB) int {
	t.Helper()
	base := 11000 + os.Getpid()%1000*20
	for range 1000 {
		port := base + int(lastPort.Add(1))
		if reserve(port) && isFree(port) {
			return port
		}
	}
	t.Fatal("none of 1000 ports is free")
	return 0
}

// ListenAt listens on one port of each address.
func ListenAt(t testing.TB, addresses ...string) (listeners []net.Listener, port string) {
	t.Helper()
	port = strconv.Itoa(FreePort(t)) // A port of the kernel's choice is free at one address only.
	for _, address := range addresses {
		l, err := net.Listen("tcp", net.JoinHostPort(address, port))
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
	}
	return listeners, port
}

// ListenAgain listens at an address whose listener was closed. A process that another test has
// started just then has that listener too, until its program begins.
func ListenAgain(t testing.TB, address string) (l net.Listener) {
	t.Helper()
	EventuallyNil(t, "nothing listens at "+address, func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	return l
}

// reserve reports whether no other test process has the port. The mark is a socket with a name that
// is not a file. Nothing closes it, so the kernel removes it when this process ends.
func reserve(port int) bool {
	mark, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	if syscall.Bind(mark, &syscall.SockaddrUnix{Name: fmt.Sprint("@sluice-test-port-", port)}) != nil {
		_ = syscall.Close(mark) // it is not bound
		return false
	}
	return true
}

// isFree reports whether nothing listens on the port. Without the lock, a process that another test
// starts just then has the socket for a moment too, and the port is in use after isFree.
func isFree(port int) bool {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	probe, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer syscall.Close(probe) //nolint:errcheck // nothing was written
	return syscall.Bind(probe, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}) == nil
}
