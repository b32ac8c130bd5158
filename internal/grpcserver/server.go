package grpcserver

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/peer"

	"github.com/sluice-gateway/sluice/internal/lack"
	"github.com/sluice-gateway/sluice/internal/nonblock"
	"github.com/sluice-gateway/sluice/internal/outgoing"
)

// Handler handles one stream. Its methods are called one after the other.
type Handler interface {
	// Message handles a message. The content belongs to the Handler until Message returns, and for
	// good if Message has called Stream.Block.
	Message(content []byte)
	// HalfClose is called when the client will send no further message.
	HalfClose()
	// End is called once, as the last method, when the stream has ended for any reason.
	End()
}

// Method opens the Handler of a stream. header returns the value of a header that the client has
// sent, or "". It must not be called later.
type Method func(s *Stream, header func(name string) string) Handler

// Server serves connections. Its fields must not change after the first call of Serve.
type Server struct {
	// Methods are the methods that have a Handler, by the path of their requests.
	Methods map[string]Method
	// Other serves all other methods. nil means that they are unknown.
	Other http.Handler
	// MaxMessage is the greatest size of a message to a Handler, in bytes. 0 means 4 MiB.
	MaxMessage int
	// Log is told of connections that break. nil means nobody is.
	Log *zap.Logger

	buffers buffers
	// running are the goroutines of the connections and of the streams of Other.
	running sync.WaitGroup
	mu      sync.Mutex
	// listeners and conns are those that are open. Guarded by mu.
	listeners map[net.Listener]bool
	conns     map[*conn]bool
	// draining means that no connection is accepted, and stopped that none is kept. Guarded by mu.
	draining, stopped bool
}

const (
	// prefaceTimeout is how long a client may take for its first bytes.
	prefaceTimeout = time.Minute
	// defaultMaxMessage is MaxMessage if that is 0.
	defaultMaxMessage = 4 << 20
)

// Serve serves the connections of a listener until the listener is closed, which is no error.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.draining || s.stopped {
		s.mu.Unlock()
		return l.Close()
	}
	if s.listeners == nil {
		s.listeners, s.conns = map[net.Listener]bool{}, map[*conn]bool{}
	}
	s.listeners[l] = true
	s.mu.Unlock()
	failed := func(err error) { s.log().Warn("connection of Envoy not accepted", zap.Error(err)) }
	for {
		socket, err := lack.Accept(l.Accept, failed)
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return err
		}
		s.start(socket)
	}
}

// start serves one connection.
func (s *Server) start(socket net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining || s.stopped {
		_ = socket.Close()
		return
	}
	c := newConn(s, socket)
	s.conns[c] = true
	r := &reader{conn: c, input: &input{buffer: make([]byte, bufferSize)}}
	s.running.Go(r.run)
}

// Drain closes the listeners and has clients open no further stream on their connections. A
// connection is closed after its last stream has ended. Drain does not wait for that.
func (s *Server) Drain() {
	for _, c := range s.close(&s.draining) {
		c.drain()
	}
}

// Stop closes the listeners and all connections, and waits until every Handler has ended.
func (s *Server) Stop() {
	for _, c := range s.close(&s.stopped) {
		_ = c.socket.Close()
	}
	s.running.Wait()
}

// close sets a flag, closes the listeners, and returns the connections.
func (s *Server) close(flag *bool) []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	*flag = true
	for l := range s.listeners {
		_ = l.Close()
	}
	return slices.Collect(maps.Keys(s.conns))
}

// forget removes a connection that has ended.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// maxMessage returns the greatest size of a message.
func (s *Server) maxMessage() int {
	if s.MaxMessage == 0 {
		return defaultMaxMessage
	}
	return s.MaxMessage
}

func (s *Server) log() *zap.Logger {
	if s.Log == nil {
		return zap.NewNop()
	}
	return s.Log
}

