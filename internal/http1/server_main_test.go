package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
)

// testServer is a Server on a Unix socket.
type testServer struct {
	server *Server
	path   string
	served chan error
}

// startServer starts a Server with this handler. change, if not nil, may set its other fields.
func startServer(t testing.TB, handler http.HandlerFunc, change func(*Server)) *testServer {
	t.Helper()
	s := &Server{Handler: handler, Other: &http.Server{Handler: handler}, Log: zap.NewNop()}
	if change != nil {
		change(s)
	}
	w := &testServer{server: s, path: filepath.Join(t.TempDir(), "s"), served: make(chan error, 1)}
	l, err := net.Listen("unix", w.path)
	if err != nil {
		t.Fatal(err)
	}
	go func() { w.served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		within(t, s.stop()) // until the goroutines of all connections have ended
	})
	return w
}

func (w *testServer) dial(t testing.TB) *peer {
	t.Helper()
	c, err := net.Dial("unix", w.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return &peer{t: t, UnixConn: c.(*net.UnixConn), in: bufio.NewReader(c)}
}

// inTime sends a text on new connections until the server answers. On a busy machine a text may
// come when the server has given its connection up.
func (w *testServer) inTime(t testing.TB, text string) (p *peer) {
	t.Helper()
	eventually(t, "the server answers", func() bool {
		p = w.dial(t)
		_, _ = io.WriteString(p.UnixConn, text)
		_, err := p.in.Peek(1)
		return err == nil
	})
	return p
}

func (w *testServer) transport(t testing.TB) *http.Transport {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.path)
	}, MaxIdleConnsPerHost: 100}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// peer is a client that sends the bytes of a test.
type peer struct {
	t testing.TB
	*net.UnixConn
	in *bufio.Reader
}

func (p *peer) send(text string) {
	p.t.Helper()
	if _, err := io.WriteString(p.UnixConn, text); err != nil {
		p.t.Fatal(err)
	}
}

// receive reads the next response with its whole body.
func (p *peer) receive(method string) (*http.Response, string) {
	p.t.Helper()
	res, err := http.ReadResponse(p.in, &http.Request{Method: method})
	if err != nil {
		p.t.Fatalf("no response: %v", err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatalf("after %s: %v", short(body), err)
	}
	return res, string(body)
}

// expect reads the next response, which must have this status and body.
func (p *peer) expect(status int, body string) *http.Response {
	p.t.Helper()
	res, got := p.receive("GET")
	if res.StatusCode != status || got != body {
		p.t.Fatalf("got %d %s, want %d %s", res.StatusCode, short(got), status, short(body))
	}
	return res
}

// awaitClose waits until the server closes the connection. It returns the bytes that came before.
func (p *peer) awaitClose() string {
	p.t.Helper()
	rest, err := io.ReadAll(p.in)
	if err != nil && !isReset(err) {
		p.t.Fatalf("the connection is not closed after %s: %v", short(rest), err)
	}
	return string(rest)
}

// short quotes a text for a message. Of a long text it shows only the length and the end.
func short[T string | []byte](text T) string {
	if len(text) <= 100 {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%d bytes ...%q", len(text), text[len(text)-100:])
}

// isReset reports whether a read failed for another reason than a timeout.
func isReset(err error) bool {
	var timeout net.Error
	return err != nil && !(errors.As(err, &timeout) && timeout.Timeout())
}

// within receives a value from c, or fails the test after patience.
func within[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("no value is received within %v", patience)
	}
	return v
}

// get is the smallest request that the server accepts.
const get = "GET / HTTP/1.1\r\nhost: x\r\n\r\n"
