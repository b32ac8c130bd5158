package h1server

import (
	"errors"
	"net"
	"net/http"
	"sync"

	"go.uber.org/zap"
)

// handover is the listener of Server.Other: what it accepts are connections that were accepted before.
type handover struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newHandover(addr net.Addr) *handover {
	return &handover{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

// give has Other serve the connection, or closes it if nobody accepts any more. A nil handover is one whom nobody ever listened to.
func (h *handover) give(c net.Conn) {
	if h == nil {
		c.Close()
		return
	}
	select {
	case h.conns <- c:
	case <-h.done:
		c.Close()
	}
}

// Accept implements net.Listener.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handover) Close() error {
	h.stop()
	return nil
}

func (h *handover) stop() { h.once.Do(func() { close(h.done) }) }

// Addr implements net.Listener.
func (h *handover) Addr() net.Addr { return h.addr }

func (s *Server) serveOther(h *handover) {
	defer h.stop()
	if err := s.Other.Serve(h); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		s.log().Error("nobody serves upgrades and other rare requests any more", zap.Error(err))
	}
}

// replayed is a connection of which something was read before: that comes first again. net/http reads from one goroutine at a time.
type replayed struct {
	net.Conn
	closeWrite func() error
	rest       []byte
}

// Read implements net.Conn.
func (r *replayed) Read(b []byte) (int, error) {
	if len(r.rest) == 0 {
		return r.Conn.Read(b)
	}
	n := copy(b, r.rest)
	if r.rest = r.rest[n:]; len(r.rest) == 0 {
		r.rest = nil
	}
	return n, nil
}

// CloseWrite is what net/http looks for when it answers a request that it has not read to its end.
func (r *replayed) CloseWrite() error { return r.closeWrite() }
