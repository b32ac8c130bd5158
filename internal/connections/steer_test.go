package connections

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sharing is a listener that shares its port. It closes each connection that it accepts.
type sharing struct {
	net.Listener
	accepted atomic.Int64
}

// share listens at an address beside others.
func share(t *testing.T, address string) *sharing {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(err, failed)
	}}
	network := "tcp4"
	switch {
	case strings.HasPrefix(address, "[::1]"):
		network = "tcp6"
	case strings.HasPrefix(address, "[::]"):
		network = "tcp" // IPv4 too
	}
	l, err := config.Listen(context.Background(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	s := &sharing{Listener: l}
	t.Cleanup(func() { _ = l.Close() })
	return s
}

// serve accepts until the listener is closed. The greeting tells a client that it was accepted.
func (s *sharing) serve(running *sync.WaitGroup) {
	running.Go(func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			s.accepted.Add(1)
			_, _ = c.Write([]byte("hello"))
			_ = c.Close()
		}
	})
}

// visit connects and reads the greeting.
func visit(address string) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // it was read
	_, err = c.Read(make([]byte, 5))
	return err
}

// total returns how many connections listeners have accepted.
func total(all []*sharing) (n int64) {
	for _, s := range all {
		n += s.accepted.Load()
	}
	return n
}

// While clients connect, new listeners take the place of older ones twice. No connection is lost,
// and afterwards all new listeners have their part.
func TestSteerLosesNoConnection(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"} {
		t.Run(at, func(t *testing.T) {
			first := share(t, at)
			port := first.Addr().(*net.TCPAddr).AddrPort().Port()
			address := netip.AddrPortFrom(netip.MustParseAddrPort(at).Addr(), port)
			to := strings.NewReplacer("0.0.0.0", "127.0.0.1", "[::]", "127.0.0.1").Replace(address.String())
			var serving, visiting sync.WaitGroup
			older := []*sharing{first, share(t, address.String())}
			for _, s := range older {
				s.serve(&serving)
			}
			end := make(chan struct{})
			var visits sync.RWMutex
			for range 4 {
				visiting.Go(func() {
					for {
						select {
						case <-end:
							return
						case <-time.After(100 * time.Microsecond): // else a fast machine runs out of ports
						}
						visits.RLock()
						if err := visit(to); err != nil {
							t.Error(err)
						}
						visits.RUnlock()
					}
				})
			}
			for range 2 {
				newer := []*sharing{share(t, address.String()), share(t, address.String()), share(t, address.String())}
				for _, s := range newer {
					s.serve(&serving)
				}
				steering, err := Steer(address, len(newer))
				if err != nil {
					t.Fatal(err)
				}
				visits.Lock() // connections that were being made have been accepted
				before := total(older)
				visits.Unlock()
				for range 50 {
					if err := visit(to); err != nil {
						t.Error(err)
					}
				}
				if n := total(older) - before; n > 0 {
					t.Errorf("older listeners have accepted %d connections", n)
				}
				if err := steering.Close(func() bool { return false }); err != nil {
					t.Error(err)
				}
				for range 50 {
					if err := visit(to); err != nil {
						t.Error(err)
					}
				}
				if n := total(older) - before; n > 0 {
					t.Errorf("older listeners have accepted %d connections after they were not closed", n)
				}
				err = steering.Close(func() bool {
					for _, s := range older {
						_ = s.Close()
					}
					return true
				})
				if err != nil {
					t.Error(err)
				}
				for _, s := range newer {
					s.accepted.Store(0)
				}
				for range 300 {
					if err := visit(to); err != nil {
						t.Error(err)
					}
				}
				for i, s := range newer {
					if n := s.accepted.Load(); n < 10 {
						t.Errorf("listener %d has accepted %d connections", i, n)
					}
				}
				older = newer
			}
			close(end)
			visiting.Wait()
			for _, s := range older {
				_ = s.Close()
			}
			serving.Wait()
		})
	}
}

// Without an older listener there is nothing to lead away from, and nothing changes.
func TestSteerWithoutOlderListeners(t *testing.T) {
	t.Parallel()
	s := share(t, "127.0.0.1:0")
	address := s.Addr().(*net.TCPAddr).AddrPort()
	for _, newest := range []int{0, 1, 2} {
		if _, err := Steer(address, newest); !errors.Is(err, ErrNoOlder) {
			t.Errorf("%d of one listener: %v", newest, err)
		}
	}
	var serving sync.WaitGroup
	s.serve(&serving)
	for range 20 {
		if err := visit(address.String()); err != nil {
			t.Error(err)
		}
	}
	_ = s.Close()
	serving.Wait()
}

// A port that is not shared cannot be led.
func TestSteerOfAPortOfItsOwn(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // nobody connects
	closed := false
	s := &Steering{address: l.Addr().(*net.TCPAddr).AddrPort(), older: 1, newest: 1}
	if err := s.Close(func() bool { closed = true; return true }); !errors.Is(err, unix.EADDRINUSE) || !closed {
		t.Errorf("error %v, want that the address is in use; closed %v", err, closed)
	}
}
