package h1client

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
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/sluice-gateway/sluice/internal/http1/nonblock"
)

const (
	// bufferSize is for reading from an engine, in bytes: a few events. Each response that is open has one.
	bufferSize = 1 << 10
	// maxInformational bounds the 1xx answers before the answer.
	maxInformational = 5
)

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, bufferSize) }}

var (
	errHeaderTooLarge = errors.New("h1client: the head of the answer is larger than the limit")
	errInformational  = fmt.Errorf("h1client: more than %d answers of 1xx", maxInformational)
)

// conn is a connection to an engine. It belongs to one exchange or to the pool.
type conn struct {
	// stream is tcp, or TLS over it
	stream, tcp net.Conn
	raw         syscall.RawConn
	to          target
	// What receive leaves for pull, which is here because a closure of its own would be an allocation for each read. pulled is nil for TLS.
	pulled func(fd uintptr) bool
	into   []byte
	got    int
	gotErr error
	// since is when it began to wait for a request
	since time.Time
	// in reads from stream; nil while no response is read
	in *bufio.Reader
	// left is how many bytes more may be read from stream
	left int64
	// heard: a byte of an answer to this request has come
	heard bool
	// fault is why no more can be read
	fault error
}

// begin makes the connection ready for a request.
func (c *conn) begin(maxHeader int64) {
	c.left, c.heard, c.fault = maxHeader, false, nil
	c.in = readers.Get().(*bufio.Reader)
	c.in.Reset(c)
}

// Read implements io.Reader for the buffer.
func (c *conn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		c.fault = errHeaderTooLarge
		return 0, c.fault
	}
	if int64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := c.receive(p)
	if n > 0 {
		c.heard = true
		c.left -= int64(n)
	}
	if err != nil {
		c.fault = err
	}
	return n, err
}

// receive reads from the engine. It waits as stream.Read does, but for what it costs.
func (c *conn) receive(p []byte) (n int, err error) {
	if c.pulled == nil {
		return c.stream.Read(p)
	}
	c.into = p
	err = c.raw.Read(c.pulled)
	n, fault := c.got, c.gotErr
	c.into, c.got, c.gotErr = nil, 0, nil
	if err == nil {
		err = fault
	}
	return n, err
}

// pull is one try to read; false says that there is nothing yet.
func (c *conn) pull(fd uintptr) bool {
	n, err := nowait.Read(fd, c.into)
	switch {
	case err == nil && n == 0:
		c.gotErr = io.EOF
	case err == nil:
		c.got = n
	case errors.Is(err, syscall.EAGAIN):
		return false
	default:
		c.gotErr = &net.OpError{Op: "read", Net: "tcp", Source: c.tcp.LocalAddr(), Addr: c.tcp.RemoteAddr(), Err: os.NewSyscallError("read", err)}
	}
	return true
}

// because returns why something could not be read. What is malformed because it was cut was cut.
func (c *conn) because(err error) error {
	switch {
	case c.fault == nil:
		return err
	case errors.Is(c.fault, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return c.fault
}

// readHead returns the answer with the body as net/http makes it.
func (c *conn) readHead(method string) (*http.Response, error) {
	if _, err := c.in.Peek(1); err != nil {
		return nil, fmt.Errorf("h1client: no answer: %w", err)
	}
	var asked *http.Request
	if method == http.MethodHead {
		asked = &http.Request{Method: method} // whether there is a body hangs on it
	}
	for range maxInformational + 1 {
		response, err := http.ReadResponse(c.in, asked)
		if err != nil {
			return nil, fmt.Errorf("h1client: the head of the answer: %w", c.because(err))
		}
		response.Request = nil
		if code := response.StatusCode; code/100 != 1 || code == http.StatusSwitchingProtocols {
			c.left = math.MaxInt64
			return response, nil
		}
	}
	return nil, errInformational
}

// quiet tells whether nothing waits to be read: neither an end nor bytes that nobody has asked for.
func (c *conn) quiet() bool {
	if c.stream != c.tcp && !c.nothingDecrypted() {
		return false
	}
	var quiet bool
	err := c.raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, err := syscall.Read(int(fd), b[:])
		quiet = errors.Is(err, syscall.EAGAIN)
		return true
	})
	return err == nil && quiet
}

