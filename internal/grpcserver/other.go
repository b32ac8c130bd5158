package grpcserver

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// maxPending is how much a stream of Other may have to send before its writes wait, in bytes.
const maxPending = 256 << 10

// serveHTTP has Other serve a stream, of which the fields of the reader are the headers.
func (r *reader) serveHTTP(s *Stream) {
	other := r.server.Other
	if other == nil || r.field(":path") == "" {
		s.Finish(codes.Unimplemented, "the method is unknown")
		return
	}
	request := r.request(s)
	w := &responseWriter{stream: s, header: http.Header{}}
	r.server.running.Go(func() {
		defer w.finish()
		other.ServeHTTP(w, request)
	})
}

func (r *reader) request(s *Stream) *http.Request {
	path := r.field(":path")
	target, err := url.ParseRequestURI(path)
	if err != nil {
		target = &url.URL{Path: path}
	}
	q := &http.Request{Method: r.field(":method"), URL: target, RequestURI: path, Proto: "HTTP/2.0", ProtoMajor: 2, Header: http.Header{},
		Host: r.field(":authority"), Body: s.body, ContentLength: -1}
	if address := r.socket.RemoteAddr(); address.Network() == "tcp" {
		q.RemoteAddr = address.String() // grpc-go takes every address for one of TCP
	}
	for _, f := range r.fields {
		if !f.IsPseudo() {
			q.Header.Add(f.Name, f.Value)
		}
	}
	return q.WithContext(&httpContext{&s.ctx, r.socket.LocalAddr()})
}

// body is the body of a request to Other.
type body struct {
	stream *Stream
	mu     sync.Mutex
	come   *sync.Cond
	// content is what has come and is not read, end what follows it. Guarded by mu.
	content []byte
	end     error
}

func newBody(s *Stream, ended bool) *body {
	b := &body{stream: s}
	b.come = sync.NewCond(&b.mu)
	if ended {
		b.end = io.EOF
	}
	return b
}

// add adds what has come. It returns false if the client has sent more than it may.
func (b *body) add(content []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end == nil {
		b.content = append(b.content, content...)
		b.come.Signal()
	}
	return len(b.content) <= streamWindow
}

// close ends the body. nil means that it is complete.
func (b *body) close(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		err = io.EOF
	}
	if b.end == nil {
		b.end = err
	}
	b.come.Broadcast()
}

// Read implements io.Reader. It lets the client send as much more.
func (b *body) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.mu.Lock()
	for len(b.content) == 0 && b.end == nil {
		b.come.Wait()
	}
	if len(b.content) == 0 || b.end != nil && !errors.Is(b.end, io.EOF) {
		defer b.mu.Unlock()
		return 0, b.end
	}
	n := copy(p, b.content)
	if b.content = b.content[n:]; len(b.content) == 0 {
		b.content = nil
	}
	b.mu.Unlock()
	c := b.stream.conn
	if c.Add(func(out []byte) []byte { return appendNumber(out, http2.FrameWindowUpdate, b.stream.id, uint32(n)) }) == nil {
		c.flush()
	}
	return n, nil
}

func (b *body) Close() error {
	b.close(errEnded)
	return nil
}

// responseWriter is the http.ResponseWriter of a stream of Other. One goroutine uses it.
type responseWriter struct {
	stream *Stream
	header http.Header
	// begun means that the headers are sent, trailers the names of those that follow the body.
	begun    bool
	trailers []string
}

func (w *responseWriter) Header() http.Header { return w.header }

func (w *responseWriter) WriteHeader(status int) {
	if w.begun {
		return
	}
	w.begun, w.trailers = true, w.header.Values("Trailer")
	s, c := w.stream, w.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.over || c.Check() != nil {
		return
	}
	s.begun = true
	c.Out = c.appendHeadersLocked(c.Out, s.id, 0, func(out []byte) []byte {
		out = appendField(out, ":status", strconv.Itoa(status))
		for name, values := range w.header {
			for _, value := range values {
				if name != "Trailer" {
					out = appendField(out, strings.ToLower(name), value)
				}
			}
		}
		return out
	})
}

func (w *responseWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	s, c := w.stream, w.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for s.mustWaitLocked() {
		c.mu.Unlock()
		c.flush()
		c.mu.Lock()
		if s.mustWaitLocked() {
			c.room.Wait()
		}
	}
	if s.over || c.Check() != nil {
		return 0, errEnded
	}
	c.holdLocked(s, p)
	return len(p), nil
}

// mustWaitLocked reports whether a write has to wait until more was sent. The lock of the
// connection is held.
func (s *Stream) mustWaitLocked() bool {
	full := len(s.pending) > maxPending || len(s.pending) > 0 && s.conn.unsent > maxAllUnsent
	return full && !s.over && !s.conn.Broken
}

func (w *responseWriter) Flush() {
	w.WriteHeader(http.StatusOK)
	w.stream.conn.flush()
}

// finish ends the stream with the trailers.
func (w *responseWriter) finish() {
	w.WriteHeader(http.StatusOK)
	s, c := w.stream, w.stream.conn
	c.mu.Lock()
	if !s.over && !c.Broken {
		c.finishLocked(s, w.appendTrailers)
		s.over = true
	}
	c.mu.Unlock()
	s.ctx.End()
	s.body.close(errEnded)
	s.Flush()
}

// appendTrailers appends the trailers: those that were announced, and those whose names begin with
// http.TrailerPrefix.
func (w *responseWriter) appendTrailers(out []byte) []byte {
	for _, name := range w.trailers {
		for _, value := range w.header.Values(name) {
			out = appendField(out, strings.ToLower(name), value)
		}
	}
	for name, values := range w.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			for _, value := range values {
				out = appendField(out, strings.ToLower(name), value)
			}
		}
	}
	return out
}
