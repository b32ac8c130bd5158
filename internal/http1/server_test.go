package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// echo answers with the request's method, URL, length and body.
func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "%s %s %d %s", r.Method, r.URL, r.ContentLength, b)
}

func TestKeepAlive(t *testing.T) {
	w := startServer(t, echo, nil)
	p := w.dial(t)
	for i := range 300 {
		p.send(get)
		p.expect(200, "GET / 0 ")
		p.send("POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
		p.expect(200, "POST /a?b 3 abc")
		body := strings.Repeat("x", i*50)
		p.send(fmt.Sprintf("POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n%x;e=f\r\n%sy\r\n0\r\nt: u\r\n\r\n", len(body)+1, body))
		p.expect(200, "POST /c -1 abc"+body+"y")
	}
	p.send("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
	if res := p.expect(200, "GET / 0 "); !res.Close {
		t.Error("the response does not say that it is the last")
	}
	p.awaitClose()
}

// A peer on a unix socket reads events without notice to the server. On TCP, where the kernel gives
// none before a buffer was full, connections are those of package net.
func TestConnectionsOverUnixSocketsAreDetached(t *testing.T) {
	w := startServer(t, echo, nil)
	overTCP, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go w.server.Serve(overTCP)
	for address, want := range map[string]string{w.path: "*nonblock.Conn", overTCP.Addr().String(): "*net.TCPConn"} {
		network := "unix"
		if address != w.path {
			network = "tcp"
		}
		c, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, get)
		if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
			t.Fatal(err)
		}
		if got := connectionOver(w.server, network); got != want {
			t.Errorf("a connection over %s is a %s, want a %s", network, got, want)
		}
		c.Close()
	}
}

func connectionOver(s *Server, network string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.rwc.LocalAddr().Network() == network {
			return fmt.Sprintf("%T", c.rwc)
		}
	}
	return ""
}

func TestSplitAtEveryByte(t *testing.T) {
	w := startServer(t, echo, nil)
	for _, request := range []struct{ text, want string }{
		{"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", "POST /a 3 abc"},
		{"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", "POST /b -1 abcd"},
	} {
		p := w.dial(t)
		for i := range request.text {
			p.send(request.text[:i])
			p.send(request.text[i:])
			p.expect(200, request.want)
		}
		for _, b := range []byte(request.text) {
			p.send(string(b))
		}
		p.expect(200, request.want)
	}
}

func TestPipelinedRequests(t *testing.T) {
	w := startServer(t, echo, nil)
	p := w.dial(t)
	post := "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
	p.send(post + get + get + post + get[:10])
	p.expect(200, "POST /a 3 abc")
	p.expect(200, "GET / 0 ")
	p.expect(200, "GET / 0 ")
	p.expect(200, "POST /a 3 abc")
	p.send(get[10:])
	p.expect(200, "GET / 0 ")
}

func TestNextRequestWhileOneRuns(t *testing.T) {
	running, proceed := make(chan bool), make(chan bool)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		running <- true
		<-proceed
		echo(w, r)
		if r.Context().Err() != nil {
			t.Error("the context ended although the peer is connected")
		}
	}, nil)
	p := w.dial(t)
	p.send(get)
	within(t, running)
	p.send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
	proceed <- true
	p.expect(200, "GET / 0 ")
	within(t, running)
	proceed <- true
	p.expect(200, "POST /a 3 abc")
}

// TestDisconnectEndsTheContext: when the client disconnects, the request's context ends with the
// cause ErrClientLeft. whole tells whether the client has sent the whole body.
func TestDisconnectEndsTheContext(t *testing.T) {
	const head, chunked = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, c := range map[string]struct {
		said       string
		whole      bool
		disconnect func(*peer)
	}{
		"no body":             {get, true, func(p *peer) { p.Close() }},
		"half closed":         {get, true, func(p *peer) { p.CloseWrite() }},
		"whole body":          {head + "abc", true, func(p *peer) { p.Close() }},
		"whole chunked body":  {chunked + "3\r\nabc\r\n0\r\n\r\n", true, func(p *peer) { p.Close() }},
		"half a body":         {head + "a", false, func(p *peer) { p.Close() }},
		"half a chunked body": {chunked + "3\r\na", false, func(p *peer) { p.Close() }},
		"no end of chunks":    {chunked + "3\r\nabc\r\n", false, func(p *peer) { p.Close() }},
		"half an end":         {chunked + "3\r\nabc\r\n0\r\n", false, func(p *peer) { p.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			read, causes := make(chan error, 2), make(chan error, 1)
			w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
				if c.whole {
					_, err := io.ReadAll(r.Body)
					read <- err
				} else {
					io.ReadFull(r.Body, make([]byte, 1))
					read <- nil
					_, err := io.ReadAll(r.Body)
					read <- err
				}
				<-r.Context().Done()
				causes <- context.Cause(r.Context())
			}, nil)
			p := w.dial(t)
			p.send(c.said)
			if err := within(t, read); err != nil {
				t.Fatal(err)
			}
			c.disconnect(p)
			if !c.whole {
				if err := within(t, read); err == nil {
					t.Error("the read of a cut body returned no error")
				}
			}
			if err := within(t, causes); !errors.Is(err, ErrClientLeft) {
				t.Errorf("the request's context has the cause %v, want ErrClientLeft", err)
			}
		})
	}
}