type conn struct {
	server *Server
	socket net.Conn
	// pid is the process of the client; 0: not known.
	pid int
	// remote means that the client is on another host, and may vanish with it or freeze.
	remote bool
	// incoming reads the socket. Only the reader uses it.
	incoming io.Reader
	// base has the addresses of the connection, as package peer of grpc-go tells them.
	base context.Context

	mu sync.Mutex
	// room is signalled when a stream of Other may be able to send more, and when it has ended.
	room *sync.Cond
	// streams are the open streams, by their ids. Guarded by mu.
	streams map[uint32]*Stream
	// Queue is the write side. Guarded by mu.
	outgoing.Queue
	// window is what may be sent on the connection, streamWindow what may be sent on a new stream,
	// and maxFrame the greatest payload that the client accepts. Guarded by mu.
	window, streamWindow int64
	maxFrame             int
	// shrink means that the next headers begin with an update of the size of HPACK's table. Guarded
	// by mu.
	shrink bool
	// waiting are streams that have more to send than the windows allow. Guarded by mu.
	waiting map[*Stream]bool
	// unsent is how many bytes the streams have to send. Guarded by mu.
	unsent int
	// last is the greatest id of a stream. Guarded by mu.
	last uint32
	// drained means that the client opens no further stream. Guarded by mu.
	drained bool
	// overdue closes a drained connection whose client lets nothing pass. nil means that there is
	// no such wait yet. Guarded by mu.
	overdue *time.Timer
	// closing means that nothing is sent any more, and that what comes is discarded.
	closing atomic.Bool
}

func newConn(s *Server, socket net.Conn) *conn {
	c := &conn{server: s, socket: socket, pid: nonblock.PeerPID(socket), incoming: nonblock.ReaderOf(socket),
		streams: map[uint32]*Stream{}, waiting: map[*Stream]bool{}, window: defaultWindow, streamWindow: defaultWindow, maxFrame: minFrame}
	c.remote = socket.RemoteAddr().Network() == "tcp"
	c.room = sync.NewCond(&c.mu)
	c.base = peer.NewContext(context.Background(), &peer.Peer{Addr: socket.RemoteAddr(), LocalAddr: socket.LocalAddr()})
	c.Queue = outgoing.New(&c.mu, socket, maxQueue)
	c.Out = appendSettings(nil)
	c.Out = appendNumber(c.Out, http2.FrameWindowUpdate, 0, connWindow-defaultWindow)
	return c
}

// drainPing is the content of the PING that tells when a client knows of a GOAWAY.
const drainPing = "draining"

// drain has the client open no further stream.
func (c *conn) drain() {
	_ = c.Add(func(out []byte) []byte {
		out = appendGoAway(out, maxWindow, http2.ErrCodeNo, "")
		out = appendFrameHead(out, frameHead{8, http2.FramePing, 0, 0})
		return append(out, drainPing...)
	})
	go c.flush()
}

const (
	// unsentTime is how long a drained connection stays open for what the client's windows hold
	// back, when nothing else is left of its streams.
	unsentTime = 10 * time.Second
	// closeTime is how long a client may take to close a connection on which nothing more comes.
	closeTime = time.Second
)

// closeIfDrained closes a drained connection on which everything is sent. It closes the write side
// first, and the reader discards what still comes. A socket of TCP that is closed before it has
// read everything has the client lose what it has not read.
func (c *conn) closeIfDrained() {
	c.mu.Lock()
	over := c.drained && !c.Broken && len(c.streams) == 0 && c.Idle()
	if over {
		c.Broken = true
		c.closing.Store(true)
	} else if c.drained && c.overdue == nil && c.onlyUnsentLocked() {
		c.overdue = time.AfterFunc(unsentTime, func() { _ = c.socket.Close() }) // the reader sees it
	}
	c.mu.Unlock()
	if !over {
		return
	}
	half, ok := c.socket.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.socket.SetReadDeadline(time.Now().Add(closeTime)) != nil {
		_ = c.socket.Close()
	}
}

// onlyUnsentLocked reports whether all streams have ended but for what they still have to send. The
// lock is held.
func (c *conn) onlyUnsentLocked() bool {
	for _, s := range c.streams {
		if !s.over {
			return false
		}
	}
	return len(c.streams) > 0
}
