package http1

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
)

const (
	// smallBody is the largest body, in bytes, that is copied behind its head to leave in one
	// write.
	smallBody = 16 << 10
	// syncBody is the largest body, in bytes, that is written before the response is read. The
	// socket buffers hold as much when the engine does not read.
	syncBody = 64 << 10
	// maxPooledBuffer is how large a buffer for writing may be to be used again, in bytes.
	maxPooledBuffer = 32 << 10
)

var requestBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// framingHeaders are the headers that are written from other fields of a request.
var framingHeaders = map[string]bool{"Host": true, "User-Agent": true, "Content-Length": true, "Transfer-Encoding": true, "Trailer": true}

// bodyError is an error of the body that the caller gave, not of the connection.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "http1: request body: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

var (
	errShort = errors.New("shorter than ContentLength")
	errLong  = errors.New("longer than ContentLength")
)

// targetOf checks a request and returns where it goes. It refuses what could smuggle a second
// request into the connection.
func targetOf(request *http.Request) (target, error) {
	u := request.URL
	switch {
	case u == nil || u.Host == "":
		return target{}, errors.New("http1: the URL of the request has no host")
	case u.Scheme != "http" && u.Scheme != "https":
		return target{}, fmt.Errorf("http1: unsupported URL scheme %q, expected http or https", u.Scheme)
	case request.Method == http.MethodConnect, request.Method != "" && !httpguts.ValidHeaderFieldName(request.Method):
		return target{}, fmt.Errorf("http1: unsupported method %q", request.Method)
	case request.ContentLength < 0, request.ContentLength > 0 && request.Body == nil, len(request.TransferEncoding) > 0:
		return target{}, errors.New("http1: the length of the request body is unknown, set ContentLength")
	case strings.ContainsFunc(u.RequestURI(), isControl):
		return target{}, errors.New("http1: the URL of the request has a control character")
	}
	for name, values := range request.Header {
		if !httpguts.ValidHeaderFieldName(name) {
			return target{}, fmt.Errorf("http1: invalid header name %q", name)
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return target{}, fmt.Errorf("http1: the value of header %q has invalid characters", name) // the value may be a secret
			}
		}
	}
	host, err := httpguts.PunycodeHostPort(u.Host)
	if err != nil {
		return target{}, fmt.Errorf("http1: host of the request: %w", err)
	}
	to := target{address: host, secure: u.Scheme == "https"}
	if u.Port() == "" {
		port := "80"
		if to.secure {
			port = "443"
		}
		to.address = net.JoinHostPort(strings.Trim(strings.TrimSuffix(host, ":"), "[]"), port)
	}
	return to, nil
}

// isControl says whether a character must not be in a request line.
func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// writeHead writes what http.Request.Write writes, but no User-Agent unless the request has one.
func writeHead(to *bytes.Buffer, request *http.Request) {
	host := request.Host
	if host == "" {
		host = request.URL.Host
	}
	host, err := httpguts.PunycodeHostPort(host)
	if err != nil || !httpguts.ValidHostHeader(host) {
		host = "" // as net/http does: an engine may refuse the request, but nothing is smuggled
	}
	method := cmp.Or(request.Method, http.MethodGet)
	to.WriteString(method + " " + request.URL.RequestURI() + " HTTP/1.1\r\nHost: " + withoutZone(host) + "\r\n")
	if agent := textproto.TrimString(request.Header.Get("User-Agent")); agent != "" {
		to.WriteString("User-Agent: " + agent + "\r\n")
	}
	if request.Close && !httpguts.HeaderValuesContainsToken(request.Header["Connection"], "close") {
		to.WriteString("Connection: close\r\n")
	}
	if request.ContentLength > 0 || method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch {
		to.WriteString("Content-Length: ")
		to.Write(strconv.AppendInt(to.AvailableBuffer(), request.ContentLength, 10))
		to.WriteString("\r\n")
	}
	_ = request.Header.WriteSubset(to, framingHeaders) // writing to a buffer never fails
	to.WriteString("\r\n")
}

