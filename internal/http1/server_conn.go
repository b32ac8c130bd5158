package http1

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/nonblock"
)

// socket is what a connection must be able to do. *nonblock.Conn, *net.UnixConn and *net.TCPConn
// are sockets.
type socket interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// States of a connection. Shutdown closes connections without a request.
const (
	stateFresh  int32 = iota // nothing has come yet
	stateActive              // a request is read or answered
	stateIdle
	stateGone // closed by the server
)

// Bounds on what is read of a body that no handler wanted. Closing a connection with unread bytes
// would reset it, and the peer could lose the response.
const (
	lingerTimeout = 500 * time.Millisecond
	maxLinger     = 256 << 10
)

// serverConn is a connection from the peer. One goroutine runs serve and the handlers. Another one,
// watchPeer, runs from the end of a request's body to the first byte of the next request.
type serverConn struct {
	server *Server
	// rwc is a *nonblock.Conn over a unix socket, unless no more files may be open.
	rwc socket
	// input and output read and write rwc, in the place of its own methods, which cost more.
	input  *nonblock.Reader
	output *nonblock.Writer
	state  atomic.Int32

	// reader is nil while nothing is read, which is most of the time.
	reader *headReader
	// bodyDone says that the body of the request was read to its end.
	bodyDone    atomic.Bool
	watchResult chan bool // whether the next request has begun, sent by watchPeer
	firstByte   [1]byte   // the first byte of that request
	cancel      context.CancelCauseFunc

	// writeDeadline is the write deadline that the connection has now.
	writeDeadline time.Time
}

func newConn(s *Server, rwc socket) (*serverConn, error) {
	input, err := nonblock.NewReader(rwc)
	if err != nil {
		return nil, err
	}
	output, err := nonblock.NewWriter(rwc)
	if err != nil {
		return nil, err
	}
	return &serverConn{server: s, rwc: rwc, input: input, output: output, watchResult: make(chan bool, 1)}, nil
}

