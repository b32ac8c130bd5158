package h1server

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/http1/nonblock"
)

// socket is what a connection must be able to do: *net.UnixConn is, and *net.TCPConn.
type socket interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// States of a connection, of which Shutdown closes those without a request.
const (
	stateFresh  int32 = iota // nothing has come yet
	stateActive              // a request is read or answered
	stateIdle
	stateGone // closed by the server
)

// What is read of a body that nobody wanted, so that closing the connection does not take the answer away from the peer.
const (
	lingerWithin = 500 * time.Millisecond
	maxLinger    = 256 << 10
)

// conn is a connection: a goroutine that runs serve and the handlers, and, while a request is answered and until the next one, one that watches for the
// peer's leaving.
type conn struct {
	server *Server
	rwc    socket
	raw    syscall.RawConn
	state  atomic.Int32

	// reader is nil while nothing is being read, which is most of the time.
	reader *reader
	// ended says that the request's body was read to its end.
	ended   atomic.Bool
	watched chan bool // what watch has come to: whether the next request has begun
	kept    [1]byte   // its first byte then
	cancel  context.CancelCauseFunc

	// What push leaves for pushed, which is here because a closure of its own would be an allocation for each event.
	pushed func(fd uintptr) bool
	out    []byte
	outErr error
	// armed is the write deadline that the connection has at present.
	armed time.Time
}

func newConn(s *Server, rwc socket) (*conn, error) {
	raw, err := rwc.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &conn{server: s, rwc: rwc, raw: raw, watched: make(chan bool, 1)}
	c.pushed = c.pushOnce
	return c, nil
}

