package http1

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// startBothServers starts a Server that hands requests for /other to Other. The handler of Server
// answers "lean", and the handler of Other answers "other".
func startBothServers(t *testing.T, change func(*Server)) *testServer {
	return startServer(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "lean") }, func(s *Server) {
		s.Own = func(r *http.Request) bool { return r.URL.Path != "/other" }
		s.Other = &http.Server{MaxHeaderBytes: 8 << 10, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			w.Write(append([]byte("other "+r.Header.Get("a")+" "), b...))
		})}
		if change != nil {
			change(s)
		}
	})
}

// TestRequestsForOther: Other serves the requests that Own refuses and those that Server does not
// support. It also answers malformed requests.
func TestRequestsForOther(t *testing.T) {
	w := startBothServers(t, func(s *Server) { s.MaxHeaderBytes = 8 << 10 })
	long := strings.Repeat("x", 9<<10)
	for name, c := range map[string]struct {
		said   string
		status int
		body   string
	}{
		"not lean":        {"GET /other HTTP/1.1\r\nhost: x\r\na: b\r\n\r\n", 200, "other b "},
		"with a body":     {"POST /other HTTP/1.1\r\nhost: x\r\ncontent-length: 9216\r\n\r\n" + long, 200, "other  " + long},
		"in chunks":       {"POST /other HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200, "other  abc"},
		"1.0":             {"GET / HTTP/1.0\r\nhost: x\r\n\r\n", 200, "other  "},
		"options":         {"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n", 200, ""},
		"connect":         {"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n", 200, "other  "},
		"upgrade":         {"GET / HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: x\r\n\r\n", 200, "other  "},
		"upgrade to none": {"GET / HTTP/1.1\r\nhost: x\r\nconnection: x, upgrade\r\n\r\n", 200, "other  "},
		"malformed":       {"GET\r\n\r\n", 400, "400 Bad Request"},
		"no host":         {"GET / HTTP/1.1\r\n\r\n", 400, "400 Bad Request: missing required Host header"},
		"two hosts":       {"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", 400, "400 Bad Request"},
		"a bad host":      {"GET / HTTP/1.1\r\nhost: a\x01b\r\n\r\n", 400, "400 Bad Request"},
		"a bad value":     {"GET / HTTP/1.1\r\nhost: x\r\na: b\x01\r\n\r\n", 400, "400 Bad Request"},
		"a bad name":      {"GET / HTTP/1.1\r\nhost: x\r\na b: c\r\n\r\n", 400, "400 Bad Request"},
		"a bad coding":    {"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n", 501, "Unsupported transfer encoding"},
		"a long head":     {"GET / HTTP/1.1\r\nhost: x\r\na: " + long + long + "\r\n\r\n", 431, "431 Request Header Fields Too Large"},
	} {
		t.Run(name, func(t *testing.T) {
			p := w.dial(t)
			p.send(c.said)
			res, body := p.receive("GET")
			if res.StatusCode != c.status || body != c.body && !strings.HasPrefix(body, c.body+":") {
				t.Errorf("got %d %s, want %d %s", res.StatusCode, short(body), c.status, short(c.body))
			}
			p.CloseWrite()
			p.awaitClose()
		})
	}
}

func TestExpectIsHandedOver(t *testing.T) {
	w := startBothServers(t, nil)
	p := w.dial(t)
	p.send("POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
	if res, err := http.ReadResponse(p.in, nil); err != nil || res.StatusCode != 100 {
		t.Fatal(res, err)
	}
	p.send("abc")
	p.expect(200, "other  abc")
}

func TestHalfAHeadIsMalformed(t *testing.T) {
	w := startBothServers(t, nil)
	p := w.dial(t)
	p.send("GET / HTTP/1.1\r\nho")
	p.CloseWrite()
	p.expect(400, "400 Bad Request")
}

// Any request of a connection may be the first for Other, wherever its bytes are split.
func TestHandedOverLater(t *testing.T) {
	w := startBothServers(t, nil)
	other := "POST /other HTTP/1.1\r\nhost: x\r\na: b\r\ncontent-length: 3\r\n\r\nabc"
	for i := range other {
		p := w.dial(t)
		p.send(get)
		p.expect(200, "lean")
		p.send(get + other[:i]) // one after the other, and then both at once
		p.expect(200, "lean")
		p.send(other[i:])
		if res := p.expect(200, "other b abc"); !res.Close {
			t.Error("the response does not close the connection, so Envoy would send its next request on it")
		}
		p.awaitClose()
	}
}

func TestNoOther(t *testing.T) {
	w := startServer(t, echo, func(s *Server) { s.Other = nil })
	p := w.dial(t)
	p.send(get)
	p.expect(200, "GET / 0 ")
	p.send("GET / HTTP/1.0\r\n\r\n")
	p.awaitClose()
	if err := w.server.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestWebSocket(t *testing.T) {
	w := startBothServers(t, func(s *Server) {
		s.Other.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, err := websocket.Accept(w, r, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.CloseNow()
			for {
				kind, b, err := conn.Read(r.Context())
				if err != nil {
					return
				}
				conn.Write(r.Context(), kind, b)
			}
		})
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws://x/", &websocket.DialOptions{HTTPClient: &http.Client{Transport: w.transport(t)}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	for _, text := range []string{"", "hello", strings.Repeat("x", 20<<10)} {
		if err := conn.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, b, err := conn.Read(ctx); err != nil || string(b) != text {
			t.Fatalf("%d bytes came back, %v", len(b), err)
		}
	}
	if err := conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
}

// A request that Other serves is not subject to a write deadline of the response before it.
func TestHandedOverWithoutTheLastDeadline(t *testing.T) {
	w := startServer(t, func(rw http.ResponseWriter, _ *http.Request) {
		if _, ours := rw.(*ResponseWriter); ours {
			http.NewResponseController(rw).SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		}
		io.WriteString(rw, "x")
	}, func(s *Server) {
		s.Own = func(r *http.Request) bool { return !strings.HasPrefix(r.URL.Path, "/other") }
	})
	p := w.dial(t)
	p.send(get)
	p.expect(200, "x")
	time.Sleep(100 * time.Millisecond) // until it has passed
	p.send("GET /other HTTP/1.1\r\nhost: x\r\n\r\n")
	p.expect(200, "x")
}
