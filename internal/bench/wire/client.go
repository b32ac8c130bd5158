package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"
)

// Request is an HTTP/1.1 request that was made in advance. Its text may have a number that is
// another one each time it is sent. One client may use it at a time.
type Request struct {
	text []byte
	// number is the place of the number, of numberDigits digits; nil: there is none.
	number []byte
}

// Number stands for the number in the text of a NewRequest.
const Number = "000000000000"

// sent is the last number that was given.
var sent atomic.Int64

// NewRequest returns a POST request. The first Number in its body becomes a number that no other
// request has.
func NewRequest(path, key, body string) *Request {
	r := &Request{text: fmt.Appendf(nil, "POST %s HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"+
		"authorization: Bearer %s\r\ncontent-length: %d\r\n\r\n%s",
		path, key, len(body), body)}
	if i := bytes.Index(r.text, []byte(Number)); i >= 0 {
		r.number = r.text[i : i+len(Number)]
	}
	return r
}

// next returns the text with a new number.
func (r *Request) next() []byte {
	if r.number != nil {
		for i, n := len(r.number)-1, sent.Add(1); i >= 0; i, n = i-1, n/10 {
			r.number[i] = byte('0' + n%10)
		}
	}
	return r.text
}

// Client is one connection that is kept from request to request. It is not for concurrent use.
type Client struct {
	conn net.Conn
	buf  []byte
}

// Dial connects to a host:port.
func Dial(address string) (*Client, error) {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, buf: make([]byte, 32<<10)}, nil
}

// Close ends the connection.
func (c *Client) Close() { c.conn.Close() }

// SetDeadline bounds the time of all requests from now on.
func (c *Client) SetDeadline(t time.Time) error { return c.conn.SetDeadline(t) }

// Do sends a request and reads the whole answer, which must have the status 200. first is the time
// until the answer was there, or the first event of a stream.
func (c *Client) Do(r *Request) (first time.Duration, err error) {
	text := r.next()
	begin := time.Now()
	if _, err := c.conn.Write(text); err != nil {
		return 0, err
	}
	head, rest, err := c.readHead()
	if err != nil {
		return 0, err
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) {
		return 0, fmt.Errorf("the answer is not 200: %s %s", head, rest)
	}
	length, found := contentLength(head)
	if found {
		err = c.readRest(length - len(rest))
		return time.Since(begin), err
	}
	return c.readStream(begin, rest)
}

// readHead reads up to the end of the headers, and returns them and what came behind them.
func (c *Client) readHead() (head, rest []byte, err error) {
	n := 0
	for {
		more, err := c.conn.Read(c.buf[n:])
		if err != nil {
			return nil, nil, fmt.Errorf("reading headers: %w", err)
		}
		n += more
		if i := bytes.Index(c.buf[:n], []byte("\r\n\r\n")); i >= 0 {
			return c.buf[:i+2], c.buf[i+4 : n], nil
		}
		if n == len(c.buf) {
			return nil, nil, errors.New("the headers of the answer are too large")
		}
	}
}

// contentLength returns the value of this header.
func contentLength(head []byte) (n int, found bool) {
	_, value, found := bytes.Cut(head, []byte("\r\ncontent-length: "))
	if !found {
		return 0, false
	}
	text, _, _ := bytes.Cut(value, []byte("\r\n"))
	n, err := strconv.Atoi(string(text))
	return n, err == nil
}

func (c *Client) readRest(n int) error {
	for n > 0 {
		more, err := c.conn.Read(c.buf)
		if err != nil {
			return fmt.Errorf("reading an answer of which %d bytes are missing: %w", n, err)
		}
		n -= more
	}
	if n < 0 {
		return errors.New("the answer is longer than its content-length")
	}
	return nil
}

const (
	// lastChunkEnd ends each chunked answer, streamEnd each stream, unless a proxy has divided its
	// last event into two chunks.
	lastChunkEnd = "\r\n0\r\n\r\n"
	streamEnd    = "data: [DONE]\n\n" + lastChunkEnd
	// tailBytes is how much of the end of a stream is kept, to find streamEnd in it.
	tailBytes = 64
)

// between is what stands between the texts of two chunks.
var between = regexp.MustCompile("\r\n[0-9a-f]+\r\n")

// readStream reads a stream of which rest is here already.
func (c *Client) readStream(begin time.Time, rest []byte) (first time.Duration, err error) {
	tail := make([]byte, 0, tailBytes)
	for {
		if first == 0 && bytes.Contains(rest, []byte("data: ")) {
			first = time.Since(begin)
		}
		tail = lastOf(tail, rest)
		if bytes.HasSuffix(tail, []byte(lastChunkEnd)) {
			return first, endFault(tail)
		}
		n, err := c.conn.Read(c.buf)
		if err != nil {
			return first, fmt.Errorf("reading a stream: %w", err)
		}
		rest = c.buf[:n]
	}
}

// endFault returns an error if the end of an answer is not that of a stream.
func endFault(tail []byte) error {
	if bytes.HasSuffix(tail, []byte(streamEnd)) || bytes.Contains(between.ReplaceAll(tail, nil), []byte("data: [DONE]\n\n")) {
		return nil
	}
	return fmt.Errorf("the stream ended without [DONE]: …%q", tail)
}

// lastOf returns the last tailBytes of tail and what follows it. It uses the memory of tail.
func lastOf(tail, more []byte) []byte {
	if len(more) >= tailBytes {
		return append(tail[:0], more[len(more)-tailBytes:]...)
	}
	drop := max(0, len(tail)+len(more)-tailBytes)
	copy(tail, tail[drop:])
	return append(tail[:len(tail)-drop], more...)
}
