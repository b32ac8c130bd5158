package http1

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// ErrFull is returned by TryWrite when it took nothing, because the peer has not yet read what was
// written before.
var ErrFull = errors.New("http1: the peer reads too slowly")

// errHandlerReturned is returned to goroutines that write after the handler has returned.
var errHandlerReturned = errors.New("http1: write after the handler has returned")

// unknownLength is the length of a body whose handler has not declared it.
const unknownLength = -1

// maxCopied is the largest piece of a body, in bytes, that is copied so that it leaves in one write
// with its frame.
const maxCopied = 8 << 10

// ResponseWriter is the http.ResponseWriter of Server.Handler, and an http.Flusher.
// http.ResponseController finds SetReadDeadline, SetWriteDeadline and FlushError. Any goroutine may
// call the methods until the handler returns, one at a time.
//
// It buffers nothing: each Write is a write to the socket, and a chunk unless the handler has set a
// Content-Length. The first write takes the head along. WriteHeader, or the first write, settles
// the head; headers that are set later are lost. A write that fails or times out is the last one:
// all later calls return its error, and the connection ends.
//
// Responses have no trailers, no Date and no sniffed Content-Type.
type ResponseWriter struct {
	conn   *serverConn
	header http.Header // nil when the head is settled, and before Header was called
	status int         // 0 until the head is settled

	// head holds the settled head without its last lines, until it is sent. headSent says that it
	// was sent.
	head     *[]byte
	headSent bool
	// length is the declared length of the body, or unknownLength. written is how much of the body
	// was written.
	length, written int64
	// headRequest says that a body is dropped, because the request is a HEAD. bodyless says that
	// the status has no body (204, 304).
	headRequest, bodyless bool
	// closing says that the connection ends with this response.
	closing bool

	// pending is what TryWrite could not write.
	pending       []byte
	writeDeadline time.Time
	err           error
}

// frameBuffers is a pool of buffers in which heads and chunks are put together.
var frameBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, 1<<10)
	return &b
}}

// maxPooledFrame bounds the buffers that go back to the pool, in bytes.
const maxPooledFrame = 2 * maxCopied

// releaseFrame gives a buffer back to the pool. used is the buffer as it was grown.
func releaseFrame(b *[]byte, used []byte) {
	if cap(used) <= maxPooledFrame {
		*b = used[:0]
		frameBuffers.Put(b)
	}
}

