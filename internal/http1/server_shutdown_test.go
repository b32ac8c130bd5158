package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// states counts the connections in each state.
func (w *testServer) states() (n [stateGone + 1]int) {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	for c := range w.server.conns {
		n[c.state.Load()]++
	}
	return n
}

func TestShutdown(t *testing.T) {
	running, goOn := make(chan bool), make(chan bool)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			running <- true
			<-goOn
		}
		io.WriteString(w, "done")
	}, nil)
	slow, idle, half, fresh := w.dial(t), w.dial(t), w.dial(t), w.dial(t)
	slow.say("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
	within(t, running)
	idle.say(get)
	idle.expect(200, "done")
	half.say(get[:10])
	eventually(t, "all have arrived", func() bool { return w.states() == [...]int{stateFresh: 1, stateActive: 2, stateIdle: 1, stateGone: 0} })

	down := make(chan error, 1)
	go func() { down <- w.server.Shutdown(context.Background()) }()
	if err := within(t, w.served); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve: %v", err)
	}
	idle.over()
	if _, err := net.Dial("unix", w.path); err == nil {
		t.Error("new connections are accepted")
	}
	fresh.say(get) // what had no time to say what it wants has it now
	if res := fresh.expect(200, "done"); !res.Close {
		t.Error("the client is not told that this is the last response")
	}
	half.say(get[10:])
	half.expect(200, "done")
	half.over()
	select {
	case err := <-down:
		t.Fatalf("Shutdown left a request alone: %v", err)
	default:
	}
	goOn <- true
	slow.expect(200, "done")
	slow.over()
	if err := within(t, down); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := w.server.Serve(&net.UnixListener{}); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve after Shutdown: %v", err)
	}
}

func TestShutdownClosesWhatSaysNothing(t *testing.T) {
	w := startServer(t, echo, nil)
	p := w.dial(t)
	eventually(t, "it has arrived", func() bool { return w.states()[stateFresh] == 1 })
	if err := w.server.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	p.over()
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
	p.say(get)
	within(t, running)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := w.server.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	select {
	case err := <-causes:
		t.Errorf("the request was ended: %v", err)
	default:
	}
	w.server.Close()
	if err := within(t, causes); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("cause %v", err)
	}
	p.over()
}

func TestShutdownWaitsForOther(t *testing.T) {
	running, goOn := make(chan bool), make(chan bool)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		running <- true
		<-goOn
	}, func(s *Server) { s.Own = func(*http.Request) bool { return false } })
	p := w.dial(t)
	p.say(get)
	within(t, running)
	down := make(chan error, 1)
	go func() { down <- w.server.Shutdown(context.Background()) }()
	within(t, w.served)
	select {
	case err := <-down:
		t.Fatalf("Shutdown left a request of Other alone: %v", err)
	default:
	}
	goOn <- true
	p.expect(200, "")
	if err := within(t, down); err != nil {
		t.Error(err)
	}
}

func TestTimeouts(t *testing.T) {
	t.Run("head", func(t *testing.T) {
		w := startServer(t, echo, func(s *Server) { s.ReadHeaderTimeout = 20 * time.Millisecond })
		p := w.dial(t)
		p.say(get[:10])
		if got := p.over(); got != "" {
			t.Errorf("got %q", got)
		}
		p = w.dial(t)
		p.over()
	})
	t.Run("second head", func(t *testing.T) {
		w := startServer(t, echo, func(s *Server) { s.ReadHeaderTimeout = 20 * time.Millisecond })
		p := w.dial(t)
		p.say(get)
		p.expect(200, "GET / 0 ")
		p.say(get[:1])
		p.over()
	})
	t.Run("idle", func(t *testing.T) {
		w := startServer(t, echo, func(s *Server) { s.IdleTimeout = 20 * time.Millisecond })
		p := w.dial(t)
		p.say(get)
		p.expect(200, "GET / 0 ")
		p.over()
	})
	t.Run("not the body", func(t *testing.T) {
		w := startServer(t, echo, func(s *Server) { s.ReadHeaderTimeout, s.IdleTimeout = 20*time.Millisecond, 20*time.Millisecond })
		p := w.dial(t)
		p.say("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na")
		time.Sleep(60 * time.Millisecond) // longer than either: the body has time all the same
		p.say("bc")
		p.expect(200, "POST /a 3 abc")
	})
}
