package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/sluice-gateway/sluice/internal/nonblock"
)

const (
	// clientBuffer is for reading from an engine, in bytes: a few events. Each response that is
	// open has one.
	clientBuffer = 1 << 10
	// maxInformational bounds the 1xx responses before the response.
	maxInformational = 5
)

var clientReaders = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, clientBuffer) }}

var (
	errHeaderTooLarge = errors.New("http1: the head of the response is larger than the limit")
	errInformational  = fmt.Errorf("http1: more than %d responses with a 1xx status", maxInformational)
)

// clientConn is a connection to an engine. One round trip or the idle pool owns it.
type clientConn struct {
	// stream is tcp, or TLS over it.
	stream, tcp net.Conn
	target      target
	// input reads stream, and output writes to it. Without TLS they cost less than its own methods.
	// quiet is of tcp.
	input  io.Reader
	output io.Writer
	quiet  *nonblock.Reader
	// idleSince is when the connection became idle.
	idleSince time.Time
	// reader reads from stream. It is nil while no response is read, or only a body in chunks.
	reader *bufio.Reader
	// budget is how many more bytes may be read from stream: it bounds the head of a response.
	budget int64
	// heard says that a byte of the response to this request has come.
	heard bool
	// surplus says that bytes have come behind the response that no request asked for.
	surplus bool
	// readErr is why no more can be read.
	readErr error
}

// startResponse makes the connection ready for a request and its response.
func (c *clientConn) startResponse(maxHeader int64) {
	c.budget, c.heard, c.surplus, c.readErr = maxHeader, false, false, nil
	c.reader = clientReaders.Get().(*bufio.Reader)
	c.reader.Reset(c)
}

// Read implements io.Reader for the buffered reader.
func (c *clientConn) Read(p []byte) (int, error) {
	if c.budget <= 0 {
		c.readErr = errHeaderTooLarge
		return 0, c.readErr
	}
	if int64(len(p)) > c.budget {
		p = p[:c.budget]
	}
	n, err := c.input.Read(p)
	if n > 0 {
		c.heard = true
		c.budget -= int64(n)
	}
	if err != nil {
		c.readErr = err
	}
	return n, err
}

