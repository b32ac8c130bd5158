package nonblock

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var errNoStream = errors.New("nonblock: connection is not a stream over a unix socket")

// Conn is a connection over a unix socket whose peer may read without waking a thread here. Detach
// makes one.
//
// Package net has Go's runtime poll each descriptor for whether it can be written, always. On a
// unix socket the kernel then tells each time that the peer has read something, and each time a
// thread of the runtime wakes up for nothing. A Conn has its descriptor in an epoll instance of
// this package, which polls for that only while a Write waits for a full socket.
//
// A Conn is used as other connections are, by Reader and Writer too. Unlike those of package net it
// must be closed by the program: no finalizer closes it.
type Conn struct {
	local, remote net.Addr
	// fd belongs to this Conn until closed is set. It may be used with the lock of a side held.
	fd     int
	poller *poller

	reading, writing side

	// input and output are what Read and Write use. They are nil before the first call.
	readMu, writeMu sync.Mutex
	input           *Reader
	output          *Writer
}

// side is the reading or the writing side of a Conn.
type side struct {
	conn *Conn
	// call names the side in errors: "read" or "write".
	call string
	// extra is what the poller waits for besides readEvents while a goroutine waits for this side.
	extra uint32
	// turn is held by the goroutine that uses this side, also while it waits.
	turn sync.Mutex
	// ready wakes the goroutine that waits. The token that it holds says that something may have
	// changed since the goroutine has looked.
	ready chan struct{}

	// mu is held during system calls, so that Close closes no descriptor that is in use.
	mu sync.Mutex
	// closed, deadline, waiting and watched are guarded by mu. waiting means that a goroutine
	// waits, and watched that the poller waits for extra.
	closed, waiting, watched bool
	deadline                 time.Time
	// timer wakes the goroutine at the deadline. It is nil while no goroutine waits, and without a
	// deadline. Guarded by mu.
	timer *time.Timer
}

// Detach returns a Conn in the place of c, which it closes. Nobody may use c meanwhile. After an
// error c is as it was before.
func Detach(c *net.UnixConn) (*Conn, error) {
	if c.LocalAddr().Network() != "unix" {
		return nil, errNoStream
	}
	fd, err := duplicate(c)
	if err != nil {
		return nil, err
	}
	d := &Conn{local: c.LocalAddr(), remote: c.RemoteAddr(), fd: fd}
	d.reading = side{conn: d, call: "read", ready: make(chan struct{}, 1)}
	d.writing = side{conn: d, call: "write", ready: make(chan struct{}, 1), extra: unix.EPOLLOUT}
	if err := register(d); err != nil {
		_ = unix.Close(fd) // nobody uses it
		return nil, err
	}
	_ = c.Close() // it takes the descriptor from the runtime's poller, which cannot fail
	return d, nil
}

// ConnOf returns a Conn in the place of a connection over a unix socket. Any other connection is
// returned itself, and so is one that cannot be detached, as when no more files may be open.
func ConnOf(c net.Conn) net.Conn {
	if u, ok := c.(*net.UnixConn); ok {
		if d, err := Detach(u); err == nil {
			return d
		}
	}
	return c
}

