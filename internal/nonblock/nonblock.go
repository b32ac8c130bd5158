// Package nonblock reads and writes sockets without notice to Go's scheduler.
//
// The functions of packages syscall and net notify the scheduler of every call, in case the call
// blocks. A socket in non-blocking mode never blocks, and the notice is not cheap. In a process
// that is mostly idle, the first call of each burst wakes the runtime's monitor thread, which then
// polls every 20 µs. A request of Envoy's filter is such a burst, and so is a relayed event.
//
// Conn is a connection over a unix socket that the runtime's poller does not know either, which
// would wake a thread each time that the peer reads.
package nonblock

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

var (
	errBlocking = errors.New("nonblock: descriptor is in blocking mode, expected non-blocking")
	errNone     = errors.New("nonblock: connection has no descriptor")
)

// rawConn returns the descriptor of a connection, which must be in non-blocking mode: otherwise a
// call would block a thread that the scheduler believes to run. The descriptors of package net
// always are, unless somebody has called File on the connection.
func rawConn(c net.Conn) (syscall.RawConn, error) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil, errNone
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	var blocking bool
	var fault error
	err = raw.Control(func(fd uintptr) {
		flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFL, 0)
		if errno != 0 {
			fault = errno
		}
		blocking = flags&syscall.O_NONBLOCK == 0
	})
	if err = errors.Join(err, fault); err == nil && blocking {
		err = errBlocking
	}
	return raw, err
}

// failed returns the error of a system call as package net does.
func failed(call string, c net.Conn, err error) error {
	return opError(call, c, os.NewSyscallError(call, err))
}

// opError returns the error of an operation as package net does.
func opError(operation string, c net.Conn, err error) error {
	return &net.OpError{Op: operation, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// Reader reads a connection. One goroutine at a time may use it. NewReader makes one.
type Reader struct {
	conn net.Conn
	raw  syscall.RawConn
	// Read passes its arguments to try in these fields, because a closure would be an allocation
	// for each call. try is tryOnce.
	try    func(fd uintptr) bool
	buffer []byte
	n      int
	err    error
}

// NewReader returns a Reader for a connection. A connection in blocking mode is an error.
func NewReader(c net.Conn) (*Reader, error) {
	raw, err := rawConn(c)
	if err != nil {
		return nil, err
	}
	return newReader(c, raw), nil
}

func newReader(c net.Conn, raw syscall.RawConn) *Reader {
	r := &Reader{conn: c, raw: raw}
	r.try = r.tryOnce
	return r
}

// Read implements io.Reader. It waits as the connection's own Read does, and heeds its deadline.
func (r *Reader) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.buffer = p
	err = r.raw.Read(r.try)
	if n = r.n; err == nil {
		err = r.err
	}
	r.buffer, r.n, r.err = nil, 0, nil
	return n, err
}

// tryOnce reads once. It returns false when there is nothing to read yet.
func (r *Reader) tryOnce(fd uintptr) bool {
	n, err := read(fd, r.buffer)
	switch {
	case err == nil && n == 0:
		r.err = io.EOF
	case err == nil:
		r.n = n
	case errors.Is(err, syscall.EAGAIN):
		return false
	default:
		r.err = failed("read", r.conn, err)
	}
	return true
}

// Quiet reports whether there is nothing to read: neither a byte, which would be lost, nor the end
// of the stream, nor an error.
func (r *Reader) Quiet() bool {
	quiet := false
	err := r.raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, err := read(fd, b[:])
		quiet = errors.Is(err, syscall.EAGAIN)
		return true
	})
	return err == nil && quiet
}

// Writer writes to a connection. One goroutine at a time may use it. NewWriter makes one.
type Writer struct {
	conn net.Conn
	raw  syscall.RawConn
	// Write and Try pass their arguments to tryAll and tryOnce in these fields, as Reader does. all
	// and once are these methods.
	all, once func(fd uintptr) bool
	buffer    []byte
	err       error
}

// NewWriter returns a Writer for a connection. A connection in blocking mode is an error.
func NewWriter(c net.Conn) (*Writer, error) {
	raw, err := rawConn(c)
	if err != nil {
		return nil, err
	}
	return newWriter(c, raw), nil
}

func newWriter(c net.Conn, raw syscall.RawConn) *Writer {
	w := &Writer{conn: c, raw: raw}
	w.all, w.once = w.tryAll, w.tryOnce
	return w
}

// Write implements io.Writer. It waits as the connection's own Write does, and heeds its deadline.
func (w *Writer) Write(p []byte) (n int, err error) { return w.write(p, w.all) }

// Try writes as much as the socket takes without waiting.
func (w *Writer) Try(p []byte) (n int, err error) { return w.write(p, w.once) }

func (w *Writer) write(p []byte, try func(fd uintptr) bool) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	w.buffer = p
	err = w.raw.Write(try)
	if n = len(p) - len(w.buffer); err == nil {
		err = w.err
	}
	w.buffer, w.err = nil, nil
	return n, err
}

// tryAll writes until all is written, and returns false when the socket takes nothing now.
func (w *Writer) tryAll(fd uintptr) bool {
	for len(w.buffer) > 0 {
		n, err := write(fd, w.buffer)
		switch {
		case err == nil:
			w.buffer = w.buffer[n:]
		case errors.Is(err, syscall.EAGAIN):
			return false
		default:
			w.err = failed("write", w.conn, err)
			return true
		}
	}
	return true
}

// tryOnce writes once. A socket that takes only a part is full.
func (w *Writer) tryOnce(fd uintptr) bool {
	n, err := write(fd, w.buffer)
	switch {
	case err == nil:
		w.buffer = w.buffer[n:]
	case !errors.Is(err, syscall.EAGAIN):
		w.err = failed("write", w.conn, err)
	}
	return true
}

// ReaderOf returns a Reader for a connection, or the connection itself if it has no descriptor in
// non-blocking mode, as one with TLS.
func ReaderOf(c net.Conn) io.Reader {
	if r, err := NewReader(c); err == nil {
		return r
	}
	return c
}

// WriterOf returns a Writer for a connection, or the connection itself, as ReaderOf does.
func WriterOf(c net.Conn) io.Writer {
	if w, err := NewWriter(c); err == nil {
		return w
	}
	return c
}

// read reads into p, which must not be empty. It returns 0 and no error at the end of the stream,
// and syscall.EAGAIN when there is nothing to read now. It repeats interrupted calls.
func read(fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = readOnce(fd, p); err != syscall.EINTR { //nolint:errorlint // a system call returns the number itself
			return n, err
		}
	}
}

// write writes as much of p, which must not be empty, as the socket takes now. It returns
// syscall.EAGAIN when the socket takes nothing, and syscall.EPIPE when the peer has closed: Go's
// runtime ignores SIGPIPE for all descriptors but 1 and 2. It repeats interrupted calls.
func write(fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = writeOnce(fd, p); err != syscall.EINTR { //nolint:errorlint // as above
			return n, err
		}
	}
}
