package nonblock

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// patience bounds what must happen, and moment is how long a test watches that nothing happens.
const (
	patience = testutil.Patience
	moment   = 50 * time.Millisecond
)

// detachedPair returns both ends of a connection, which are Conns.
func detachedPair(t *testing.T) (a, b *Conn) {
	t.Helper()
	left, right := pair(t)
	return detach(t, left), detach(t, right)
}

func detach(t *testing.T, c *net.UnixConn) *Conn {
	t.Helper()
	d, err := Detach(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// fill writes to a connection until it takes no more.
func fill(t *testing.T, c net.Conn) (n int) {
	t.Helper()
	w, err := NewWriter(c)
	if err != nil {
		t.Fatal(err)
	}
	for {
		more, err := w.Try(make([]byte, 64<<10))
		if err != nil {
			t.Fatal(err)
		}
		if n += more; more == 0 {
			return n
		}
	}
}

// waits waits until a goroutine waits for a side of a Conn.
func waits(t *testing.T, s *side) {
	t.Helper()
	testutil.Eventually(t, "somebody waits to "+s.call, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.waiting
	})
}

// received returns the error that comes within patience.
func received(t *testing.T, c <-chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patience):
		t.Fatal("the call has not returned")
		return nil
	}
}

// calling runs a call of a connection on another goroutine.
func calling(call func([]byte) (int, error), p []byte) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := call(p)
		ended <- err
	}()
	return ended
}

// A Conn keeps the contract of net.Conn.
func TestContractOfConn(t *testing.T) {
	for name, both := range map[string]bool{"both ends": true, "one end": false} {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				a, b := pair(t)
				var c1, c2 net.Conn = detach(t, a), b
				if both {
					c2 = detach(t, b)
				}
				return c1, c2, func() { c1.Close(); c2.Close() }, nil
			})
		})
	}
}

// What was read and written before Detach is no matter. The old connection is closed, and the
// addresses are the same.
func TestDetach(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	if _, err := a.Write([]byte("before ")); err != nil {
		t.Fatal(err)
	}
	local, remote := b.LocalAddr().String(), b.RemoteAddr().String()
	d := detach(t, b)
	if _, err := b.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the old connection is written to: %v", err)
	}
	if d.LocalAddr().String() != local || d.RemoteAddr().String() != remote || d.LocalAddr().Network() != "unix" {
		t.Errorf("the addresses are %v and %v", d.LocalAddr(), d.RemoteAddr())
	}
	if _, err := a.Write([]byte("after")); err != nil {
		t.Fatal(err)
	}
	a.CloseWrite()
	if got, err := io.ReadAll(d); err != nil || string(got) != "before after" {
		t.Errorf("%q was read: %v", got, err)
	}
	if _, err := d.Write([]byte("answer")); err != nil {
		t.Error(err)
	}
	if err := d.CloseWrite(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(a); err != nil || string(got) != "answer" {
		t.Errorf("%q was answered: %v", got, err)
	}
	if _, err := d.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the sending half was closed: %v", err)
	}
}

// Many connections at a time lose no byte and no wake-up, whether messages fit into the socket or
// not.
func TestManyConnsLoseNoWakeUp(t *testing.T) {
	t.Parallel()
	const conns = 100
	rounds := 100
	if testing.Short() {
		rounds = 20
	}
	var running sync.WaitGroup
	for i := range conns {
		a, b := detachedPair(t)
		a.SetDeadline(time.Now().Add(4 * patience))
		b.SetDeadline(time.Now().Add(4 * patience))
		size := 1
		if i%10 == 0 {
			size = 300 << 10 // more than the socket holds
		}
		running.Go(func() { echo(t, b, rounds, size) })
		running.Go(func() { ask(t, a, rounds, size) })
	}
	running.Wait()
}

// ask writes messages and reads each of them back before the next one.
func ask(t *testing.T, c *Conn, rounds, size int) {
	sent, got := make([]byte, size), make([]byte, size)
	for round := range rounds {
		for i := range sent {
			sent[i] = byte(round + i)
		}
		written := calling(c.Write, sent)
		_, err := io.ReadFull(c, got)
		if err = errors.Join(err, <-written); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("round %d of %d bytes: %v", round, size, err)
			return
		}
	}
}

// echo returns what comes.
func echo(t *testing.T, c *Conn, rounds, size int) {
	if _, err := io.CopyN(c, c, int64(rounds*size)); err != nil {
		t.Errorf("echo of %d bytes: %v", size, err)
	}
}

// A peer that reads slowly gets everything.
func TestASlowReaderGetsEverything(t *testing.T) {
	t.Parallel()
	a, b := detachedPair(t)
	sent := make([]byte, 2<<20)
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	written := calling(a.Write, sent)
	var got []byte
	buffer := make([]byte, 64<<10)
	for len(got) < len(sent) {
		time.Sleep(time.Millisecond)
		n, err := b.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, buffer[:n]...)
	}
	if err := received(t, written); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes came: %v", len(got), len(sent), err)
	}
}

