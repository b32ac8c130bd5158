package h1server

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// ErrFull says that TryWrite took nothing, since the peer has not yet taken what came before.
var ErrFull = errors.New("h1server: the peer reads too slowly")

// errOver is for those who write when the handler has returned.
var errOver = errors.New("h1server: the handler has returned")

// unknown is the length of a body of which the handler has not said it.
const unknown = -1

// maxCopied is the largest piece of a body, in bytes, that is copied to go out in one write with what frames it.
const maxCopied = 8 << 10

// Writer is the http.ResponseWriter of Server.Handler, and an http.Flusher. http.ResponseController finds SetReadDeadline, SetWriteDeadline and FlushError. Its
// methods may be called by any goroutine until the handler returns, one at a time.
//
// It buffers nothing: each Write is a write to the socket, and a chunk unless the handler has set a Content-Length. The first takes the head with it.
// When the head is settled (WriteHeader, or what does it implicitly), the map of Header is dropped: what is set later is for nobody. A write that fails
// or times out is the last: all later calls return its error, and the connection ends.
type Writer struct {
	c      *conn
	header http.Header // nil once the head is settled, and before anybody asks for it
	status int         // 0 until the head is settled

	// head is the head but for its last lines, from when it is settled to when it goes; gone says that it has.
	head *[]byte
	gone bool
	// length is what the handler has promised, or unknown; written what there was of it
	length, written int64
	// mute: a body that is written does not go out (HEAD); none: nothing may be written (204, 304)
	mute, none bool
	// closing says that the connection ends with this response.
	closing bool

	// kept is what TryWrite could not get rid of.
	kept  []byte
	until time.Time
	err   error
}

// scratch is where heads and chunks are put together.
var scratch = sync.Pool{New: func() any {
	b := make([]byte, 0, 1<<10)
	return &b
}}

// maxScratch bounds what the pool keeps, in bytes.
const maxScratch = 2 * maxCopied

func reuse(b *[]byte, used []byte) {
	if cap(used) <= maxScratch {
		*b = used[:0]
		scratch.Put(b)
	}
}