// nothingDecrypted tells whether TLS holds nothing that came with what was read, and that nobody has asked for.
func (c *conn) nothingDecrypted() bool {
	if c.tcp.SetReadDeadline(time.Unix(1, 0)) != nil {
		return false
	}
	n, err := c.stream.Read(make([]byte, 1))
	return n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.tcp.SetReadDeadline(time.Time{}) == nil
}

// rest gives the buffer back. Only who reads may call it.
func (c *conn) rest() {
	c.in.Reset(nil)
	readers.Put(c.in)
	c.in = nil
}

// close closes a connection that waits, with a word to the engine if it is TLS, which may take five seconds.
func (c *conn) close() {
	if c.stream == c.tcp {
		c.tcp.Close()
		return
	}
	go c.stream.Close()
}

// breakOff closes the connection whatever anybody does with it, and without waiting.
func (c *conn) breakOff() { c.tcp.Close() }

// What an exchange may be. It leaves open once, and who has brought that about has the connection.
const (
	open   int32 = iota
	ended        // the response was read, or has failed
	closed       // by Close
	broken       // by the context
)

// exchange is one request with its response, and the response's body.
type exchange struct {
	transport *Transport
	conn      *conn
	ctx       context.Context
	// unwatch ends the watch over ctx
	unwatch func() bool
	state   atomic.Int32
	// sent: the request was written whole
	sent atomic.Bool
	// sendErr is why a body that has a goroutine was not
	sendErr atomic.Pointer[error]

	// What follows is for who reads.

	// keep: neither end wants to close the connection
	keep bool
	// from is the body as net/http makes it; nil: it is over, and err is how
	from io.Reader
	err  error
}

// answer makes the response the caller's.
func (e *exchange) answer(request *http.Request, response *http.Response) *http.Response {
	switching := response.StatusCode == http.StatusSwitchingProtocols
	e.keep = !switching && !response.Close && response.ProtoAtLeast(1, 1) && !request.Close &&
		!httpguts.HeaderValuesContainsToken(request.Header["Connection"], "close")
	if response.Body == http.NoBody && !switching {
		e.finish(true)
		return response
	}
	e.from, response.Body = response.Body, e
	return response
}

// Read implements io.Reader.
func (e *exchange) Read(p []byte) (int, error) {
	if state := e.state.Load(); state != open {
		return 0, e.over(state)
	}
	n, err := e.from.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		e.err, e.from = io.EOF, nil
		e.finish(true)
	default:
		err = e.fail(e.conn.because(err))
		e.err, e.from = err, nil
	}
	return n, err
}

// over is what a read says after the end.
func (e *exchange) over(state int32) error {
	switch state {
	case broken:
		return context.Cause(e.ctx)
	case closed:
		return http.ErrBodyReadAfterClose
	}
	return e.err
}

// Close implements io.Closer. Before the end of the body it closes the connection.
func (e *exchange) Close() error {
	if e.state.CompareAndSwap(open, closed) {
		e.unwatch()
		e.conn.breakOff()
	}
	return nil
}

// breakOff is for the end of the context.
func (e *exchange) breakOff() {
	if e.state.CompareAndSwap(open, broken) {
		e.conn.breakOff()
	}
}

// fail ends the exchange and says why.
func (e *exchange) fail(err error) error {
	e.finish(false)
	switch {
	case e.state.Load() == closed:
		return http.ErrBodyReadAfterClose
	case e.ctx.Err() != nil:
		return context.Cause(e.ctx)
	}
	if sendErr := e.sendErr.Load(); sendErr != nil && (!e.conn.heard || errors.Is(err, net.ErrClosed)) {
		return *sendErr
	}
	return err
}

// finish ends the exchange for who reads, unless Close or the context did. The connection waits for another request if it may.
func (e *exchange) finish(whole bool) {
	if !e.state.CompareAndSwap(open, ended) {
		return
	}
	e.unwatch()
	c := e.conn
	again := whole && e.keep && e.sent.Load() && c.in.Buffered() == 0
	c.rest()
	if again {
		e.transport.put(c)
	} else {
		c.breakOff()
	}
}