// serve answers requests until the connection ends.
func (c *conn) serve() {
	handed, answering := false, false
	defer func() {
		if r := recover(); r != nil && r != http.ErrAbortHandler { //nolint:errorlint // the value itself is what net/http means by it
			c.server.log().Error("a handler panicked", zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
		}
		if !handed {
			c.rwc.Close()
		}
		if c.cancel != nil {
			c.cancel(nil)
		}
		if !answering && c.reader != nil { // what a handler that panicked has left behind may still be reading
			putBack(c.reader)
		}
		c.server.release(c)
	}()
	for c.wait() {
		req, ours := c.read()
		if req == nil {
			return
		}
		if !ours {
			handed = true
			c.handOver()
			return
		}
		answering = true
		again := c.answer(req)
		if answering = false; !again {
			return
		}
	}
}

// wait waits for the first byte of a request.
func (c *conn) wait() bool {
	s := c.server
	if c.state.Load() == stateFresh {
		c.reader = readers.Get().(*reader)
		c.reader.from.conn = c.rwc
		return true
	}
	if c.reader != nil { // the next request came with the last one
		return !s.closing.Load()
	}
	_ = c.rwc.SetReadDeadline(time.Now().Add(cmp.Or(s.IdleTimeout, DefaultIdleTimeout)))
	c.state.Store(stateIdle)
	if s.closing.Load() { // Shutdown may not have seen the state
		return false
	}
	more := <-c.watched
	if !more || !c.state.CompareAndSwap(stateIdle, stateActive) {
		return false
	}
	c.reader = readers.Get().(*reader)
	c.reader.from.conn, c.reader.from.kept = c.rwc, c.kept[:]
	return true
}

// read reads the head of a request. It returns nil if there is none, and otherwise whether it is one for Handler.
func (c *conn) read() (req *http.Request, ours bool) {
	s, r := c.server, c.reader
	_ = c.rwc.SetReadDeadline(time.Now().Add(cmp.Or(s.ReadHeaderTimeout, DefaultReadHeaderTimeout)))
	r.record(cmp.Or(s.MaxHeaderBytes, DefaultMaxHeaderBytes))
	if _, err := r.Peek(1); err != nil && !errors.Is(err, errLongHead) {
		return nil, false
	}
	c.state.CompareAndSwap(stateFresh, stateActive)
	req, err := http.ReadRequest(r.Reader)
	_ = c.rwc.SetReadDeadline(time.Time{})
	switch {
	case err == nil:
		return req, plain(req) && (s.Lean == nil || s.Lean(req))
	case r.from.err != nil && !errors.Is(r.from.err, io.EOF):
		return nil, false
	}
	return &http.Request{}, false // net/http knows what to answer
}

// handOver has net/http serve the connection, from the beginning of the request that was just read.
func (c *conn) handOver() {
	rest := c.reader.from.head
	c.reader.from.head = nil
	_ = c.arm(time.Time{}) // net/http knows nothing of the last response's deadline
	c.server.handed.give(&replayed{Conn: c.rwc, closeWrite: c.rwc.CloseWrite, rest: rest})
}

// answer runs the handler. It says whether another request may follow.
func (c *conn) answer(req *http.Request) bool {
	c.reader.from.recording = false
	ctx, cancel := context.WithCancelCause(c.server.base)
	c.cancel = cancel
	req = req.WithContext(ctx)
	req.RemoteAddr = c.rwc.RemoteAddr().String()
	w := &Writer{c: c, length: unknown, mute: req.Method == http.MethodHead, closing: req.Close || c.server.closing.Load()}
	var b *body
	if req.Body == http.NoBody || req.Body == nil {
		c.bodyEnded()
	} else {
		c.ended.Store(false)
		b = &body{c: c, from: req.Body}
		req.Body = b
	}
	c.server.Handler.ServeHTTP(w, req)
	cancel(nil)
	return c.conclude(w, b)
}

// conclude finishes a response. Of the body it says that nobody reads it any more.
func (c *conn) conclude(w *Writer, b *body) bool {
	if b != nil {
		if !b.mu.TryLock() { // the handler's goroutine has left one behind
			_ = c.rwc.SetReadDeadline(time.Unix(1, 0))
			b.mu.Lock()
		}
		b.shut()
		b.mu.Unlock()
	}
	again := w.finish() && !c.server.closing.Load()
	if !c.ended.Load() && errors.Is(w.err, errOver) {
		c.linger()
	}
	return again && c.ended.Load()
}

// linger closes the connection for writing and reads on a little: closed with bytes unread, it would be reset.
func (c *conn) linger() {
	if c.rwc.CloseWrite() != nil {
		return
	}
	_ = c.rwc.SetReadDeadline(time.Now().Add(lingerWithin))
	_, _ = io.CopyN(io.Discard, c.rwc, maxLinger) // whatever it is, the connection ends
}

// bodyEnded gives the buffer back and has the peer's leaving watched for. A peer that has sent more than its request is taken to stay, as it waits for
// the answer to that.
func (c *conn) bodyEnded() {
	c.ended.Store(true)
	if c.reader.Buffered() > 0 {
		return
	}
	putBack(c.reader)
	c.reader = nil
	_ = c.rwc.SetReadDeadline(time.Time{})
	go c.watch()
}

// watch waits for the peer to leave, or to begin its next request. Its goroutine is there for as long as a stream is: what it calls must fit onto the
// smallest stack.
func (c *conn) watch() {
	n, err := c.rwc.Read(c.kept[:])
	if n == 0 {
		c.leave(err)
	}
	c.watched <- n == 1
}

// leave ends the request's context.
//
//go:noinline
func (c *conn) leave(err error) {
	cause := ErrClientLeft
	if errors.Is(err, net.ErrClosed) {
		cause = http.ErrServerClosed
	}
	c.cancel(cause)
}

// push writes as much as the socket takes without waiting.
func (c *conn) push(b []byte) (n int, err error) {
	if err := c.arm(time.Time{}); err != nil { // one that has passed would fail a write that never waits
		return 0, err
	}
	c.out, c.outErr = b, nil
	err = c.raw.Write(c.pushed)
	n = len(b) - len(c.out)
	if err == nil {
		err = c.outErr
	}
	c.out, c.outErr = nil, nil
	return n, err
}

// pushOnce is a write. A socket that takes a part of it is full.
func (c *conn) pushOnce(fd uintptr) bool {
	n, err := nowait.Write(fd, c.out)
	switch {
	case err == nil:
		c.out = c.out[n:]
	case !errors.Is(err, syscall.EAGAIN):
		c.outErr = os.NewSyscallError("write", err)
	}
	return true
}

// arm sets the deadline of writes that wait.
func (c *conn) arm(until time.Time) error {
	if c.armed.Equal(until) {
		return nil
	}
	c.armed = until
	return c.rwc.SetWriteDeadline(until)
}
