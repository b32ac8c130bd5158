package http1

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
)

// Sizes in bytes.
const (
	serverBuffer  = 4 << 10
	maxPooledHead = 16 << 10 // a longer recorded head does not go back to the pool
)

// headReaders is a pool. A connection has a reader from the first byte of a request to the last
// byte of its body.
var headReaders = sync.Pool{New: func() any {
	r := &headReader{}
	r.Reader = bufio.NewReaderSize(&r.source, serverBuffer)
	return r
}}

// headReader is a buffer with the source that fills it.
type headReader struct {
	*bufio.Reader
	source headSource
}

// headSource reads a connection. While it reads a head it records all bytes, so that they can be
// handed over.
type headSource struct {
	conn io.Reader
	// firstByte is the byte that watchPeer has read, if any.
	firstByte []byte
	// head is what was recorded, budget how many more bytes it may have.
	head      []byte
	budget    int
	recording bool
	// readErr is the error of the last read that failed.
	readErr error
}

// errHeadTooLong is not shown to a client: net/http reads the head again and answers 431.
var errHeadTooLong = errors.New("http1: the head of the request is too long")

func (s *headSource) Read(b []byte) (n int, err error) {
	if s.recording {
		if s.budget <= 0 {
			return 0, errHeadTooLong
		}
		b = b[:min(len(b), s.budget)]
	}
	if len(s.firstByte) > 0 {
		n, s.firstByte = copy(b, s.firstByte), nil
	} else if n, err = s.conn.Read(b); err != nil {
		s.readErr = err
	}
	if s.recording {
		s.head, s.budget = append(s.head, b[:n]...), s.budget-n
	}
	return n, err
}

// startRecording starts to record the head of a request. What the buffer holds already is its
// beginning.
func (r *headReader) startRecording(limit int) {
	begun, _ := r.Peek(r.Buffered()) // cannot fail: the bytes are there
	s := &r.source
	s.head = append(s.head[:0], begun...)
	s.budget, s.recording = limit+serverBuffer-len(begun), true
}

// releaseReader gives a reader back to the pool.
func releaseReader(r *headReader) {
	head := r.source.head[:0]
	if cap(head) > maxPooledHead {
		head = nil
	}
	r.source = headSource{head: head}
	r.Reset(&r.source)
	headReaders.Put(r)
}

// isPlain says whether this package can serve a request. net/http gets all others and refuses some
// of them.
func isPlain(r *http.Request) bool {
	if r.ProtoMajor != 1 || r.ProtoMinor != 1 || r.Host == "" || !httpguts.ValidHostHeader(r.Host) ||
		r.Method == http.MethodConnect || r.RequestURI == "*" {
		return false
	}
	for name, values := range r.Header {
		if name == "Upgrade" || name == "Expect" || !httpguts.ValidHeaderFieldName(name) {
			return false
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) || name == "Connection" && strings.Contains(strings.ToLower(v), "upgrade") {
				return false
			}
		}
	}
	return true
}

// requestBody is the body of a request. Reading it to its end starts watchPeer. A handler may have
// another goroutine read it.
type requestBody struct {
	mu   sync.Mutex
	conn *serverConn
	body io.Reader // nil when nothing more may be read, for the reason in err
	err  error
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.body == nil {
		return 0, b.err
	}
	n, err := b.body.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		b.body, b.err = nil, err
		b.conn.onBodyRead()
	case b.conn.reader.source.readErr != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		b.conn.cancelRequest(b.conn.reader.source.readErr)
	}
	return n, err
}

// Close implements io.Closer. It reads nothing: after the response, a connection with an unread
// body is closed.
func (b *requestBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closeLocked()
	return nil
}

// closeLocked ends the body. mu is held.
func (b *requestBody) closeLocked() {
	if b.body != nil || b.err == nil {
		b.body, b.err = nil, http.ErrBodyReadAfterClose
	}
}