// Header implements http.ResponseWriter.
func (w *Writer) Header() http.Header {
	if w.status != 0 {
		return http.Header{}
	}
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

// WriteHeader implements http.ResponseWriter. It sends nothing yet, but for codes from 100 to 199, which go out at once, with the headers that are
// set, and are not the response. Only the first code counts. Like net/http's it panics for a code that has not three
// digits; 101 is for Server.Other, and panics too.
func (w *Writer) WriteHeader(code int) {
	if code < 100 || code > 999 || code == http.StatusSwitchingProtocols {
		panic(fmt.Sprintf("h1server: status code %d", code))
	}
	if w.status != 0 || w.err != nil {
		return
	}
	b := scratch.Get().(*[]byte)
	out := appendStatus((*b)[:0], code)
	if code < http.StatusOK {
		out, _ = w.appendHeader(out, code)
		out = append(out, "\r\n"...)
		w.wait(out)
		reuse(b, out)
		return
	}
	w.status = code
	w.none = code == http.StatusNoContent || code == http.StatusNotModified
	out, w.length = w.appendHeader(out, code)
	w.header = nil
	*b = out
	w.head = b
}

// Write implements http.ResponseWriter. It waits until the socket has taken everything, up to the write deadline. It returns
// http.ErrContentLength, having written nothing, for more than was promised, and http.ErrBodyNotAllowed for a status that has no body.
func (w *Writer) Write(b []byte) (int, error) {
	if err := w.admit(len(b)); err != nil {
		return 0, err
	}
	if len(b) == 0 || w.mute {
		return len(b), nil
	}
	if err := w.send(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// TryWrite writes a piece of the body without ever waiting: as much of it as the socket takes now. For one goroutine, this is what Write and Flush are,
// but that a peer that does not read holds up nobody.
//
// err == nil says that all of b is taken care of, and the caller may use b again. If whole, the socket has it all, and everything of before. If not, the Writer
// has kept a copy of what did not fit. The next TryWrite, Write, Flush, or the end of the handler sends that first: TryWrite as far as it goes, the
// others waiting, up to the write deadline.
//
// err == ErrFull says that b was not taken, no byte of it: what was kept still does not fit. The caller tries again later, or waits by Flush or
// Write. So never more is kept than one b with its frame, and the head.
//
// Any other error is as for Write. The write deadline plays no part. An empty b sends the head, if it has not gone, and what was kept.
func (w *Writer) TryWrite(b []byte) (whole bool, err error) {
	if w.err != nil {
		return false, w.err
	}
	if len(w.kept) > 0 {
		if err := w.retry(); err != nil {
			return false, err
		}
		if len(w.kept) > 0 && len(b) == 0 {
			return false, nil
		}
		if len(w.kept) > 0 {
			return false, ErrFull
		}
	}
	if err := w.admit(len(b)); err != nil {
		return false, err
	}
	if w.mute {
		b = nil
	}
	return w.try(b)
}

// Flush implements http.Flusher.
func (w *Writer) Flush() { _ = w.FlushError() } // the next call returns it

// FlushError sends the head, if it has not gone, and what TryWrite has kept. It waits until the socket has taken it, up to the write deadline.
func (w *Writer) FlushError() error {
	if err := w.admit(0); err != nil {
		return err
	}
	if w.gone {
		return w.settle()
	}
	return w.send(nil)
}

// SetReadDeadline bounds reads of the request's body. When it was read to its end, there is nothing left to bound.
func (w *Writer) SetReadDeadline(t time.Time) error {
	if w.c.ended.Load() || errors.Is(w.err, errOver) {
		return nil
	}
	return w.c.rwc.SetReadDeadline(t)
}

// SetWriteDeadline bounds what waits for the peer to read: Write, Flush, and the last bytes when the handler has returned. The zero time: no bound.
// It does not reach a call that is waiting already.
func (w *Writer) SetWriteDeadline(t time.Time) error {
	w.until = t
	return nil
}

// admit says whether n bytes may be written, and settles the head.
func (w *Writer) admit(n int) error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.err != nil:
		return w.err
	case n > 0 && w.none:
		return http.ErrBodyNotAllowed
	case w.length != unknown && w.written+int64(n) > w.length:
		return http.ErrContentLength
	}
	return nil
}

// chunked says that the body goes out in chunks.
func (w *Writer) chunked() bool { return w.length == unknown && !w.mute && !w.none }

// open appends what goes before size bytes of the body.
func (w *Writer) open(out []byte, size int) []byte {
	if !w.gone {
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

// shut appends what goes after size bytes of the body.
func (w *Writer) shut(out []byte, size int) []byte {
	if size > 0 && w.chunked() {
		return append(out, "\r\n"...)
	}
	return out
}

// appendHead appends the settled head, all but the framing and the empty line. It is gone then. With the body not yet read it says that the
// connection ends: if the rest is never read it has to, and the peer must not have sent its next request by then.
func (w *Writer) appendHead(out []byte) []byte {
	w.closing = w.closing || !w.c.ended.Load()
	out = append(out, *w.head...)
	reuse(w.head, *w.head)
	w.head, w.gone = nil, true
	if w.closing {
		out = append(out, "connection: close\r\n"...)
	}
	return out
}

// send writes what was kept and b, and waits for that.
func (w *Writer) send(b []byte) error {
	if err := w.settle(); err != nil {
		return err
	}
	buffer := scratch.Get().(*[]byte)
	out := w.open((*buffer)[:0], len(b))
	if len(b) <= maxCopied {
		out = w.shut(append(out, b...), len(b))
		w.wait(out)
	} else {
		before := len(out)
		out = w.shut(out, len(b))
		w.waitLarge(out[:before], b, out[before:])
	}
	reuse(buffer, out)
	w.written += int64(len(b))
	return w.err
}

// settle writes what was kept, and waits for that.
func (w *Writer) settle() error {
	if len(w.kept) > 0 {
		w.wait(w.kept)
		w.kept = nil
	}
	return w.err
}

// wait writes all of it.
func (w *Writer) wait(b []byte) {
	if w.err = w.c.arm(w.until); w.err == nil {
		_, w.err = w.c.rwc.Write(b)
	}
}

// waitLarge writes a chunk without copying it.
func (w *Writer) waitLarge(before, b, after []byte) {
	if w.err = w.c.arm(w.until); w.err == nil {
		_, w.err = (&net.Buffers{before, b, after}).WriteTo(w.c.rwc)
	}
}

// retry writes what was kept, as far as the socket takes it.
func (w *Writer) retry() error {
	n, err := w.c.push(w.kept)
	if err != nil {
		w.err = err
		return err
	}
	if w.kept = w.kept[n:]; len(w.kept) == 0 {
		w.kept = nil
	}
	return nil
}

// try writes b as far as the socket takes it, and keeps the rest. Nothing is kept when it is called.
func (w *Writer) try(b []byte) (whole bool, err error) {
	buffer := scratch.Get().(*[]byte)
	out := w.open((*buffer)[:0], len(b))
	if len(b) <= maxCopied {
		out = w.shut(append(out, b...), len(b))
		w.offer(out)
	} else {
		before := len(out)
		out = w.shut(out, len(b))
		w.offer(out[:before])
		w.offer(b)
		w.offer(out[before:])
	}
	reuse(buffer, out)
	w.written += int64(len(b))
	return len(w.kept) == 0 && w.err == nil, w.err
}

// offer writes a piece as far as the socket takes it, or keeps it behind what is kept.
func (w *Writer) offer(b []byte) {
	if len(b) == 0 || w.err != nil {
		return
	}
	n := 0
	if len(w.kept) == 0 {
		if n, w.err = w.c.push(b); w.err != nil {
			return
		}
	}
	w.kept = append(w.kept, b[n:]...)
}

// finish ends the response. It says whether the connection is good for another one.
func (w *Writer) finish() bool {
	_ = w.admit(0) // w.err
	buffer := scratch.Get().(*[]byte)
	out := (*buffer)[:0]
	out = append(out, w.kept...)
	w.kept = nil
	switch {
	case w.err != nil:
	case w.gone || w.mute || w.none || w.length != unknown:
		if out = w.open(out, 0); w.chunked() {
			out = append(out, "0\r\n\r\n"...)
		}
	default:
		out = append(w.appendHead(out), "content-length: 0\r\n\r\n"...)
	}
	if w.err == nil && len(out) > 0 {
		w.wait(out)
	}
	reuse(buffer, out)
	short := !w.mute && !w.none && w.length != unknown && w.written < w.length
	good := w.err == nil && !w.closing && !short
	if w.err == nil {
		w.err = errOver
	}
	return good
}