// Close ends calls that wait, and all later ones.
func TestCloseEndsCalls(t *testing.T) {
	t.Parallel()
	a, _ := detachedPair(t)
	fill(t, a)
	buffer := make([]byte, 1)
	reading, writing := calling(a.Read, make([]byte, 1)), calling(a.Write, make([]byte, 1))
	waits(t, &a.reading)
	waits(t, &a.writing)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	_, afterRead := a.Read(buffer)
	_, afterWrite := a.Write(buffer)
	for call, err := range map[string]error{
		"read that waited": received(t, reading), "write that waited": received(t, writing), "read": afterRead, "write": afterWrite,
		"set": a.SetDeadline(time.Now()), "close": a.Close(), "control": a.CloseWrite(),
	} {
		var fault *net.OpError
		if !errors.Is(err, net.ErrClosed) || !errors.As(err, &fault) || fault.Op != strings.Fields(call)[0] {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// A peer that leaves ends a read and a write that wait.
func TestThePeerLeaves(t *testing.T) {
	t.Parallel()
	a, b := detachedPair(t)
	fill(t, a)
	reading, writing := calling(a.Read, make([]byte, 1)), calling(a.Write, make([]byte, 1))
	waits(t, &a.reading)
	waits(t, &a.writing)
	b.Close()
	if err := received(t, writing); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write: %v", err)
	}
	// The peer has not read everything, so the kernel may report a reset.
	if err := received(t, reading); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v", err)
	}
}

// A deadline applies to a call that waits already, may be moved, and ends nothing once it is taken
// away. Its error is that of package net.
func TestDeadlinesOfCallsThatWait(t *testing.T) {
	t.Parallel()
	a, _ := detachedPair(t)
	fill(t, a)
	for _, c := range []struct {
		side *side
		call func([]byte) (int, error)
		set  func(time.Time) error
	}{{&a.reading, a.Read, a.SetReadDeadline}, {&a.writing, a.Write, a.SetWriteDeadline}} {
		for name, until := range map[string]func() time.Time{
			"past": func() time.Time { return time.Unix(1, 0) }, "soon": func() time.Time { return time.Now().Add(moment) },
		} {
			begun := time.Now()
			c.set(begun.Add(time.Hour))
			ended := calling(c.call, make([]byte, 1))
			waits(t, c.side)
			c.set(time.Now().Add(moment))
			c.set(time.Time{})
			select {
			case err := <-ended:
				t.Fatalf("%s, %s: a deadline that was taken away ended the call: %v", c.side.call, name, err)
			case <-time.After(3 * moment):
			}
			end := until()
			c.set(end)
			err := received(t, ended)
			var fault net.Error
			if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &fault) || !fault.Timeout() || time.Now().Before(end) {
				t.Errorf("%s, %s: %v", c.side.call, name, err)
			}
			if want := c.side.call + " unix "; !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), ": i/o timeout") {
				t.Errorf("%s, %s: the message is %q", c.side.call, name, err)
			}
			c.set(time.Time{})
		}
	}
	if a.reading.timer != nil || a.writing.timer != nil {
		t.Error("a timer runs while nobody waits")
	}
}

// Connections that are closed while others use them, and whose descriptors are used anew at once,
// harm no other connection.
func TestClosedDescriptorsAreUsedAnew(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const users, rounds = 4, 100
	var running sync.WaitGroup
	for range users {
		running.Go(func() {
			for range rounds {
				tearDown(t, l.Addr().String())
			}
		})
	}
	running.Go(func() {
		for range users * rounds {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			running.Go(func() { greet(c) })
		}
	})
	running.Wait()
}

// greet sends a connection its own greeting all the time, until the peer leaves.
func greet(c net.Conn) {
	d := ConnOf(c)
	defer d.Close()
	greeting := []byte(fmt.Sprintf("%016x", rand.Uint64()))
	for {
		if _, err := d.Write(greeting); err != nil {
			return
		}
	}
}

// tearDown closes a connection while two goroutines use it. What was read must be one greeting.
func tearDown(t *testing.T, path string) {
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Error(err)
		return
	}
	d := ConnOf(c)
	first := make([]byte, 16)
	if _, err := io.ReadFull(d, first); err != nil {
		t.Errorf("no greeting: %v", err)
	}
	writing := calling(d.Write, make([]byte, 1<<20))
	reading := make(chan error, 1)
	go func() {
		next := make([]byte, 16)
		for {
			if _, err := io.ReadFull(d, next); err != nil {
				reading <- err
				return
			}
			if !bytes.Equal(next, first) {
				t.Errorf("%q was read on the connection of %q", next, first)
			}
		}
	}()
	time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
	d.Close()
	for _, ended := range []<-chan error{writing, reading} {
		// A read may end in the middle of a greeting, which hides the error.
		if err := received(t, ended); !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the connection was closed: %v", err)
		}
	}
}

// Reading and writing a Conn allocates nothing.
func TestConnAllocatesNothing(t *testing.T) {
	a, b := detachedPair(t)
	buffer := make([]byte, 100)
	allocations := testing.AllocsPerRun(100, func() {
		if _, err := a.Write(buffer); err != nil {
			t.Error(err)
		}
		if _, err := b.Read(buffer); err != nil {
			t.Error(err)
		}
	})
	if allocations > 0 {
		t.Errorf("%v allocations", allocations)
	}
}