// The server notices a disconnect once the handler has read the last byte of the body, even if the
// handler does not read up to io.EOF.
func TestDisconnectIsNoticedAfterTheLastByte(t *testing.T) {
	read, ended := make(chan bool), make(chan bool)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		io.ReadFull(r.Body, make([]byte, 3))
		read <- true
		<-r.Context().Done()
		ended <- true
	}, nil)
	p := w.dial(t)
	p.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
	within(t, read)
	p.Close()
	within(t, ended)
}

func TestContextEndsWithTheHandler(t *testing.T) {
	contexts := make(chan context.Context, 1)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		contexts <- r.Context()
		if r.Context().Value(http.ServerContextKey) == nil {
			t.Error("the context has no server, so httputil.ReverseProxy would not panic with http.ErrAbortHandler")
		}
	}, nil)
	p := w.dial(t)
	p.send(get)
	p.expect(200, "")
	ctx := within(t, contexts)
	within(t, ctx.Done())
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		t.Errorf("cause %v", cause)
	}
}

func TestUnreadBodyStillGetsTheAnswer(t *testing.T) {
	for name, said := range map[string]string{
		"length":        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 70000),
		"chunked":       "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
		"after a close": "POST /close HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
	} {
		t.Run(name, func(t *testing.T) {
			w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/close" {
					r.Body.Close()
					if _, err := r.Body.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
						t.Errorf("reading a closed body: %v", err)
					}
				}
				http.Error(w, "no", http.StatusRequestEntityTooLarge)
			}, nil)
			p := w.dial(t)
			p.send(said)
			if res := p.expect(413, "no\n"); !res.Close {
				t.Error("the response does not close the connection, so the client would send its next request on it")
			}
			p.CloseWrite()
			p.awaitClose()
		})
	}
}

func TestReadDeadline(t *testing.T) {
	errs := make(chan error, 1)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		flow := http.NewResponseController(w)
		if err := flow.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Error(err)
		}
		_, err := io.ReadAll(r.Body)
		errs <- err
		select { // the deadline must not end the context, not even a moment later
		case <-r.Context().Done():
			t.Error("the context ended although the client is connected")
		case <-time.After(30 * time.Millisecond):
		}
	}, nil)
	slow := w.dial(t)
	slow.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na")
	if err := within(t, errs); !isTimeout(err) {
		t.Errorf("reading a body that does not come: %v", err)
	}
	slow.expect(200, "")
	slow.awaitClose()

	whole := w.dial(t) // the deadline applies only to the body: a request without one is not affected
	for range 3 {
		whole.send(get)
		if err := within(t, errs); err != nil {
			t.Error(err)
		}
		whole.expect(200, "")
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func TestPanics(t *testing.T) {
	core, logs := observer.New(zap.ErrorLevel)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begun")
		switch r.URL.Path {
		case "/panic":
			panic("on purpose")
		case "/abort":
			panic(http.ErrAbortHandler)
		}
	}, func(s *Server) { s.Log = zap.New(core) })
	bystander := w.dial(t)
	bystander.send(get)
	bystander.expect(200, "begun")
	for i, path := range []string{"/abort", "/panic"} {
		p := w.dial(t)
		p.send("GET " + path + " HTTP/1.1\r\nhost: x\r\n\r\n")
		if got := p.awaitClose(); !strings.HasSuffix(got, "begun\r\n") {
			t.Errorf("%s: got %q", path, got)
		}
		eventually(t, "the server has closed the connection", func() bool {
			w.server.mu.Lock()
			defer w.server.mu.Unlock()
			return len(w.server.conns) == 1
		})
		if n := logs.Len(); n != i {
			t.Errorf("%s: %d panics logged", path, n)
		}
	}
	if stack, _ := logs.All()[0].ContextMap()["stack"].(string); !strings.Contains(stack, "TestPanics") {
		t.Errorf("the log has no stack that names TestPanics: %v", logs.All())
	}
	bystander.send(get)
	bystander.expect(200, "begun")
}
