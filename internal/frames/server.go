package frames

import (
	"errors"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/lack"
	"github.com/sluice-gateway/sluice/internal/request"
)

const (
	// defaultPatience is the time after which Envoy gives up a request without a word.
	defaultPatience = 2 * time.Second
	// parkTime is how long a request that runs may be on no connection.
	parkTime = 5 * time.Second
	// overhead is what a frame may have besides the body: headers, or a record. Envoy lets more
	// headers pass than the greatest limit of the configuration, so that the gateway can refuse
	// them.
	overhead = 3 << 20
)

// Server serves the connections of Envoy's filters. New makes one.
type Server struct {
	*decide.Decider
	// OnEntry is called for every request that has ended, and for every one that still runs and
	// that the Server does not know. It is called concurrently for several workers, blocks its
	// worker and must be fast. nil means that nobody is told.
	OnEntry func(request.Entry)
	// OnFirst is called with the beginning of the response to the request with this x-request-id,
	// if the answer to the request has asked for it. It returns whether it wants a longer
	// beginning. nil wants none.
	OnFirst func(requestID string, begin []byte) (wantsMore bool)
	// OnVersion is called when the filter of the Envoy with this pid speaks another version of the
	// protocol. Requests that go through it fail until ext_proc is used. nil means that nobody is
	// told.
	OnVersion func(pid int, version uint32)
	// Patience is how long a request waits for a word after its body was sent.
	Patience time.Duration
	// Nameless reports whether clients do not learn which replica has answered. nil means that they
	// do.
	Nameless func() bool
	// Inlets returns the path of the unix socket where the workers of the Envoy with this pid take
	// answers. "" means that answers go where the requests come from, as nil does.
	Inlets func(pid int) string

	// running are the goroutines of the connections.
	running sync.WaitGroup
	mu      sync.Mutex
	// conns are the open connections. Guarded by mu.
	conns map[*conn]bool
	// accepted is how many connections were accepted. Guarded by mu.
	accepted uint64
	// parked are requests that run in Envoy and are on no connection, by their x-request-id.
	// Guarded by mu.
	parked map[string]*exchange
	// stopped means that no connection is accepted any more. Guarded by mu.
	stopped bool
	// inlets are connections to workers that have no use yet. Guarded by mu.
	inlets map[worker][]net.Conn
	// dialing is held by whoever makes a connection to a worker.
	dialing sync.Mutex
}

// New returns a Server that has a Decider decide.
func New(d *decide.Decider) *Server {
	return &Server{
		Decider: d, Patience: defaultPatience, conns: map[*conn]bool{}, parked: map[string]*exchange{}, inlets: map[worker][]net.Conn{},
	}
}

// flags returns the flags of each Go.
func (s *Server) flags() uint8 {
	if s.Nameless != nil && s.Nameless() {
		return flagNameless
	}
	return 0
}

// Serve serves the connections of a listener until the listener is closed, which is no error.
func (s *Server) Serve(l net.Listener) error {
	failed := func(err error) { s.Log.Warn("connection of Envoy's filter not accepted", zap.Error(err)) }
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
	c := newConn(s, socket)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		_ = socket.Close()
		return
	}
	s.accepted++
	c.number = s.accepted
	s.conns[c] = true
	r := &reader{conn: c, buffer: make([]byte, bufferSize)}
	s.running.Go(r.read)
}

// Retire has Envoy bring new requests over new connections, which the successor accepts, and those
// that are not decided as well. Call it after decide.Decider.Retire and before
// dispatch.Dispatcher.Retire. Requests that are decided stay on their connections.
func (s *Server) Retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Add(func(out []byte) []byte { return appendBare(out, kindBye, 0) })
		go c.Flush()
	}
}

// Stop closes all connections, and waits for their goroutines.
func (s *Server) Stop() {
	s.mu.Lock()
	s.stopped = true
	for c := range s.conns {
		_ = c.socket.Close()
	}
	for _, kept := range s.inlets {
		closeAll(kept)
	}
	clear(s.inlets)
	s.mu.Unlock()
	s.running.Wait()
	s.mu.Lock()
	parked := s.parked
	s.parked = map[string]*exchange{}
	s.mu.Unlock()
	for _, x := range parked {
		x.end()
	}
}

// maxPayload is the greatest length of a payload.
func (s *Server) maxPayload() int64 { return s.MaxBody + overhead }

// replace tells whose connection it is. It breaks an earlier one of the same worker after its last
// frames, because the worker does not use it any more. So its requests are known as parked before
// the worker tells them again. A later one stays: the worker uses it, although this Hello is
// handled after its own.
func (s *Server) replace(by *conn, of worker) {
	s.mu.Lock()
	by.worker = of
	var before []*conn
	for c := range s.conns {
		if c.worker == of && c.number < by.number {
			before = append(before, c)
		}
	}
	s.mu.Unlock()
	for _, c := range before {
		c.drain()
	}
}

// forget removes a connection that has ended.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if !s.hasLocked(c.worker.instance) {
		s.dropInletsLocked(c.worker.instance)
	}
}

// park keeps a request whose connection has broken until Envoy tells it again. Envoy has given up a
// request without an answer.
func (s *Server) park(x *exchange) {
	id := x.Head().ID()
	if !x.runs() || id == "" {
		x.end()
		return
	}
	s.mu.Lock()
	before := s.parked[id]
	s.parked[id] = x
	s.mu.Unlock()
	if before != nil {
		before.end()
	}
	time.AfterFunc(parkTime, func() {
		s.mu.Lock()
		expired := s.parked[id] == x
		if expired {
			delete(s.parked, id)
		}
		s.mu.Unlock()
		if expired {
			x.lose()
		}
	})
}

// unpark returns the parked request with this x-request-id, or nil.
func (s *Server) unpark(id string) *exchange {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.parked[id]
	delete(s.parked, id)
	return x
}
