package h1server

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
)

// Sizes of what a connection reads with, in bytes.
const (
	readSize    = 4 << 10
	maxKeptHead = 16 << 10 // a longer record of a head is not kept for the next request
)

// readers are for requests that are read: a connection has one from a request's first byte to its body's last.
var readers = sync.Pool{New: func() any {
	r := &reader{}
	r.Reader = bufio.NewReaderSize(&r.from, readSize)
	return r
}}

// reader is a buffer and what fills it.
type reader struct {
	*bufio.Reader
	from source
}

// source reads a connection. While a head is read it records what comes, so that all of it can be handed over.
type source struct {
	conn net.Conn
	// kept is a byte that was read before, in watching for the peer's leaving; 0 or 1 byte long
	kept []byte
	// head is the record, left how many bytes it may still grow by
	head      []byte
	left      int
	recording bool
	// err is what the last failed read of the connection came to
	err error
}

// errLongHead is no error for a client: net/http, which reads the head again, says it.
var errLongHead = errors.New("h1server: the head of the request is too long")

// Read implements io.Reader.
func (s *source) Read(b []byte) (n int, err error) {
	if s.recording {
		if s.left <= 0 {
			return 0, errLongHead
		}
		b = b[:min(len(b), s.left)]
	}
	if len(s.kept) > 0 {
		n, s.kept = copy(b, s.kept), nil
	} else if n, err = s.conn.Read(b); err != nil {
		s.err = err
	}
	if s.recording {
		s.head, s.left = append(s.head, b[:n]...), s.left-n
	}
	return n, err
}

// record begins the record of a request's head. What the buffer holds is its beginning.
func (r *reader) record(limit int) {
	begun, _ := r.Peek(r.Buffered()) // never more than there is
	s := &r.from
	s.head = append(s.head[:0], begun...)
	s.left, s.recording = limit+readSize-len(begun), true
}

// putBack gives the reader away.
func putBack(r *reader) {
	head := r.from.head[:0]
	if cap(head) > maxKeptHead {
		head = nil
	}
	r.from = source{head: head}
	r.Reset(&r.from)
	readers.Put(r)
}

// plain says that a request is one that this package knows how to answer. net/http, which gets the others, refuses some of them.
func plain(r *http.Request) bool {
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

// body is a request's. Reading it to its end is what sets the watch for the peer's leaving; a handler may have another goroutine read it.
type body struct {
	mu   sync.Mutex
	c    *conn
	from io.Reader // nil: there is nothing more to read, for the reason that is err
	err  error
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.from == nil {
		return 0, b.err
	}
	n, err := b.from.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		b.from, b.err = nil, err
		b.c.bodyEnded()
	case b.c.reader.from.err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		b.c.leave(b.c.reader.from.err)
	}
	return n, err
}

// Close implements io.Closer. It reads nothing: a connection with an unread body is closed after the answer.
func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shut()
	return nil
}

func (b *body) shut() {
	if b.from != nil || b.err == nil {
		b.from, b.err = nil, http.ErrBodyReadAfterClose
	}
}
