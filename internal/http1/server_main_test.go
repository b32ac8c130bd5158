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

// testServer is a server on a socket.
type testServer struct {
	t      testing.TB
	server *Server
	path   string
	served chan error
}

// serve starts a server with this handler. change may change the rest of it.
func startServer(t testing.TB, handler http.HandlerFunc, change func(*Server)) *testServer {
	t.Helper()
	s := &Server{Handler: handler, Other: &http.Server{Handler: handler}, Log: zap.NewNop()}
	if change != nil {
		change(s)
	}
	w := &testServer{t: t, server: s, path: filepath.Join(t.TempDir(), "s"), served: make(chan error, 1)}
	l, err := net.Listen("unix", w.path)
	if err != nil {
		t.Fatal(err)
	}
	go func() { w.served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		within(t, s.stop()) // the connections' goroutines are gone
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

func (w *testServer) transport(t testing.TB) *http.Transport {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.path)
	}, MaxIdleConnsPerHost: 100}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// peer is a client that says what it is told to.
type peer struct {
	t testing.TB
	*net.UnixConn
	in *bufio.Reader
}

func (p *peer) say(text string) {
	p.t.Helper()
	if _, err := io.WriteString(p.UnixConn, text); err != nil {
		p.t.Fatal(err)
	}
}

// hear is the next response, and all of its body.
func (p *peer) hear(method string) (*http.Response, string) {
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

func (p *peer) expect(status int, body string) *http.Response {
	p.t.Helper()
	res, got := p.hear("GET")
	if res.StatusCode != status || got != body {
		p.t.Fatalf("got %d %s, want %d %s", res.StatusCode, short(got), status, short(body))
	}
	return res
}

// over waits for the server to close, and says what came before.
func (p *peer) over() string {
	p.t.Helper()
	rest, err := io.ReadAll(p.in)
	if err != nil && !isReset(err) {
		p.t.Fatalf("instead of the end, after %s: %v", short(rest), err)
	}
	return string(rest)
}

// short is a text for a message: its end, if it is long.
func short[T string | []byte](text T) string {
	if len(text) <= 100 {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%d bytes ...%q", len(text), text[len(text)-100:])
}

func isReset(err error) bool {
	var timeout net.Error
	return err != nil && !(errors.As(err, &timeout) && timeout.Timeout())
}

func within[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatal("nothing happens")
	}
	return v
}

const get = "GET / HTTP/1.1\r\nhost: x\r\n\r\n"
