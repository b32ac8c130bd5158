package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// states counts the connections by state.
func (w *testServer) states() (n [stateGone + 1]int) {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	for c := range w.server.conns {
		n[c.state.Load()]++
	}
	return n
}

func TestShutdown(t *testing.T) {
	running, proceed := make(chan bool), make(chan bool)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			running <- true
			<-proceed
		}
		io.WriteString(w, "done")
	}, nil)
	slow, idle, half, fresh := w.dial(t), w.dial(t), w.dial(t), w.dial(t)
	slow.send("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
	within(t, running)
	idle.send(get)
	idle.expect(200, "done")
	half.send(get[:10])
	eventually(t, "the server knows all connections", func() bool { return w.states() == [...]int{stateFresh: 1, stateActive: 2, stateIdle: 1, stateGone: 0} })

	down := make(chan error, 1)
	go func() { down <- w.server.Shutdown(context.Background()) }()
	if err := within(t, w.served); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve: %v", err)
	}
	idle.awaitClose()
	if _, err := net.Dial("unix", w.path); err == nil {
		t.Error("new connections are accepted")
	}
	fresh.send(get) // a new connection may still send its first request
	if res := fresh.expect(200, "done"); !res.Close {
		t.Error("the client is not told that this is the last response")
	}
	half.send(get[10:])
	half.expect(200, "done")
	half.awaitClose()
	select {
	case err := <-down:
		t.Fatalf("Shutdown returned while a request runs: %v", err)
	default:
	}
	proceed <- true
	slow.expect(200, "done")
	slow.awaitClose()
	if err := within(t, down); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := w.server.Serve(&net.UnixListener{}); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve after Shutdown: %v", err)
	}
}

func TestShutdownClosesSilentConnections(t *testing.T) {
	w := startServer(t, echo, nil)
	p := w.dial(t)
	eventually(t, "the server knows the connection", func() bool { return w.states()[stateFresh] == 1 })
	if err := w.server.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	p.awaitClose()
}

func TestShutdownGivesUp(t *testing.T) {
	running := make(chan bool)
	causes := make(chan error, 1)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		running <- true
		<-r.Context().Done()
		causes <- context.Cause(r.Context())
	}, nil)
	p := w.dial(t)
	p.send(get)
	within(t, running)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := w.server.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	select {
	case err := <-causes:
		t.Errorf("Shutdown has cancelled the request: %v", err)
	default:
	}
	w.server.Close()
	if err := within(t, causes); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("the request's context has the cause %v, want http.ErrServerClosed", err)
	}
	p.awaitClose()
}

func TestShutdownWaitsForOther(t *testing.T) {
	running, proceed := make(chan bool), make(chan bool)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		running <- true
		<-proceed
	}, func(s *Server) { s.Own = func(*http.Request) bool { return false } })
	p := w.dial(t)
	p.send(get)
	within(t, running)
	down := make(chan error, 1)
	go func() { down <- w.server.Shutdown(context.Background()) }()
	within(t, w.served)
	select {
	case err := <-down:
		t.Fatalf("Shutdown returned while Other serves a request: %v", err)
	default:
	}
	proceed <- true
	p.expect(200, "")
	if err := within(t, down); err != nil {
		t.Error(err)
	}
}

func TestTimeouts(t *testing.T) {
	t.Run("head", func(t *testing.T) {
		w := startServer(t, echo, func(s *Server) { s.ReadHeaderTimeout = 20 * time.Millisecond })
		p := w.dial(t)
		_, _ = io.WriteString(p.UnixConn, get[:10]) // on a busy machine it comes too late
		if got := p.awaitClose(); got != "" {
			t.Errorf("got %q", got)
		}
		p = w.dial(t)
		p.awaitClose()
	})
	t.Run("second head", func(t *testing.T) {
		w := startServer(t, echo, func(s *Server) { s.ReadHeaderTimeout = 20 * time.Millisecond })
		p := w.inTime(t, get)
		p.expect(200, "GET / 0 ")
		p.send(get[:1])
		p.awaitClose()
	})
	t.Run("idle", func(t *testing.T) {
		w := startServer(t, echo, func(s *Server) { s.IdleTimeout = 20 * time.Millisecond })
		p := w.dial(t)
		p.send(get)
		p.expect(200, "GET / 0 ")
		p.awaitClose()
	})
	t.Run("not the body", func(t *testing.T) {
		var head atomic.Value // the path of the last request whose head has come
		w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
			head.Store(r.URL.Path)
			echo(w, r)
		}, func(s *Server) { s.ReadHeaderTimeout, s.IdleTimeout = 20*time.Millisecond, 20*time.Millisecond })
		var p *peer
		path := ""
		eventually(t, "a head comes in time", func() bool { // on a busy machine some are too late
			p, path = w.dial(t), path+"/a"
			_, _ = io.WriteString(p.UnixConn, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na")
			time.Sleep(60 * time.Millisecond) // longer than both timeouts, which do not apply to the body
			return head.Load() == path
		})
		p.send("bc")
		p.expect(200, "POST "+path+" 3 abc")
	})
}

// TestX20_StopAcceptingClosesNothingUnsaid: a response whose head has left before StopAccepting
// does not end its connection, because the peer may use that already. The next one says that it
// does.
func TestX20_StopAcceptingClosesNothingUnsaid(t *testing.T) {
	begun, proceed := make(chan bool), make(chan bool)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/headless" {
			begun <- true
			<-proceed
		}
		io.WriteString(w, "done")
		if r.URL.Path == "/slow" {
			http.NewResponseController(w).Flush()
			begun <- true
			<-proceed
		}
	}, nil)
	slow, headless := w.dial(t), w.dial(t)
	slow.send("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
	within(t, begun)
	headless.send("GET /headless HTTP/1.1\r\nhost: x\r\n\r\n")
	within(t, begun)
	w.server.StopAccepting()
	if conn, err := net.Dial("unix", w.path); err == nil {
		conn.Close()
		t.Error("a connection is accepted")
	}
	close(proceed)
	if res := slow.expect(200, "done"); res.Close {
		t.Error("the head left before the server stopped accepting")
	}
	slow.send(get)
	if res := slow.expect(200, "done"); !res.Close {
		t.Error("the peer is not told that this is the last response")
	}
	slow.awaitClose()
	if res := headless.expect(200, "done"); !res.Close {
		t.Error("the peer is not told, although the head had not left")
	}
	headless.awaitClose()
}