// Header implements http.ResponseWriter.
func (w *ResponseWriter) Header() http.Header {
	if w.status != 0 {
		return http.Header{}
	}
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

// WriteHeader implements http.ResponseWriter. It sends nothing yet, except for codes from 100 to
// 199: they leave at once with the headers that are set, and they are not the response. Only the
// first other code counts. Like net/http it panics for a code that does not have three digits. It
// panics for 101, which is for Server.Other.
func (w *ResponseWriter) WriteHeader(code int) {
	if code < 100 || code > 999 || code == http.StatusSwitchingProtocols {
		panic(fmt.Sprintf("http1: status code %d", code))
	}
	if w.status != 0 || w.err != nil {
		return
	}
	b := frameBuffers.Get().(*[]byte)
	out := appendStatus((*b)[:0], code)
	if code < http.StatusOK {
		out, _ = w.appendHeader(out, code)
		out = append(out, "\r\n"...)
		w.writeAll(out)
		releaseFrame(b, out)
		return
	}
	w.status = code
	w.bodyless = code == http.StatusNoContent || code == http.StatusNotModified
	out, w.length = w.appendHeader(out, code)
	w.header = nil
	*b = out
	w.head = b
}

// Write implements http.ResponseWriter. It waits until the socket has taken everything, up to the
// write deadline. For more than the declared length it writes nothing and returns
// http.ErrContentLength. For a status without a body it returns http.ErrBodyNotAllowed.
func (w *ResponseWriter) Write(b []byte) (int, error) {
	if err := w.checkWrite(len(b)); err != nil {
		return 0, err
	}
	if len(b) == 0 || w.headRequest {
		return len(b), nil
	}
	if err := w.writePiece(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// TryWrite writes a piece of the body without ever waiting: as much of it as the socket takes now.
// It is what Write and Flush are, for a goroutine that a slow peer must not hold up.
//
// When err is nil, all of b was taken and the caller may use b again. If whole is true, the socket
// has all of it. Otherwise the ResponseWriter keeps a copy of what did not fit. The next TryWrite,
// Write, Flush or the end of the handler sends the copy first. TryWrite sends it as far as it fits.
// The others wait up to the write deadline.
//
// When err is ErrFull, no byte of b was taken, because the copy still does not fit. The caller
// tries again later, or waits by Flush or Write. So the ResponseWriter never keeps more than one b
// with its frame, and the head.
//
// Any other error is as for Write. The write deadline does not apply. An empty b sends the head, if
// it was not sent, and the copy.
func (w *ResponseWriter) TryWrite(b []byte) (whole bool, err error) {
	if w.err != nil {
		return false, w.err
	}
	if len(w.pending) > 0 {
		if err := w.retryPending(); err != nil {
			return false, err
		}
		if len(w.pending) > 0 && len(b) == 0 {
			return false, nil
		}
		if len(w.pending) > 0 {
			return false, ErrFull
		}
	}
	if err := w.checkWrite(len(b)); err != nil {
		return false, err
	}
	if w.headRequest {
		b = nil
	}
	return w.tryWrite(b)
}

// Flush implements http.Flusher.
func (w *ResponseWriter) Flush() { _ = w.FlushError() } // the next call returns the error

// FlushError sends the head, if it was not sent, and what TryWrite has kept. It waits until the
// socket has taken it, up to the write deadline.
func (w *ResponseWriter) FlushError() error {
	if err := w.checkWrite(0); err != nil {
		return err
	}
	if w.headSent {
		return w.flushPending()
	}
	return w.writePiece(nil)
}

// SetReadDeadline bounds reads of the request's body. After the end of the body it does nothing.
func (w *ResponseWriter) SetReadDeadline(t time.Time) error {
	if w.conn.bodyDone.Load() || errors.Is(w.err, errHandlerReturned) {
		return nil
	}
	return w.conn.rwc.SetReadDeadline(t)
}

// SetWriteDeadline bounds what waits for the peer to read: Write, Flush, and the last bytes after
// the handler has returned. The zero time means no bound. It does not apply to a call that waits
// already.
func (w *ResponseWriter) SetWriteDeadline(t time.Time) error {
	w.writeDeadline = t
	return nil
}

// checkWrite says whether n bytes may be written. It settles the head.
func (w *ResponseWriter) checkWrite(n int) error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.err != nil:
		return w.err
	case n > 0 && w.bodyless:
		return http.ErrBodyNotAllowed
	case w.length != unknownLength && w.written+int64(n) > w.length:
		return http.ErrContentLength
	}
	return nil
}

// chunked says that the body leaves in chunks.
func (w *ResponseWriter) chunked() bool {
	return w.length == unknownLength && !w.headRequest && !w.bodyless
}

// appendPrefix appends what goes before size bytes of the body.
func (w *ResponseWriter) appendPrefix(out []byte, size int) []byte {
	if !w.headSent {
		out = w.appendHead(out)
		if w.chunked() {
			out = append(out, "transfer-encoding: chunked\r\n"...)
		}
		out = append(out, "\r\n"...)
	}
	if size > 0 && w.chunked() {
		out = strconv.AppendUint(out, uint64(size), 16)
		out = append(out, "\r\n"...)
	}
	return out
}

// appendSuffix appends what goes after size bytes of the body.
func (w *ResponseWriter) appendSuffix(out []byte, size int) []byte {
	if size > 0 && w.chunked() {
		return append(out, "\r\n"...)
	}
	return out
}

// appendHead appends the settled head, without the framing and the empty line. When the body of the
// request was not read, or when the server ends, the head declares that the connection ends. The
// rest may never be read, and the peer must not send its next request.
func (w *ResponseWriter) appendHead(out []byte) []byte {
	w.closing = w.closing || !w.conn.bodyDone.Load() || w.conn.server.ending()
	out = append(out, *w.head...)
	releaseFrame(w.head, *w.head)
	w.head, w.headSent = nil, true
	if w.closing {
		out = append(out, "connection: close\r\n"...)
	}
	return out
}

// writePiece writes what was pending and then b. It waits until the socket has taken both.
func (w *ResponseWriter) writePiece(b []byte) error {
	if err := w.flushPending(); err != nil {
		return err
	}
	buffer := frameBuffers.Get().(*[]byte)
	out := w.appendPrefix((*buffer)[:0], len(b))
	if len(b) <= maxCopied {
		out = w.appendSuffix(append(out, b...), len(b))
		w.writeAll(out)
	} else {
		before := len(out)
		out = w.appendSuffix(out, len(b))
		w.writeAllLarge(out[:before], b, out[before:])
	}
	releaseFrame(buffer, out)
	w.written += int64(len(b))
	return w.err
}

// flushPending writes what was pending, and waits until the socket has taken it.
func (w *ResponseWriter) flushPending() error {
	if len(w.pending) > 0 {
		w.writeAll(w.pending)
		w.pending = nil
	}
	return w.err
}

// writeAll writes all of b. It waits up to the write deadline.
func (w *ResponseWriter) writeAll(b []byte) {
	if w.err = w.conn.setWriteDeadline(w.writeDeadline); w.err == nil {
		_, w.err = w.conn.output.Write(b)
	}
}

// writeAllLarge writes a chunk without copying it.
func (w *ResponseWriter) writeAllLarge(before, b, after []byte) {
	if w.err = w.conn.setWriteDeadline(w.writeDeadline); w.err == nil {
		_, w.err = (&net.Buffers{before, b, after}).WriteTo(w.conn.rwc)
	}
}

// retryPending writes what was pending, as far as the socket takes it.
func (w *ResponseWriter) retryPending() error {
	n, err := w.conn.tryWrite(w.pending)
	if err != nil {
		w.err = err
		return err
	}
	if w.pending = w.pending[n:]; len(w.pending) == 0 {
		w.pending = nil
	}
	return nil
}

// tryWrite writes b as far as the socket takes it, and keeps the rest. Nothing is pending when it
// is called.
func (w *ResponseWriter) tryWrite(b []byte) (whole bool, err error) {
	buffer := frameBuffers.Get().(*[]byte)
	out := w.appendPrefix((*buffer)[:0], len(b))
	if len(b) <= maxCopied {
		out = w.appendSuffix(append(out, b...), len(b))
		w.tryPiece(out)
	} else {
		before := len(out)
		out = w.appendSuffix(out, len(b))
		w.tryPiece(out[:before])
		w.tryPiece(b)
		w.tryPiece(out[before:])
	}
	releaseFrame(buffer, out)
	w.written += int64(len(b))
	return len(w.pending) == 0 && w.err == nil, w.err
}

// tryPiece writes b as far as the socket takes it. It keeps the rest behind what is pending.
func (w *ResponseWriter) tryPiece(b []byte) {
	if len(b) == 0 || w.err != nil {
		return
	}
	n := 0
	if len(w.pending) == 0 {
		if n, w.err = w.conn.tryWrite(b); w.err != nil {
			return
		}
	}
	w.pending = append(w.pending, b[n:]...)
}

// finish ends the response. It says whether the connection can serve another one.
func (w *ResponseWriter) finish() bool {
	_ = w.checkWrite(0) // w.err
	buffer := frameBuffers.Get().(*[]byte)
	out := (*buffer)[:0]
	out = append(out, w.pending...)
	w.pending = nil
	switch {
	case w.err != nil:
	case w.headSent || w.headRequest || w.bodyless || w.length != unknownLength:
		if out = w.appendPrefix(out, 0); w.chunked() {
			out = append(out, "0\r\n\r\n"...)
		}
	default:
		out = append(w.appendHead(out), "content-length: 0\r\n\r\n"...)
	}
	if w.err == nil && len(out) > 0 {
		w.writeAll(out)
	}
	releaseFrame(buffer, out)
	short := !w.headRequest && !w.bodyless && w.length != unknownLength && w.written < w.length
	good := w.err == nil && !w.closing && !short
	if w.err == nil {
		w.err = errHandlerReturned
	}
	return good
}