// duplicate returns another descriptor of a connection.
func duplicate(c *net.UnixConn) (fd int, err error) {
	raw, err := rawConn(c)
	if err != nil {
		return 0, err
	}
	var fault error
	err = raw.Control(func(old uintptr) { fd, fault = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, os.NewSyscallError("fcntl", fault))
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	if c.input == nil {
		c.input = newReader(c, rawAccess{c})
	}
	return c.input.Read(p)
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.output == nil {
		c.output = newWriter(c, rawAccess{c})
	}
	return c.output.Write(p)
}

// Close implements net.Conn. Any goroutine may call it at any time.
func (c *Conn) Close() error {
	err := c.release()
	c.reading.wake()
	c.writing.wake()
	if err != nil {
		return opError("close", c, err)
	}
	return nil
}

// release closes the descriptor when no system call uses it.
func (c *Conn) release() error {
	c.reading.mu.Lock()
	defer c.reading.mu.Unlock()
	c.writing.mu.Lock()
	defer c.writing.mu.Unlock()
	if c.writing.closed {
		return net.ErrClosed
	}
	c.reading.closed, c.writing.closed = true, true
	c.poller.forget(c)
	return os.NewSyscallError("close", unix.Close(c.fd))
}

// CloseWrite closes the sending half, as that of net.UnixConn does.
func (c *Conn) CloseWrite() error {
	var fault error
	err := rawAccess{c}.Control(func(fd uintptr) { fault = unix.Shutdown(int(fd), unix.SHUT_WR) })
	if err == nil && fault != nil {
		err = failed("shutdown", c, fault)
	}
	return err
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.reading.setDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.writing.setDeadline(t) }

// SyscallConn implements syscall.Conn. The functions that its methods are given must neither block
// nor use the Conn.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return rawAccess{c}, nil }

// rawAccess is the syscall.RawConn of a Conn.
type rawAccess struct{ conn *Conn }

// Control implements syscall.RawConn.
func (r rawAccess) Control(f func(fd uintptr)) error {
	s := &r.conn.writing
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return opError("control", r.conn, net.ErrClosed)
	}
	f(uintptr(r.conn.fd))
	return nil
}

// Read implements syscall.RawConn.
func (r rawAccess) Read(f func(fd uintptr) bool) error { return r.conn.reading.do(f) }

// Write implements syscall.RawConn.
func (r rawAccess) Write(f func(fd uintptr) bool) error { return r.conn.writing.do(f) }

// do calls f until it returns true. Before each further call it waits until the descriptor may be
// ready.
func (s *side) do(f func(fd uintptr) bool) error {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.checkLocked()
	for err == nil && !f(uintptr(s.conn.fd)) {
		err = s.waitLocked()
	}
	if s.watched && !s.closed {
		if fault := s.watchLocked(false); err == nil {
			err = fault
		}
	}
	if err != nil {
		return opError(s.call, s.conn, err)
	}
	return nil
}

// checkLocked returns the error of a closed connection, and that of a deadline that has passed.
func (s *side) checkLocked() error {
	switch {
	case s.closed:
		return net.ErrClosed
	case !s.deadline.IsZero() && !time.Now().Before(s.deadline):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// waitLocked waits until something may have changed, with mu released. What changes between the
// last look of the goroutine and the wait leaves its token in ready.
func (s *side) waitLocked() error {
	if s.extra != 0 && !s.watched {
		if err := s.watchLocked(true); err != nil {
			return err
		}
	}
	s.waiting = true
	s.setTimerLocked()
	s.mu.Unlock()
	<-s.ready
	s.mu.Lock()
	s.waiting = false
	s.stopTimerLocked()
	return s.checkLocked()
}

// watchLocked says whether the poller waits for extra.
func (s *side) watchLocked(on bool) error {
	events := uint32(readEvents)
	if on {
		events |= s.extra
	}
	err := s.conn.poller.control(unix.EPOLL_CTL_MOD, s.conn.fd, events)
	if err == nil {
		s.watched = on
	}
	return err
}

// setDeadline sets the deadline, which applies to a goroutine that waits already, too.
func (s *side) setDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return opError("set", s.conn, net.ErrClosed)
	}
	s.deadline = t
	if s.waiting {
		s.setTimerLocked()
	}
	return nil
}

// setTimerLocked has the goroutine that waits woken at the deadline.
func (s *side) setTimerLocked() {
	s.stopTimerLocked()
	if !s.deadline.IsZero() {
		s.timer = time.AfterFunc(time.Until(s.deadline), s.wake)
	}
}

func (s *side) stopTimerLocked() {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

// wake has the goroutine that waits look again, or the next one that is about to wait.
func (s *side) wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}
