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

// What waits when the connection is redirected, and what comes later, goes to the other one, after
// its first bytes. A write that has begun is not redirected.
func TestB12_ARedirectedQueue(t *testing.T) {
	t.Parallel()
	var lock sync.Mutex
	goOn, written := make(chan struct{}), make(chan struct{})
	from, to := &socket{each: func() { written <- struct{}{}; <-goOn }}, &socket{}
	q := New(&lock, from, 1<<20)
	add := func(text string) {
		if err := q.Add(func(out []byte) []byte { return append(out, text...) }); err != nil {
			t.Error(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		add("begun ")
		q.Flush()
	}()
	<-written
	add("waiting ")
	lock.Lock()
	q.Redirect(to, []byte("first "))
	lock.Unlock()
	q.Flush()
	goOn <- struct{}{}
	<-done
	add("later")
	q.Flush()
	if got, want := string(bytes.Join(from.writes, nil)), "begun "; got != want {
		t.Errorf("the socket got %q, want %q", got, want)
	}
	if got, want := string(bytes.Join(to.writes, nil)), "first waiting later"; got != want {
		t.Errorf("the other connection got %q, want %q", got, want)
	}
	if to.deadlines != 1 {
		t.Errorf("%d deadlines were set", to.deadlines)
	}
	lock.Lock()
	q.breakOff()
	lock.Unlock()
	if !from.closed || to.closed {
		t.Errorf("closed: the socket %v, the other connection %v", from.closed, to.closed)
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

// stuck is a Queue with a goroutine that writes one byte until goOn is called.
func stuck(t *testing.T, limit int) (q *Queue, s *socket, goOn func()) {
	t.Helper()
	var lock sync.Mutex
	wait, written, done := make(chan struct{}), make(chan struct{}, 1), make(chan struct{})
	s = &socket{each: func() { written <- struct{}{}; <-wait; <-written }}
	made := New(&lock, s, limit)
	q = &made
	if err := q.Add(frame(1)); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(done)
		q.Flush()
	}()
	for len(written) == 0 {
		time.Sleep(time.Millisecond)
	}
	return q, s, func() {
		close(wait)
		<-done
	}
}

// What waits behind a write is bounded. One frame may be larger than the bound.
func TestB12_TheQueueIsBounded(t *testing.T) {
	t.Parallel()
	for name, sizes := range map[string][]int{"many": slices.Repeat([]int{100}, 11), "one": {5000}} {
		q, s, goOn := stuck(t, 1000)
		for _, n := range sizes {
			if err := q.Add(frame(n)); err != nil {
				t.Fatal(err)
			}
		}
		if err := q.Add(frame(1)); !errors.Is(err, net.ErrClosed) || !s.closed || q.Out != nil {
			t.Errorf("%s: %v, closed %v, %d bytes kept", name, err, s.closed, len(q.Out))
		}
		goOn()
	}
}

// What nobody has tried to write says nothing of the peer.
func TestB12_WhatNobodyHasWrittenIsNotTooMuch(t *testing.T) {
	t.Parallel()
	var lock sync.Mutex
	s := &socket{}
	q := New(&lock, s, 1000)
	for range 3 {
		if err := q.Add(frame(5000)); err != nil {
			t.Fatal(err)
		}
	}
	q.Flush()
	if len(s.writes) != 1 || len(s.writes[0]) != 15_000 {
		t.Errorf("%d writes", len(s.writes))
	}
}

// Bodies of requests do not count. They count again for nothing that comes after they have left.
func TestB12_BodiesOfRequestsAreNotTooMuch(t *testing.T) {
	t.Parallel()
	q, s, goOn := stuck(t, 1000)
	for range 3 {
		if err := q.Add(func(out []byte) []byte { q.Bodies += 5000; return frame(5010)(out) }); err != nil {
			t.Fatal(err)
		}
	}
	goOn()
	if err := q.Add(frame(1)); err != nil || s.closed || q.Bodies != 0 {
		t.Errorf("%v, closed %v, %d bytes count as bodies", err, s.closed, q.Bodies)
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
