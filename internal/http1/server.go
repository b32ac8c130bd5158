package http1

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/lack"
	"github.com/sluice-gateway/sluice/internal/nonblock"
)

// Defaults of Server.
const (
	DefaultReadHeaderTimeout = time.Minute
	DefaultIdleTimeout       = 2 * time.Minute
	DefaultMaxHeaderBytes    = http.DefaultMaxHeaderBytes // 1 MiB
)

// freshGrace is how long Shutdown spares a connection on which nothing has come yet: Envoy opens a
// connection when it has a request.
const freshGrace = time.Second

// ErrClientLeft is the cause (context.Cause) of a request's context that ended because the peer
// closed the connection or its sending half.
var ErrClientLeft = errors.New("http1: the client closed the connection")

// Server serves HTTP/1.1 on a unix socket or TCP. Its fields must not change after Serve was
// called.
type Server struct {
	// Handler serves the requests for which Own returns true. Its http.ResponseWriter is a
	// *ResponseWriter. The context of a request ends when the handler returns, or when the peer
	// closes the connection. The Server notices that from the moment on at which the body was read
	// to io.EOF.
	Handler http.Handler
	// Own says whether Handler serves a request; nil means that it serves all. Own must not read
	// the body. The connection of any other request is handed to Other, together with that request.
	Own func(*http.Request) bool
	// Other is a complete net/http server. Serve switches its keep-alives off, so that its
	// connections end with their request. When Other is nil, a request that Handler cannot serve is
	// cut off without a response.
	Other *http.Server
	// Log receives panics of Handler and faults of listeners; nil means no log.
	Log *zap.Logger
	// ReadHeaderTimeout bounds the time for the head of a request. It counts from the first byte of
	// the head, or for the first request from the opening of the connection. 0 means
	// DefaultReadHeaderTimeout.
	ReadHeaderTimeout time.Duration
	// IdleTimeout is how long a connection may be without a request; 0 means DefaultIdleTimeout.
	IdleTimeout time.Duration
	// MaxHeaderBytes bounds the head of a request, with a tolerance of 4 KiB; 0 means
	// DefaultMaxHeaderBytes. A longer head goes to Other, whose own limit should not be higher: it
	// answers 431.
	MaxHeaderBytes int

	closing atomic.Bool
	// retired says that no connection is accepted any more, see StopAccepting.
	retired atomic.Bool

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*serverConn]struct{}
	handover  *handoverListener // Other accepts here; nil until Serve
	base      context.Context   // parent of all requests' contexts; nil until Serve
	drained   chan struct{}     // closed when no connection is left after stop; nil until stop
}

// Serve accepts connections until Shutdown or Close is called, and then returns
// http.ErrServerClosed while requests may still run. It closes the listener. After another error
// the caller must still call Close, which ends what Other does.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	if !s.registerListener(l) {
		return http.ErrServerClosed
	}
	defer s.forgetListener(l)
	failed := func(err error) { s.log().Warn("connection not accepted", zap.Error(err)) }
	for {
		rwc, err := lack.Accept(l.Accept, failed)
		switch {
		case err == nil:
			s.serveConn(rwc)
		case s.ending():
			return http.ErrServerClosed
		default:
			return err
		}
	}
}

func (s *Server) log() *zap.Logger {
	if s.Log == nil {
		return zap.NewNop()
	}
	return s.Log
}

// registerListener says whether the listener may be served. It starts Other, which serves what is
// handed over.
func (s *Server) registerListener(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending() {
		return false
	}
	if s.base == nil {
		// httputil.ReverseProxy looks for this key to decide whether it may abort a response.
		s.base = context.WithValue(context.Background(), http.ServerContextKey, s.Other)
		s.listeners, s.conns = map[net.Listener]struct{}{}, map[*serverConn]struct{}{}
		if s.Other != nil {
			s.handover = newHandover(l.Addr())
			s.Other.SetKeepAlivesEnabled(false)
			go s.serveOther(s.handover)
		}
	}
	s.listeners[l] = struct{}{}
	return true
}

func (s *Server) forgetListener(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
}

// serveConn serves a connection on a goroutine of its own.
func (s *Server) serveConn(rwc net.Conn) {
	if useStd() { // the environment asks for net/http
		s.handover.serve(rwc)
		return
	}
	rwc = nonblock.ConnOf(rwc)
	sock, ok := rwc.(socket)
	if !ok { // no file descriptor
		s.handover.serve(rwc)
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

// forgetConn removes a connection that was closed or handed over.
func (s *Server) forgetConn(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if s.drained != nil && len(s.conns) == 0 {
		close(s.drained)
	}
}

// Shutdown closes the listeners and the idle connections, has Other do the same, and waits for
// running requests, those whose head is half read included. It returns the error of ctx when they
// take longer, and leaves them running. It does not wait for hijacked connections.
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
	fresh := time.NewTimer(freshGrace)
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

// StopAccepting closes the listeners and leaves all connections open, those without a request too:
// the peer may be about to use them. A connection ends after its next response that says so in its
// head, or when the peer closes it. If it ended after a head of before, the peer's next request
// could already be on its way.
func (s *Server) StopAccepting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired.Store(true)
	for l := range s.listeners {
		l.Close()
	}
}

// Connections returns the number of open connections, without those that Other serves.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// ending reports whether a connection ends after a response whose head is written now.
func (s *Server) ending() bool { return s.closing.Load() || s.retired.Load() }

// Close closes all connections but hijacked ones. It does not wait for handlers.
func (s *Server) Close() error {
	s.stop()
	s.closeConns(stateFresh, stateActive, stateIdle)
	if s.Other != nil {
		return s.Other.Close()
	}
	return nil
}

// stop ends accepting. The channel that it returns is closed when the last connection has gone.
func (s *Server) stop() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing.Store(true)
	for l := range s.listeners {
		l.Close()
	}
	if s.handover != nil {
		s.handover.stop()
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