// withoutZone removes the zone of an IPv6 address, which means nothing to the other side (RFC
// 6874).
func withoutZone(host string) string {
	end := strings.LastIndexByte(host, ']')
	zone := strings.IndexByte(host, '%')
	if !strings.HasPrefix(host, "[") || zone < 0 || end < zone {
		return host
	}
	return host[:zone] + host[end:]
}

// send writes the request. A goroutine of its own writes a large body.
func (e *roundTrip) send(request *http.Request) error {
	buffer := requestBuffers.Get().(*bytes.Buffer)
	writeHead(buffer, request)
	body, length := request.Body, request.ContentLength
	if body == nil {
		body = http.NoBody
	}
	if length > syncBody {
		go e.sendLarge(buffer, body, length)
		return nil
	}
	var err error
	if length <= smallBody {
		err = e.conn.sendSmall(buffer, body, length)
	} else {
		err = e.conn.sendBody(buffer, body, length)
	}
	body.Close()
	releaseBuffer(buffer)
	e.sent.Store(err == nil)
	return err
}

// sendLarge writes a request whose response may come before its body was read. It ends at the
// latest when the connection is closed.
func (e *roundTrip) sendLarge(head *bytes.Buffer, body io.ReadCloser, length int64) {
	err := e.conn.sendBody(head, body, length)
	body.Close()
	releaseBuffer(head)
	switch {
	case err == nil:
		e.sent.Store(true)
	case errors.Is(err, net.ErrClosed): // our side closed the connection and reports why
	case closedByPeer(err):
		e.sendErr.Store(&err) // the reader finds the end of the connection, or a response before it
	default:
		e.sendErr.Store(&err)
		e.conn.abort()
	}
}

// sendSmall writes head and body in one call.
func (c *clientConn) sendSmall(buffer *bytes.Buffer, body io.Reader, length int64) error {
	buffer.Grow(int(length) + bytes.MinRead)
	if _, err := io.CopyN(buffer, body, length); errors.Is(err, io.EOF) {
		return &bodyError{errShort}
	} else if err != nil {
		return &bodyError{err}
	}
	if n, _ := io.ReadFull(body, make([]byte, 1)); n > 0 {
		return &bodyError{errLong}
	}
	_, err := c.output.Write(buffer.Bytes())
	return err
}

// sendBody writes the head together with the first bytes of the body, then the rest. It does not
// copy a body that implements io.WriterTo.
func (c *clientConn) sendBody(head *bytes.Buffer, body io.Reader, length int64) error {
	s := &sender{to: c.stream, head: head.Bytes(), left: length}
	_, err := io.Copy(s, body)
	switch {
	case s.err != nil:
		return s.err
	case err != nil:
		return &bodyError{err}
	case s.left > 0:
		return &bodyError{errShort}
	}
	return nil
}

// sender writes a head with the first bytes of its body, and then the rest of the body.
type sender struct {
	to   net.Conn
	head []byte
	left int64
	err  error
}

func (s *sender) Write(p []byte) (int, error) {
	if int64(len(p)) > s.left {
		s.err = &bodyError{errLong}
		return 0, s.err
	}
	s.left -= int64(len(p))
	if s.head == nil {
		var n int
		n, s.err = s.to.Write(p)
		return n, s.err
	}
	both := net.Buffers{s.head, p}
	s.head = nil
	if _, s.err = both.WriteTo(s.to); s.err != nil {
		return 0, s.err
	}
	return len(p), nil
}

func releaseBuffer(buffer *bytes.Buffer) {
	if buffer.Cap() <= maxPooledBuffer {
		buffer.Reset()
		requestBuffers.Put(buffer)
	}
}

// closeBody closes the body of a request that was not sent.
func closeBody(request *http.Request) {
	if request.Body != nil {
		request.Body.Close()
	}
}
