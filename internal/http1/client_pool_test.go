package http1

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// okAnswer is a complete answer with the body "ok".
const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// TestLastInFirstOut: a request uses the connection that was idle for the shortest time.
func TestLastInFirstOut(t *testing.T) {
	var mu sync.Mutex
	var ports []string
	release := make(chan struct{})
	e := startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
		for body := readBody(in); body != ""; body = readBody(in) {
			mu.Lock()
			ports = append(ports, c.RemoteAddr().String())
			mu.Unlock()
			if body == ">wait" {
				<-release
			}
			io.WriteString(c, okAnswer)
		}
	})
	c := transport(t)
	var all sync.WaitGroup
	all.Go(func() { fetch(c, post(t, e.url, "wait")) })
	eventually(t, "the engine has the first request", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(ports) == 1
	})
	fetch(c, post(t, e.url, "second"))
	close(release)
	all.Wait()
	for range 3 {
		fetch(c, post(t, e.url, "again"))
	}
	if len(ports) != 5 || ports[2] != ports[0] || ports[4] != ports[0] || ports[0] == ports[1] {
		t.Errorf("the requests came from the ports %v, want the first port for the third and the last", ports)
	}
}

// TestIdleConnectionsAreLimited: the pool keeps at most MaxIdlePerHost connections, and closes
// others.
func TestIdleConnectionsAreLimited(t *testing.T) {
	for limit, want := range map[int]int{-1: 0, 2: 2, 0: 5} {
		release := make(chan struct{})
		e := startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
			for readBody(in) != "" {
				<-release
				io.WriteString(c, okAnswer)
			}
		})
		c := transport(t)
		c.MaxIdlePerHost = limit
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { fetch(c, post(t, e.url, "")) })
		}
		eventually(t, "all requests have a connection", func() bool { return e.taken.Load() == 5 })
		close(release)
		all.Wait()
		if n := c.pool.size(); n != want {
			t.Errorf("MaxIdlePerHost %d: %d connections are idle, want %d", limit, n, want)
		}
		eventually(t, "the others are closed", func() bool { return e.open.Load() == int64(want) })
		c.CloseIdleConnections()
		eventually(t, "all are closed", func() bool { return e.open.Load() == 0 })
	}
}

func TestIdleConnectionsExpire(t *testing.T) {
	e := startAnswering(t, okAnswer, false)
	c := transport(t)
	c.IdleTimeout = 30 * time.Millisecond
	for range 3 {
		for end := time.Now().Add(2 * c.IdleTimeout); time.Now().Before(end); { // the connection is used before the timer fires
			if _, _, err := fetch(c, post(t, e.url, "")); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the connection has expired", func() bool { return e.open.Load() == 0 })
	}
	eventually(t, "the timer has ended", func() bool {
		c.pool.mu.Lock()
		defer c.pool.mu.Unlock()
		return c.pool.timer == nil && len(c.pool.idle) == 0
	})
}

// TestExpiredIsNotUsed: an expired connection is not used, even if the timer fires late.
func TestExpiredIsNotUsed(t *testing.T) {
	e := startAnswering(t, okAnswer, false)
	c := transport(t)
	c.IdleTimeout = time.Hour
	fetch(c, post(t, e.url, ""))
	for _, waiting := range c.pool.idle {
		waiting[0].idleSince = time.Now().Add(-time.Hour)
	}
	fetch(c, post(t, e.url, ""))
	if n := e.taken.Load(); n != 2 {
		t.Errorf("the engine accepted %d connections", n)
	}
}

// TestEngineClosesAfterAnswer: no request fails because an engine closes each connection after its
// answer without saying so.
func TestEngineClosesAfterAnswer(t *testing.T) {
	for _, body := range []string{"", "{}", strings.Repeat("a", 20<<10)} {
		e := startAnswering(t, okAnswer, true)
		c := transport(t)
		for i := range 1000 {
			if _, answer, err := fetch(c, post(t, e.url, body)); err != nil || answer != "ok" {
				t.Fatalf("%d: %q, %v", i, answer, err)
			}
		}
	}
}

// TestStrayBytesEndAConnection: a connection is closed if the engine sends bytes after its answer.
func TestStrayBytesEndAConnection(t *testing.T) {
	more, said := make(chan struct{}), make(chan struct{})
	e := startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
		readBody(in)
		io.WriteString(c, okAnswer)
		if _, ok := <-more; ok {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad")
			said <- struct{}{}
			readBody(in)
		}
	})
	c := transport(t)
	fetch(c, post(t, e.url, ""))
	more <- struct{}{}
	<-said
	close(more)
	if _, body, err := fetch(c, post(t, e.url, "")); err != nil || body != "ok" || e.taken.Load() != 2 {
		t.Errorf("%q, %v, %d connections", body, err, e.taken.Load())
	}
}

