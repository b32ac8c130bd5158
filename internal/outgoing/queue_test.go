package outgoing

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// socket is a socket that keeps what is written. Methods that are missing panic.
type socket struct {
	net.Conn
	mu sync.Mutex
	// writes are what was written, deadlines how often a deadline was set, by SetWriteDeadline.
	writes    [][]byte
	deadlines int
	closed    bool
	// each is called for each write. nil means that a write takes no time.
	each func()
	// discard means that what is written is not kept.
	discard bool
}

func (s *socket) Write(b []byte) (int, error) {
	if s.discard {
		return len(b), nil
	}
	s.mu.Lock()
	s.writes = append(s.writes, bytes.Clone(b))
	s.mu.Unlock()
	if s.each != nil {
		s.each()
	}
	return len(b), nil
}

func (s *socket) SetWriteDeadline(time.Time) error {
	s.deadlines++
	return nil
}

func (s *socket) Close() error {
	s.closed = true
	return nil
}

// frame returns what appends n bytes.
func frame(n int) func([]byte) []byte {
	return func(out []byte) []byte { return append(out, make([]byte, n)...) }
}

// What comes while a goroutine writes leaves together, and nobody else waits for it.
func TestB12_FramesAreGathered(t *testing.T) {
	t.Parallel()
	var lock sync.Mutex
	goOn, written := make(chan struct{}), make(chan struct{})
	s := &socket{each: func() { written <- struct{}{}; <-goOn }}
	q := New(&lock, s, 1<<20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := q.Add(frame(7)); err != nil {
			t.Error(err)
		}
		q.Flush()
	}()
	<-written
	for range 100 {
		if err := q.Add(frame(10)); err != nil {
			t.Error(err)
		}
		q.Flush()
	}
	lock.Lock()
	idle := q.Idle()
	lock.Unlock()
	goOn <- struct{}{}
	<-written
	goOn <- struct{}{}
	<-done
	var sizes []int
	for _, b := range s.writes {
		sizes = append(sizes, len(b))
	}
	if !slices.Equal(sizes, []int{7, 1000}) || idle || !q.Idle() {
		t.Errorf("writes of %d bytes; idle was %v, and is %v", sizes, idle, q.Idle())
	}
}

// A frame costs no memory.
func TestB12_AFrameCostsNoAllocation(t *testing.T) {
	var lock sync.Mutex
	q := New(&lock, &socket{discard: true}, 1<<20)
	content := make([]byte, 1000)
	send := func() {
		_ = q.Add(func(out []byte) []byte { return append(out, content...) })
		q.Flush()
	}
	send() // both buffers are made
	send()
	if n := testing.AllocsPerRun(100, send); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// A deadline is set at most once a second.
func TestB12_DeadlinesAreRare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lock sync.Mutex
		s := &socket{}
		q := New(&lock, s, 1<<20)
		for range 3 {
			for range 50 {
				_ = q.Add(frame(1))
				q.Flush()
			}
			time.Sleep(renewal)
		}
		if s.deadlines != 3 || len(s.writes) != 150 {
			t.Errorf("%d deadlines for %d writes within 3 s", s.deadlines, len(s.writes))
		}
	})
}

// A peer that reads nothing loses its connection, also when the last deadline is long over. One
// that reads slowly keeps it.
func TestB12_SlowPeers(t *testing.T) {
	t.Parallel()
	for name, reads := range map[string]bool{"slow": true, "reads nothing": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var lock sync.Mutex
				ours, theirs := net.Pipe()
				defer theirs.Close()
				q := New(&lock, ours, 1<<20)
				_ = q.Add(frame(1))
				go q.Flush()
				if _, err := theirs.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				const pieces = 4
				_ = q.Add(frame(pieces * maxPiece))
				begun := time.Now()
				go q.Flush()
				for range pieces {
					if !reads {
						break
					}
					time.Sleep(writeTimeout - 2*renewal)
					if _, err := io.ReadFull(theirs, make([]byte, maxPiece)); err != nil {
						t.Fatal(err)
					}
				}
				if reads {
					synctest.Wait()
					if err := q.Add(frame(1)); err != nil {
						t.Error(err)
					}
					return
				}
				if _, err := theirs.Write([]byte{1}); !errors.Is(err, io.ErrClosedPipe) {
					t.Errorf("the connection is not closed: %v", err)
				}
				if took := time.Since(begun); took != writeTimeout {
					t.Errorf("it is closed after %v", took)
				}
				if err := q.Add(frame(1)); !errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("a further frame: %v", err)
				}
			})
		})
	}
}

// What waits is bounded. One frame may be larger than the bound.
func TestB12_TheQueueIsBounded(t *testing.T) {
	t.Parallel()
	var lock sync.Mutex
	s := &socket{}
	q := New(&lock, s, 1000)
	if err := q.Add(frame(5000)); err != nil {
		t.Fatal(err)
	}
	q.Flush()
	for range 11 {
		if err := q.Add(frame(100)); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Add(frame(1)); !errors.Is(err, net.ErrClosed) || !s.closed || q.Out != nil {
		t.Errorf("with 1100 bytes waiting: %v, closed %v, %d bytes kept", err, s.closed, len(q.Out))
	}
}

// A reader writes little itself, and leaves much to another goroutine.
func TestB12_MuchIsLeftToAnotherGoroutine(t *testing.T) {
	t.Parallel()
	var lock sync.Mutex
	q := New(&lock, &socket{}, 1<<20)
	_ = q.Add(frame(maxInline))
	little := q.Much()
	_ = q.Add(frame(1))
	if little || !q.Much() {
		t.Errorf("%d bytes are much: %v; one more: %v", maxInline, little, q.Much())
	}
}

// BenchmarkQueue measures one frame over a Unix socket, with a peer that reads.
func BenchmarkQueue(b *testing.B) {
	l, err := net.Listen("unix", b.TempDir()+"/s")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	ours, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	theirs, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, theirs)
	}()
	var lock sync.Mutex
	q := New(&lock, ours, 16<<20)
	content := make([]byte, 600)
	b.ReportAllocs()
	for b.Loop() {
		_ = q.Add(func(out []byte) []byte { return append(out, content...) })
		q.Flush()
	}
	ours.Close()
	<-done
}
