package http1

import (
	"errors"
	"net"
	"net/http"
	"sync"

	"go.uber.org/zap"
)

// handoverListener is the listener of Server.Other. It accepts connections that the Server has
// accepted before.
type handoverListener struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newHandover(addr net.Addr) *handoverListener {
	return &handoverListener{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

// serve has Other serve the connection, or closes it if Other does not accept any more. On a nil
// handoverListener it closes the connection.
func (h *handoverListener) serve(c net.Conn) {
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

func (h *handoverListener) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handoverListener) Close() error {
	h.stop()
	return nil
}

func (h *handoverListener) stop() { h.once.Do(func() { close(h.done) }) }

func (h *handoverListener) Addr() net.Addr { return h.addr }

// serveOther runs Other until the listener is closed.
func (s *Server) serveOther(h *handoverListener) {
	defer h.stop()
	if err := s.Other.Serve(h); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		s.log().Error("serving upgrades and other rare requests failed", zap.Error(err))
	}
}

// replayConn is a connection of which something was read before. Reading returns that first.
// net/http reads from one goroutine at a time.
type replayConn struct {
	net.Conn
	closeWrite func() error
	replay     []byte
}

func (r *replayConn) Read(b []byte) (int, error) {
	if len(r.replay) == 0 {
		return r.Conn.Read(b)
	}
	n := copy(b, r.replay)
	if r.replay = r.replay[n:]; len(r.replay) == 0 {
		r.replay = nil
	}
	return n, nil
}

// CloseWrite closes the sending half. net/http looks for it when it answers a request that it has
// not read to its end.
func (r *replayConn) CloseWrite() error { return r.closeWrite() }