// readError returns why something could not be read. A malformed response whose connection ended
// was cut off.
func (c *clientConn) readError(err error) error {
	switch {
	case c.readErr == nil:
		return err
	case errors.Is(c.readErr, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return c.readErr
}

// readHead reads a response, with the body that net/http makes of it.
func (c *clientConn) readHead(method string) (*http.Response, error) {
	if _, err := c.reader.Peek(1); err != nil {
		return nil, fmt.Errorf("http1: no response: %w", err)
	}
	var asked *http.Request // whether the response has a body depends on the method
	if method == http.MethodHead {
		asked = &http.Request{Method: method}
	}
	for range maxInformational + 1 {
		response, err := http.ReadResponse(c.reader, asked)
		if err != nil {
			return nil, fmt.Errorf("http1: head of the response: %w", c.readError(err))
		}
		response.Request = nil
		if code := response.StatusCode; code/100 != 1 || code == http.StatusSwitchingProtocols {
			c.budget = math.MaxInt64
			return response, nil
		}
	}
	return nil, errInformational
}

// isQuiet says whether there is nothing to read: neither an end of the stream nor bytes that no
// request asked for.
func (c *clientConn) isQuiet() bool {
	if c.stream != c.tcp && !c.hasNoPlaintext() {
		return false
	}
	return c.quiet.Quiet()
}

// hasNoPlaintext says whether TLS holds no decrypted bytes that no request asked for.
func (c *clientConn) hasNoPlaintext() bool {
	if c.tcp.SetReadDeadline(time.Unix(1, 0)) != nil {
		return false
	}
	n, err := c.stream.Read(make([]byte, 1))
	return n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.tcp.SetReadDeadline(time.Time{}) == nil
}

// releaseReader gives the buffer back to the pool, if there is one. Only the goroutine that reads
// may call it.
func (c *clientConn) releaseReader() {
	if c.reader == nil {
		return
	}
	c.reader.Reset(nil)
	clientReaders.Put(c.reader)
	c.reader = nil
}

// close closes an idle connection. With TLS it first tells the engine, which may take five seconds.
func (c *clientConn) close() {
	if c.stream == c.tcp {
		c.tcp.Close()
		return
	}
	go c.stream.Close()
}

// abort closes the connection at once, whatever any goroutine does with it.
func (c *clientConn) abort() { c.tcp.Close() }

// The states of a round trip. It leaves tripOpen once, and who changes the state owns the
// connection.
const (
	tripOpen   int32 = iota
	tripEnded        // the response was read, or failed
	tripClosed       // Close was called
	tripBroken       // the context ended
)

// roundTrip is one request with its response. It is the body of the response.
type roundTrip struct {
	transport *Transport
	conn      *clientConn
	ctx       context.Context
	// unwatch stops watching ctx.
	unwatch func() bool
	state   atomic.Int32
	// sent says that the whole request was written.
	sent atomic.Bool
	// sendErr is why sendLarge could not write the whole request.
	sendErr atomic.Pointer[error]

	// The fields below belong to the goroutine that reads.

	// reusable says that neither side wants to close the connection.
	reusable bool
	// body is the body: a chunkedBody, or what net/http makes of it. When it is nil the body has
	// ended, and bodyErr says how.
	body    io.Reader
	bodyErr error
}

// respond makes the response ready for the caller.
func (e *roundTrip) respond(request *http.Request, response *http.Response) *http.Response {
	switching := response.StatusCode == http.StatusSwitchingProtocols
	e.reusable = !switching && !response.Close && response.ProtoAtLeast(1, 1) && !request.Close &&
		!httpguts.HeaderValuesContainsToken(request.Header["Connection"], "close")
	if response.Body == http.NoBody && !switching {
		e.finish(true)
		return response
	}
	e.body, response.Body = response.Body, e
	if !switching && len(response.TransferEncoding) > 0 { // net/http accepts chunked alone
		e.body = &chunkedBody{conn: e.conn, response: response}
	}
	return response
}

func (e *roundTrip) Read(p []byte) (int, error) {
	if state := e.state.Load(); state != tripOpen {
		return 0, e.readAfterEnd(state)
	}
	n, err := e.body.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		e.bodyErr, e.body = io.EOF, nil
		e.finish(true)
	default:
		err = e.fail(e.conn.readError(err))
		e.bodyErr, e.body = err, nil
	}
	return n, err
}

func (e *roundTrip) readAfterEnd(state int32) error {
	switch state {
	case tripBroken:
		return context.Cause(e.ctx)
	case tripClosed:
		return http.ErrBodyReadAfterClose
	}
	return e.bodyErr
}

// Close implements io.Closer. Before the end of the body it closes the connection.
func (e *roundTrip) Close() error {
	if e.state.CompareAndSwap(tripOpen, tripClosed) {
		e.unwatch()
		e.conn.abort()
	}
	return nil
}

// abort ends the round trip because its context has ended.
func (e *roundTrip) abort() {
	if e.state.CompareAndSwap(tripOpen, tripBroken) {
		e.conn.abort()
	}
}

// fail ends the round trip and returns why.
func (e *roundTrip) fail(err error) error {
	e.finish(false)
	switch {
	case e.state.Load() == tripClosed:
		return http.ErrBodyReadAfterClose
	case e.ctx.Err() != nil:
		return context.Cause(e.ctx)
	}
	if sendErr := e.sendErr.Load(); sendErr != nil && (!e.conn.heard || errors.Is(err, net.ErrClosed)) {
		return *sendErr
	}
	return err
}

// finish ends the round trip for the goroutine that reads, unless Close or the context has ended
// it. The connection becomes idle if it can be used again.
func (e *roundTrip) finish(whole bool) {
	if !e.state.CompareAndSwap(tripOpen, tripEnded) {
		return
	}
	e.unwatch()
	c := e.conn
	again := whole && e.reusable && e.sent.Load() && !c.surplus && (c.reader == nil || c.reader.Buffered() == 0)
	c.releaseReader()
	if again {
		e.transport.releaseIdle(c)
	} else {
		c.abort()
	}
}
