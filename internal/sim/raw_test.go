package sim

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// exchangeRaw sends one request and returns the connection after it.
func (s *server) exchangeRaw(body, fault string) net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s: %s\r\n\r\n%s",
		len(body), FaultHeader, fault, body)
	return conn
}

// What the bytes on the wire are for the faults that break HTTP itself.
func TestRawFaults(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	plain, stream := chatBody("Tell me of the sea", ""), chatBody("Tell me of the sea", `,"stream":true`)
	for _, c := range []struct {
		body, fault string
		check       func(head http.Header, body string) bool
	}{
		{plain, "close", func(h http.Header, b string) bool {
			return h.Get("Content-Length") == "" && strings.HasSuffix(b, "}\n")
		}},
		{stream, "close", func(h http.Header, b string) bool {
			return h.Get("Content-Length") == "" && strings.HasSuffix(b, "[DONE]\n\n")
		}},
		{stream, "close,cut=2", func(_ http.Header, b string) bool { return strings.Count(b, "data: ") == 2 }},
		{plain, "length=7", func(h http.Header, b string) bool { return h.Get("Content-Length") == fmt.Sprint(len(b)+7) }},
		{plain, "length=-7", func(h http.Header, b string) bool { return h.Get("Content-Length") == fmt.Sprint(len(b)-7) }},
		{plain, "garbage", func(h http.Header, b string) bool {
			return h.Get("Content-Length") == fmt.Sprint(len(b)-len("}trailing garbage")) && strings.HasSuffix(b, "garbage")
		}},
		{plain, "type=text/html", func(h http.Header, _ string) bool { return h.Get("Content-Type") == "text/html" }},
		{plain, "status=429:7", func(h http.Header, _ string) bool { return h.Get("Retry-After") == "7" }},
		{plain, "status=429:0", func(h http.Header, _ string) bool { return h.Get("Retry-After") == "" }},
	} {
		reader := bufio.NewReader(s.exchangeRaw(c.body, c.fault))
		r, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Errorf("%s: %v", c.fault, err)
			continue
		}
		var body []byte
		if r.Close { // else the connection stays open
			body, _ = io.ReadAll(io.MultiReader(r.Body, reader)) // a wrong length is an error
		}
		if r.ContentLength >= 0 {
			r.Header.Set("Content-Length", fmt.Sprint(r.ContentLength))
		}
		if !c.check(r.Header, string(body)) {
			t.Errorf("%s: %v %s", c.fault, r.Header, body)
		}
	}
}

// What never comes to its end goes on until the client leaves.
func TestEndlessFaults(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	for fault, begin := range map[string]string{"1xx": "HTTP/1.1 103 Early Hints\r\n", "endless-header": "HTTP/1.1 200 OK\r\nX-Endless: 0123"} {
		conn := s.exchangeRaw(chatBody("a", ""), fault)
		read := make([]byte, 1<<20)
		if _, err := io.ReadFull(conn, read); err != nil || !strings.HasPrefix(string(read), begin) {
			t.Errorf("%s: %v, %.60q", fault, err, read)
		}
	}
	if b, err := io.ReadAll(s.exchangeRaw(chatBody("a", ""), "early-close")); err != nil || len(b) > 0 {
		t.Errorf("early-close: %v, %q", err, b)
	}
	r, err := http.ReadResponse(bufio.NewReader(s.exchangeRaw(chatBody("a", ""), "gzip-bomb")), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	unpacked, err := gzip.NewReader(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.CopyN(io.Discard, unpacked, 100<<20); err != nil || r.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("gzip-bomb: %d bytes, %v", n, err)
	}
}