// serve answers requests until the connection ends.
func (c *serverConn) serve() {
	handed, answering := false, false
	defer func() {
		if r := recover(); r != nil && r != http.ErrAbortHandler { //nolint:errorlint // net/http compares the value, too
			c.server.log().Error("handler panicked", zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
		}
		if !handed {
			c.rwc.Close()
		}
		if c.cancel != nil {
			c.cancel(nil)
		}
		if !answering && c.reader != nil { // a goroutine of a handler that panicked may still be reading
			releaseReader(c.reader)
		}
		c.server.forgetConn(c)
	}()
	for c.awaitRequest() {
		req, ours := c.readRequest()
		if req == nil {
			return
		}
		if !ours {
			handed = true
			c.handOver()
			return
		}
		answering = true
		again := c.serveRequest(req)
		if answering = false; !again {
			return
		}
	}
}

// awaitRequest waits for the first byte of a request.
func (c *serverConn) awaitRequest() bool {
	s := c.server
	if c.state.Load() == stateFresh {
		c.reader = headReaders.Get().(*headReader)
		c.reader.source.conn = c.input
		return true
	}
	if c.reader != nil { // the next request came together with the last one
		return !s.closing.Load()
	}
	_ = c.rwc.SetReadDeadline(time.Now().Add(cmp.Or(s.IdleTimeout, DefaultIdleTimeout)))
	c.state.Store(stateIdle)
	if s.closing.Load() { // Shutdown may have looked before the state changed
		return false
	}
	more := <-c.watchResult
	if !more || !c.state.CompareAndSwap(stateIdle, stateActive) {
		return false
	}
	c.reader = headReaders.Get().(*headReader)
	c.reader.source.conn, c.reader.source.firstByte = c.input, c.firstByte[:]
	return true
}

// readRequest reads the head of a request. It returns nil if none comes, and says whether the
// request is one for Handler.
func (c *serverConn) readRequest() (req *http.Request, ours bool) {
	s, r := c.server, c.reader
	_ = c.rwc.SetReadDeadline(time.Now().Add(cmp.Or(s.ReadHeaderTimeout, DefaultReadHeaderTimeout)))
	r.startRecording(cmp.Or(s.MaxHeaderBytes, DefaultMaxHeaderBytes))
	if _, err := r.Peek(1); err != nil && !errors.Is(err, errHeadTooLong) {
		return nil, false
	}
	c.state.CompareAndSwap(stateFresh, stateActive)
	req, err := http.ReadRequest(r.Reader)
	_ = c.rwc.SetReadDeadline(time.Time{})
	switch {
	case err == nil:
		return req, isPlain(req) && (s.Own == nil || s.Own(req))
	case r.source.readErr != nil && !errors.Is(r.source.readErr, io.EOF):
		return nil, false
	}
	return &http.Request{}, false // net/http reads the head again and answers
}

// handOver hands the connection to net/http, from the beginning of the request that was read last.
func (c *serverConn) handOver() {
	rest := c.reader.source.head
	c.reader.source.head = nil
	_ = c.setWriteDeadline(time.Time{}) // net/http does not know the deadline of the last response
	c.server.handover.serve(&replayConn{Conn: c.rwc, closeWrite: c.rwc.CloseWrite, replay: rest})
}

// serveRequest runs the handler. It says whether another request may follow.
func (c *serverConn) serveRequest(req *http.Request) bool {
	c.reader.source.recording = false
	ctx, cancel := context.WithCancelCause(c.server.base)
	c.cancel = cancel
	req = req.WithContext(ctx)
	req.RemoteAddr = c.rwc.RemoteAddr().String()
	w := &ResponseWriter{conn: c, length: unknownLength, headRequest: req.Method == http.MethodHead, closing: req.Close}
	var b *requestBody
	if req.Body == http.NoBody || req.Body == nil {
		c.onBodyRead()
	} else {
		c.bodyDone.Store(false)
		b = &requestBody{conn: c, body: req.Body}
		req.Body = b
	}
	c.server.Handler.ServeHTTP(w, req)
	cancel(nil)
	return c.finishResponse(w, b)
}

// finishResponse ends a response and forbids further reads of the request's body.
func (c *serverConn) finishResponse(w *ResponseWriter, b *requestBody) bool {
	if b != nil {
		if !b.mu.TryLock() { // a goroutine that the handler left behind still reads
			_ = c.rwc.SetReadDeadline(time.Unix(1, 0))
			b.mu.Lock()
		}
		b.closeLocked()
		b.mu.Unlock()
	}
	again := w.finish() && !c.server.closing.Load()
	if !c.bodyDone.Load() && errors.Is(w.err, errHandlerReturned) {
		c.linger()
	}
	return again && c.bodyDone.Load()
}

// linger closes the sending half and reads on for a while: a connection that is closed with unread
// bytes would be reset.
func (c *serverConn) linger() {
	if c.rwc.CloseWrite() != nil {
		return
	}
	_ = c.rwc.SetReadDeadline(time.Now().Add(lingerTimeout))
	_, _ = io.CopyN(io.Discard, c.rwc, maxLinger) // the connection ends in any case
}

// onBodyRead gives the buffer back and starts watchPeer. A peer that has sent more than its request
// is taken to stay, because it waits for the response to that.
func (c *serverConn) onBodyRead() {
	c.bodyDone.Store(true)
	if c.reader.Buffered() > 0 {
		return
	}
	releaseReader(c.reader)
	c.reader = nil
	_ = c.rwc.SetReadDeadline(time.Time{})
	go c.watchPeer()
}

// watchPeer waits until the peer closes the connection or begins its next request. Its goroutine
// lives as long as a stream, so what it calls must fit onto the smallest stack.
func (c *serverConn) watchPeer() {
	n, err := c.input.Read(c.firstByte[:])
	if n == 0 {
		c.cancelRequest(err)
	}
	c.watchResult <- n == 1
}

// cancelRequest ends the context of the request.
//
//go:noinline
func (c *serverConn) cancelRequest(err error) {
	cause := ErrClientLeft
	if errors.Is(err, net.ErrClosed) {
		cause = http.ErrServerClosed
	}
	c.cancel(cause)
}

// tryWrite writes as much of b as the socket takes without waiting.
func (c *serverConn) tryWrite(b []byte) (n int, err error) {
	if err := c.setWriteDeadline(time.Time{}); err != nil { // a deadline in the past would fail the write
		return 0, err
	}
	return c.output.Try(b)
}

// setWriteDeadline sets the deadline of writes that wait.
func (c *serverConn) setWriteDeadline(until time.Time) error {
	if c.writeDeadline.Equal(until) {
		return nil
	}
	c.writeDeadline = until
	return c.rwc.SetWriteDeadline(until)
}
