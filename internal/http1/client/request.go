package h1client

import (
	"bytes"
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
	// smallBody is up to what size a body is copied behind its head, to leave in one write, in bytes.
	smallBody = 16 << 10
	// promptBody is up to what size a body is written before its answer is looked for, in bytes: sockets hold so much when the engine does not read.
	promptBody = 64 << 10
	// keptBuffer is how large a buffer for writing may be to be used again, in bytes.
	keptBuffer = 32 << 10
)

var writers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// excluded are the headers that come from other fields of a request.
var excluded = map[string]bool{"Host": true, "User-Agent": true, "Content-Length": true, "Transfer-Encoding": true, "Trailer": true}

// bodyError is the fault of a request's own body.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "h1client: the request's body: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

var (
	errShort = errors.New("shorter than ContentLength")
	errLong  = errors.New("longer than ContentLength")
)

// targetOf checks the request and says where it goes.
func targetOf(request *http.Request) (target, error) {
	u := request.URL
	switch {
	case u == nil || u.Host == "":
		return target{}, errors.New("h1client: no host in the request's URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return target{}, fmt.Errorf("h1client: the scheme %q is not spoken", u.Scheme)
	case request.Method == http.MethodConnect, request.Method != "" && !httpguts.ValidHeaderFieldName(request.Method):
		return target{}, fmt.Errorf("h1client: the method %q is not spoken", request.Method)
	case request.ContentLength < 0, request.ContentLength > 0 && request.Body == nil, len(request.TransferEncoding) > 0:
		return target{}, errors.New("h1client: the length of the request's body is not known")
	case strings.ContainsFunc(u.RequestURI(), control):
		return target{}, errors.New("h1client: a control character in the request's URL")
	}
	for name, values := range request.Header {
		if !httpguts.ValidHeaderFieldName(name) {
			return target{}, fmt.Errorf("h1client: %q is no name of a header", name)
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return target{}, fmt.Errorf("h1client: the value of the header %q has characters that it must not", name) // it may be a secret
			}
		}
	}
	host, err := httpguts.PunycodeHostPort(u.Host)
	if err != nil {
		return target{}, fmt.Errorf("h1client: the request's host: %w", err)
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

func control(r rune) bool { return r < ' ' || r == 0x7f }

// writeHead writes what http.Request.Write would, but no User-Agent unless the request has one.
func writeHead(to *bytes.Buffer, request *http.Request) {
	host := request.Host
	if host == "" {
		host = request.URL.Host
	}
	host, err := httpguts.PunycodeHostPort(host)
	if err != nil || !httpguts.ValidHostHeader(host) {
		host = "" // as net/http: an engine may take offence, but nothing is smuggled
	}
	method := request.Method
	if method == "" {
		method = http.MethodGet
	}
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
	_ = request.Header.WriteSubset(to, excluded) // a buffer takes everything
	to.WriteString("\r\n")
}

// withoutZone drops the zone of an IPv6 address, which means nothing to the other end: RFC 6874.
func withoutZone(host string) string {
	end := strings.LastIndexByte(host, ']')
	zone := strings.IndexByte(host, '%')
	if !strings.HasPrefix(host, "[") || zone < 0 || end < zone {
		return host
	}
	return host[:zone] + host[end:]
}

// send writes the request. A large body it leaves to a goroutine.
func (e *exchange) send(request *http.Request) error {
	buffer := writers.Get().(*bytes.Buffer)
	writeHead(buffer, request)
	body, length := request.Body, request.ContentLength
	if body == nil {
		body = http.NoBody
	}
	if length > promptBody {
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
	recycle(buffer)
	e.sent.Store(err == nil)
	return err
}

// sendLarge writes a request whose answer may come before its body was read, by a goroutine of its own. It ends with the connection.
func (e *exchange) sendLarge(head *bytes.Buffer, body io.ReadCloser, length int64) {
	err := e.conn.sendBody(head, body, length)
	body.Close()
	recycle(head)
	switch {
	case err == nil:
		e.sent.Store(true)
	case errors.Is(err, net.ErrClosed): // we closed it, and who did knows why
	case dead(err):
		e.sendErr.Store(&err) // who reads finds the end, or an answer before it
	default:
		e.sendErr.Store(&err)
		e.conn.breakOff()
	}
}

// sendSmall sends head and body in one write.
func (c *conn) sendSmall(buffer *bytes.Buffer, body io.Reader, length int64) error {
	buffer.Grow(int(length) + bytes.MinRead)
	if _, err := io.CopyN(buffer, body, length); errors.Is(err, io.EOF) {
		return &bodyError{errShort}
	} else if err != nil {
		return &bodyError{err}
	}
	if n, _ := io.ReadFull(body, make([]byte, 1)); n > 0 {
		return &bodyError{errLong}
	}
	_, err := c.stream.Write(buffer.Bytes())
	return err
}

// sendBody sends a body without a copy, if it knows io.WriterTo, and the head with the first of it.
func (c *conn) sendBody(head *bytes.Buffer, body io.Reader, length int64) error {
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

// sender writes a head with the first bytes of its body, and then the rest.
type sender struct {
	to   net.Conn
	head []byte
	left int64
	err  error
}

// Write implements io.Writer.
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

func recycle(buffer *bytes.Buffer) {
	if buffer.Cap() <= keptBuffer {
		buffer.Reset()
		writers.Put(buffer)
	}
}

func closeBody(request *http.Request) {
	if request.Body != nil {
		request.Body.Close()
	}
}
