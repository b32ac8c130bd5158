package wire

import (
	"bufio"
	"bytes"
	"net"
	"strings"
	"testing"
	"time"
)

func startOne(t *testing.T, p Plan) (*Engines, *Client) {
	t.Helper()
	e, err := Start(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	e.Begin(p)
	c, err := Dial(e.Addresses()[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return e, c
}

func TestAnswers(t *testing.T) {
	_, c := startOne(t, Plan{})
	large := NewRequest("/v1/chat/completions", "key", strings.Repeat("x", 400_000)+Number)
	for range 3 {
		if first, err := c.Do(large); err != nil || first <= 0 {
			t.Fatalf("first %v, error %v", first, err)
		}
	}
}

func TestStreams(t *testing.T) {
	e, c := startOne(t, Plan{Events: 32})
	r := NewRequest("/v1/chat/completions", "key", "{}")
	for n := range int64(3) {
		if first, err := c.Do(r); err != nil || first <= 0 {
			t.Fatalf("first %v, error %v", first, err)
		}
		if e.Sent() != 32*(n+1) {
			t.Fatalf("%d events were sent by %d streams of 32", e.Sent(), n+1)
		}
	}
	e.Begin(Plan{Events: 1000, Stagger: 1})
	if _, err := c.Do(r); err != nil || e.Sent() < 1 || e.Sent() > 1000 {
		t.Fatalf("the first stream of 1000 events had %d, error %v", e.Sent(), err)
	}
	e.Begin(Plan{Events: 1 << 30, Pause: time.Millisecond})
	time.AfterFunc(0, e.Hurry)
	if _, err := c.Do(r); err != nil {
		t.Fatalf("a stream that was hurried: %v", err)
	}
}

func TestNumbersDiffer(t *testing.T) {
	r := NewRequest("/", "key", "a"+Number+"b"+Number)
	first := string(r.next())
	second := string(r.next())
	if first == second || len(first) != len(second) || !strings.HasSuffix(second, "b"+Number) {
		t.Errorf("%q, then %q", first, second)
	}
}

func TestReadRequest(t *testing.T) {
	for _, text := range []string{
		"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello",
		"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
	} {
		in := bufio.NewReader(strings.NewReader(text + "GET / HTTP/1.1\r\nhost: x\r\n\r\n"))
		if get, err := readRequest(in); get || err != nil {
			t.Errorf("%q: get %v, error %v", text, get, err)
		}
		if get, err := readRequest(in); !get || err != nil {
			t.Errorf("the request behind %q: get %v, error %v", text, get, err)
		}
	}
	if _, err := readRequest(bufio.NewReader(strings.NewReader("POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n"))); err == nil {
		t.Error("a content-length that is no number was accepted")
	}
}

// answerOnce returns a client of a server that sends these pieces, one by one.
func answerOnce(t *testing.T, pieces ...string) *Client {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { here.Close() })
	go func() {
		defer there.Close()
		if _, err := readRequest(bufio.NewReader(there)); err != nil {
			return
		}
		for _, p := range pieces {
			if _, err := there.Write([]byte(p)); err != nil {
				return
			}
		}
	}()
	return &Client{conn: here, buf: make([]byte, 4<<10)}
}

func TestFaultsOfAnswers(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
	for _, c := range []struct {
		name   string
		pieces []string
		fault  string
	}{
		{"503", []string{"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno"}, "not 200"},
		{"cut", []string{head, chunk("data: 1\n\n")}, "reading a stream"},
		{"no [DONE]", []string{head, chunk("data: 1\n\n"), "0\r\n\r\n"}, "without [DONE]"},
		{"byte by byte", strings.Split(head+chunk("data: 1\n\ndata: [DONE]\n\n")+"0\r\n\r\n", ""), ""},
		{"a divided end", []string{head, chunk("data: 1\n\ndata: [DO"), chunk("NE]\n\n"), "0\r\n\r\n"}, ""},
		{"too long", []string{"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nlong"}, "longer"},
	} {
		_, err := answerOnce(t, c.pieces...).Do(NewRequest("/", "key", "{}"))
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.fault)
		}
	}
}

func TestLastOf(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789"), 30)
	for size := 1; size < 150; size++ {
		var tail []byte
		for rest := text; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			tail = lastOf(tail, rest[:min(size, len(rest))])
		}
		if want := text[len(text)-tailBytes:]; !bytes.Equal(tail, want) {
			t.Fatalf("pieces of %d bytes: %q, want %q", size, tail, want)
		}
	}
}
