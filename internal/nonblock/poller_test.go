package nonblock

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// registrations returns the events that epoll instances of this process wait for on a descriptor.
func registrations(t *testing.T, fd int) (events []uint64) {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range infos {
		info, _ := os.ReadFile(path) // other tests close descriptors meanwhile
		for line := range strings.Lines(string(info)) {
			var number int
			var mask string
			if n, _ := fmt.Sscanf(line, "tfd: %d events: %s", &number, &mask); n == 2 && number == fd {
				value, err := strconv.ParseUint(mask, 16, 64)
				if err != nil {
					t.Fatal(err)
				}
				events = append(events, value)
			}
		}
	}
	return events
}

// Only the poller knows the descriptor, and it does not wait until the descriptor can be written.
// It does while a Write waits.
func TestOnlyAFullSocketIsPolledForWriting(t *testing.T) {
	t.Parallel()
	const reading = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET
	a, b := detachedPair(t)
	check := func(when string, want uint64) {
		t.Helper()
		const known = reading | unix.EPOLLOUT
		events := registrations(t, a.fd)
		if len(events) != 1 || events[0]&known != want {
			t.Errorf("%s the descriptor is registered with %x, want once %x", when, events, want)
		}
	}
	check("at first", reading)
	n := fill(t, a)
	check("when full", reading)
	written := calling(a.Write, make([]byte, 1<<20))
	waits(t, &a.writing)
	check("while a write waits", reading|unix.EPOLLOUT)
	if _, err := io.CopyN(io.Discard, b, int64(n)+1<<20); err != nil {
		t.Fatal(err)
	}
	if err := received(t, written); err != nil {
		t.Fatal(err)
	}
	check("after the write", reading)
	fill(t, a)
	a.SetWriteDeadline(time.Now().Add(moment))
	if err := received(t, calling(a.Write, make([]byte, 1))); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	check("after the deadline of a write", reading)
}

// Nobody is woken when the peer has read. A second connection, whose event comes later, tells when
// the poller has seen everything.
func TestThePeerReadsWithoutNotice(t *testing.T) {
	t.Parallel()
	a, b := detachedPair(t)
	later, theirs := detachedPair(t)
	buffer := make([]byte, 100)
	for range 100 {
		if _, err := a.Write(buffer); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(b, buffer); err != nil {
			t.Fatal(err)
		}
	}
	seen := calling(later.Read, make([]byte, 1))
	waits(t, &later.reading)
	if _, err := theirs.Write(buffer[:1]); err != nil {
		t.Fatal(err)
	}
	if err := received(t, seen); err != nil {
		t.Fatal(err)
	}
	if len(a.reading.ready) > 0 || len(a.writing.ready) > 0 {
		t.Errorf("the reading side is woken: %v, the writing side: %v", len(a.reading.ready) > 0, len(a.writing.ready) > 0)
	}
}

// Closed connections leave no descriptor, and the last one takes the poller along.
func TestNoDescriptorIsLeft(t *testing.T) {
	before := descriptors(t)
	for range 3 {
		for range 20 {
			a, b := detachedPair(t)
			fill(t, a)
			a.Close()
			b.Close()
		}
	}
	end := time.Now().Add(patience)
	for descriptors(t) > before && time.Now().Before(end) { // the poller's goroutine closes its own
		time.Sleep(time.Millisecond)
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
	registry.mu.Lock()
	defer registry.mu.Unlock()
	if registry.poller != nil {
		t.Error("there is a poller without a connection")
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// While no file may be opened, a connection stays what it is, whether the descriptor fails or the
// poller.
func TestDetachWithoutDescriptors(t *testing.T) {
	a, b := pair(t)
	before := descriptors(t)
	for more := range 2 {
		withDescriptors(t, more, func() {
			if c := ConnOf(b); c != net.Conn(b) {
				t.Errorf("with %d descriptors left the connection is detached", more)
			}
		})
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
	if _, err := a.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	b.SetReadDeadline(time.Now().Add(patience))
	if _, err := b.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	pipe, _ := net.Pipe()
	if ConnOf(pipe) != pipe {
		t.Error("a connection that has no descriptor is detached")
	}
}

// withDescriptors calls f while so many more files may be opened.
func withDescriptors(t *testing.T, more int, f func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	next, err := unix.Dup(0) // the lowest number that is free
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(next)
	limit := unix.Rlimit{Cur: uint64(next + more), Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	f()
}

// The last connection may be closed while the poller tells connections of their events.
func TestTheLastConnIsClosedDuringEvents(t *testing.T) {
	for range 3000 {
		left, right := pair(t)
		a, b := ConnOf(left), ConnOf(right)
		a.Write(make([]byte, 1))
		a.Close()
		b.Close()
	}
}

// All events are told that come while the poller is busy, also when one system call does not fetch
// them all.
func TestManyEventsAtATime(t *testing.T) {
	const conns = 3 * maxEvents
	read, peers := make([]<-chan error, conns), make([]*net.UnixConn, conns)
	for i := range conns {
		left, right := pair(t)
		c := detach(t, left)
		read[i], peers[i] = calling(c.Read, make([]byte, 1)), right
		waits(t, &c.reading)
	}
	registry.mu.Lock()
	for _, c := range peers {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
	}
	registry.mu.Unlock()
	for _, ended := range read {
		if err := received(t, ended); err != nil {
			t.Error(err)
		}
	}
}