// TestRetryOnce: a request is sent again if the engine closes the idle connection while the request
// is written. It is not if the engine has answered or the body cannot be repeated.
func TestRetryOnce(t *testing.T) {
	for _, test := range []struct {
		name, second string
		body         string
		forget, ok   bool
		requests     int64
	}{
		{name: "no body", ok: true, requests: 3},
		{name: "a body", body: "{}", ok: true, requests: 3},
		{name: "a large body", body: strings.Repeat("a", 1<<20), ok: true, requests: 3},
		{name: "a body that is gone", body: "{}", forget: true, requests: 2},
		{name: "a byte was answered", body: "{}", second: "H", requests: 2},
		{name: "hints were answered", body: "{}", second: "HTTP/1.1 103 Early Hints\r\n\r\n", requests: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			var requests atomic.Int64
			e := startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
				for body := readBody(in); body != ""; body = readBody(in) {
					if body != ">"+test.body {
						t.Errorf("the engine received %d bytes, want the request's body", len(body)-1)
					}
					if requests.Add(1) == 2 {
						io.WriteString(c, test.second)
						return
					}
					io.WriteString(c, okAnswer)
				}
			})
			c := transport(t)
			eventually(t, "a connection is idle", func() bool {
				requests.Store(0)
				fetch(c, post(t, e.url, test.body))
				return c.pool.size() == 1 // the connection becomes idle a moment after a large body
			})
			r := post(t, e.url, test.body)
			if test.forget {
				r.GetBody = nil
			}
			if _, _, err := fetch(c, r); (err == nil) != test.ok || requests.Load() != test.requests {
				t.Errorf("%v after %d requests", err, requests.Load())
			}
		})
	}
}

// TestNoSecondRetry: a request is sent again once at most. The engine answers only the first
// request.
func TestNoSecondRetry(t *testing.T) {
	var requests atomic.Int64
	e := startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
		for readBody(in) != "" && requests.Add(1) == 1 {
			io.WriteString(c, okAnswer)
		}
	})
	c := transport(t)
	fetch(c, post(t, e.url, "{}"))
	if _, _, err := fetch(c, post(t, e.url, "{}")); !errors.Is(err, io.EOF) || requests.Load() != 3 {
		t.Errorf("%v after %d requests", err, requests.Load())
	}
}

func TestErrorsOfConnecting(t *testing.T) {
	gone := startAnswering(t, "", true)
	gone.Close()
	silent := startEngine(t, func(_ *net.TCPConn, in *bufio.Reader) { io.Copy(io.Discard, in) })
	known := httptest.NewTLSServer(http.NotFoundHandler())
	defer known.Close()
	known.Config.ErrorLog = nil
	for name, url := range map[string]string{
		"refused":   gone.url,
		"untrusted": known.URL,
		"handshake": strings.Replace(silent.url, "http", "https", 1),
	} {
		c := &Transport{TLSHandshakeTimeout: 50 * time.Millisecond}
		_, err := c.RoundTrip(post(t, url, "{}"))
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "dial" {
			t.Errorf("%s: %v", name, err)
		}
		if name == "handshake" && !op.Timeout() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestManyAtOnce: 8 goroutines send requests to net/http's server, with and without TLS. The
// answers have all sizes, and some are not read to their end.
func TestManyAtOnce(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("x-length", fmt.Sprint(len(body)))
		for len(body) > 0 {
			n := min(len(body), 700)
			w.Write(body[:n])
			w.(http.Flusher).Flush()
			body = body[n:]
		}
	})
	plain := httptest.NewServer(handler)
	defer plain.Close()
	secure := httptest.NewTLSServer(handler)
	defer secure.Close()
	c := transport(t)
	c.TLS = secure.Client().Transport.(*http.Transport).TLSClientConfig
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 60 {
				url := plain.URL
				if i%2 == 0 {
					url = secure.URL
				}
				body := strings.Repeat(string(rune('a'+g)), []int{0, 1, 700, 5000, 40 << 10, 200 << 10}[i/2%6])
				if i%5 == 4 {
					readOneByte(t, c, post(t, url, body))
					continue
				}
				if r, got, err := fetch(c, post(t, url, body)); err != nil || got != body || r.Header.Get("x-length") != fmt.Sprint(len(body)) {
					t.Errorf("%d bytes: %d, %v", len(body), len(got), err)
				}
			}
		})
	}
	all.Wait()
}

// readOneByte sends a request, reads a byte of the answer and closes the body.
func readOneByte(t *testing.T, c *Transport, r *http.Request) {
	response, err := c.RoundTrip(r)
	if err != nil {
		t.Error(err)
		return
	}
	response.Body.Read(make([]byte, 1))
	response.Body.Close()
}

// TestTLSConnectionsAreUsedAgain: idle TLS connections are used again, except those that the engine
// has closed.
func TestTLSConnectionsAreUsedAgain(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		var taken atomic.Int64
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) }))
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				taken.Add(1)
			}
		}
		server.TLS = &tls.Config{MaxVersion: version}
		server.StartTLS()
		c := transport(t)
		c.TLS = server.Client().Transport.(*http.Transport).TLSClientConfig
		for range 5 {
			if _, _, err := fetch(c, post(t, server.URL, "{}")); err != nil {
				t.Fatal(err)
			}
		}
		if n := taken.Load(); n != 1 {
			t.Errorf("the engine accepted %d connections", n)
		}
		server.CloseClientConnections()
		if _, _, err := fetch(c, post(t, server.URL, "{}")); err != nil {
			t.Error(err)
		}
		if n := taken.Load(); n != 2 {
			t.Errorf("the engine accepted %d connections", n)
		}
		c.CloseIdleConnections()
		server.Close()
	}
}
