// Package h1server is the HTTP/1.1 server of the relay's unix socket. Its one peer is Envoy, which opens a connection for each stream at a time, and what
// it is there for is that a stream which lasts minutes holds little and that an event costs one system call: a connection keeps neither the
// request nor a buffer once the body is read, and a piece of a body goes from the caller's memory to the socket (Writer.TryWrite).
//
// What is rare is not here: upgrades, HTTP/1.0, CONNECT, Expect, malformed requests and whatever Server.Lean does not want are
// handed to a complete net/http server with every byte that was read. Neither trailers of responses nor sniffing of content types are here, and
// responses have no Date: Envoy adds one.
package h1server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// Defaults of Server.
const (
	DefaultReadHeaderTimeout = time.Minute
	DefaultIdleTimeout       = 2 * time.Minute
	DefaultMaxHeaderBytes    = http.DefaultMaxHeaderBytes // 1 MiB
)

// freshWithin is how long Shutdown leaves a connection alone that has said nothing yet: Envoy opens one because it has a request.
const freshWithin = time.Second

// ErrClientLeft is the cause (context.Cause) of a request's context that ended because the peer closed the connection, or its half of it.
var ErrClientLeft = errors.New("h1server: the client has left")

// Server serves HTTP/1.1. Its fields must not change once Serve was called.
type Server struct {
	// Handler answers requests for which Lean says true, on this server's own connections. Its ResponseWriter is a *Writer. The context of a request ends
	// when the peer leaves, which is noticed from the moment on that the body was read to io.EOF, or when the Handler returns.
	Handler http.Handler
	// Lean says that a request is one for Handler. Every other request's connection is handed, with that request not yet answered, to Other.
	// It must not read the body. nil: all are.
	Lean func(*http.Request) bool
	// Other is a complete net/http server. Its connections end with their request: Serve switches its keep-alives off. nil: what is not for Handler is cut
	// off unanswered.
	Other *http.Server
	// Log gets panics of Handler, and what is wrong with a listener. nil: nothing is logged.
	Log *zap.Logger
	// ReadHeaderTimeout is how long a request's head may take, from its first byte, or from the connection's beginning if that is the first request.
	// 0: DefaultReadHeaderTimeout.
	ReadHeaderTimeout time.Duration
	// IdleTimeout is how long a connection may be without a request. 0: DefaultIdleTimeout.
	IdleTimeout time.Duration
	// MaxHeaderBytes bounds a request's head, give or take 4 KiB. A longer one is for Other, whose own bound should not be higher: it answers 431.
	// 0: DefaultMaxHeaderBytes.
	MaxHeaderBytes int

	closing atomic.Bool

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	handed    *handover       // where Other accepts; nil until Serve
	base      context.Context // of all requests; nil until Serve
	drained   chan struct{}   // closed when, after stop, there are no connections; nil until then
}

// Serve accepts connections until Shutdown or Close, and returns http.ErrServerClosed then, with the running requests still running. It closes the listener.
// If it returns another error, Close is still to be called, which ends what Other does.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	if !s.begin(l) {
		return http.ErrServerClosed
	}
	defer s.forget(l)
	var pause time.Duration
	for {
		rwc, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			s.take(rwc)
		case s.closing.Load():
			return http.ErrServerClosed
		case !passing(err):
			return err
		default:
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.log().Warn("no connection could be accepted", zap.Duration("next_try", pause), zap.Error(err))
			time.Sleep(pause)
		}
	}
}

// passing says that accepting may succeed later.
func passing(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (s *Server) log() *zap.Logger {
	if s.Log == nil {
		return zap.NewNop()
	}
	return s.Log
}

// begin says whether the listener may be served, and has Other serve what will be handed over.
func (s *Server) begin(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return false
	}
	if s.base == nil {
		// httputil.ReverseProxy goes by this key when it decides whether an answer that breaks off may be cut off.
		s.base = context.WithValue(context.Background(), http.ServerContextKey, s.Other)
		s.listeners, s.conns = map[net.Listener]struct{}{}, map[*conn]struct{}{}
		if s.Other != nil {
			s.handed = newHandover(l.Addr())
			s.Other.SetKeepAlivesEnabled(false)
			go s.serveOther(s.handed)
		}
	}
	s.listeners[l] = struct{}{}
	return true
}

func (s *Server) forget(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
}

// take serves a connection on a goroutine of its own.
func (s *Server) take(rwc net.Conn) {
	sock, ok := rwc.(socket)
	if !ok { // no file descriptor behind it: not ours
		s.handed.give(rwc)
		return
	}
	c, err := newConn(s, sock)
	if err != nil {
		rwc.Close()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		rwc.Close()
		return
	}
	s.conns[c] = struct{}{}
	go c.serve()
}

// release forgets a connection that is closed or handed over.
func (s *Server) release(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if s.drained != nil && len(s.conns) == 0 {
		close(s.drained)
	}
}

// Shutdown closes the listeners and the idle connections, has Other do the same, and waits for the running requests: for those whose head is half
// read, too. It returns ctx's error when they take longer, and leaves them running. Hijacked connections are not waited for.
func (s *Server) Shutdown(ctx context.Context) error {
	drained := s.stop()
	other := make(chan error, 1)
	go func() {
		if s.Other != nil {
			other <- s.Other.Shutdown(ctx)
		}
		close(other)
	}()
	s.closeConns(stateIdle)
	fresh := time.NewTimer(freshWithin)
	defer fresh.Stop()
	for {
		select {
		case <-drained:
			return <-other
		case <-fresh.C:
			s.closeConns(stateFresh)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close cuts everything off but hijacked connections, and does not wait for the handlers.
func (s *Server) Close() error {
	s.stop()
	s.closeConns(stateFresh, stateActive, stateIdle)
	if s.Other != nil {
		return s.Other.Close()
	}
	return nil
}

// stop ends accepting. What it returns is closed when the last connection has gone.
func (s *Server) stop() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing.Store(true)
	for l := range s.listeners {
		l.Close()
	}
	if s.handed != nil {
		s.handed.stop()
	}
	if s.drained == nil {
		s.drained = make(chan struct{})
		if len(s.conns) == 0 {
			close(s.drained)
		}
	}
	return s.drained
}

// closeConns closes the connections that are in one of these states.
func (s *Server) closeConns(states ...int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		for _, state := range states {
			if c.state.CompareAndSwap(state, stateGone) {
				c.rwc.Close()
			}
		}
	}
}
