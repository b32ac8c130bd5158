package frames

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/nonblock"
)

const (
	// maxDials is how many connections are made to find a worker. Envoy chooses which worker has a
	// connection, and gives each one to a worker that has the fewest.
	maxDials = 1024
	// readyTime bounds how long a worker may take to accept a connection.
	readyTime = 5 * time.Second
	// maxRefusals is how many connections may be refused before a worker counts as one that takes
	// none. A new Envoy listens a moment after the worker has asked. The pauses between them
	// double, from firstPause.
	maxRefusals = 8
	firstPause  = 10 * time.Millisecond
	// soonest and latest bound the time until a worker that took no connection is asked for one
	// again. Each time doubles it.
	soonest = 500 * time.Millisecond
	latest  = time.Minute
)

var (
	// errNotReady means that what came first on a connection to a worker is not Ready.
	errNotReady = errors.New("the first frame is not Ready")
	// errNoWorker means that Envoy gives a worker no connection, however many are made.
	errNoWorker = fmt.Errorf("the worker accepts none of %d connections", maxDials)
)

// join has the answers for a connection go to its worker directly, if the worker takes such
// connections. It returns when that connection ends.
func (s *Server) join(c *conn, of worker, number uint64) {
	inlet := s.awaitInlet(c, of)
	if inlet == nil {
		return
	}
	inlet = nonblock.ConnOf(inlet) // each answer that the worker reads would wake a thread
	if !c.redirect(inlet, number) {
		_ = inlet.Close()
		return
	}
	_, _ = inlet.Read(make([]byte, 1)) // the worker sends nothing
	c.drain()
}

// awaitInlet returns a connection to the worker of c. A worker of a busy machine may take one late,
// so this tries again until c ends or the worker has no use for it any more. It returns nil then.
func (s *Server) awaitInlet(c *conn, of worker) net.Conn {
	for pause := soonest; ; pause = min(2*pause, latest) {
		inlet, err := s.inletOf(c, of)
		if err == nil || c.life.Err() != nil || errors.Is(err, net.ErrClosed) {
			return inlet
		}
		again := !errors.Is(err, errNoWorker)
		if pause == soonest {
			s.Log.Warn("answers to Envoy's filter go through its threads, which takes more CPU",
				zap.Uint32("worker", of.index), zap.Bool("tries_again", again), zap.Error(err))
		}
		if !again || !c.sleep(pause) {
			return nil
		}
	}
}

// sleep waits. It returns false if the connection has ended.
func (c *conn) sleep(pause time.Duration) bool {
	select {
	case <-c.life.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// redirect has answers written to an inlet, after a Join with the number of the connection. It
// returns false if the connection has ended.
func (c *conn) redirect(inlet net.Conn, number uint64) bool {
	c.mu.Lock()
	if c.Broken {
		c.mu.Unlock()
		return false
	}
	c.inlet = inlet
	c.Redirect(inlet, appendJoin(nil, number))
	c.mu.Unlock()
	c.Flush()
	return true
}

// inletOf returns a connection to the worker of c. Connections to other workers that it makes
// meanwhile are kept for them: if they were closed, Envoy would choose the same worker again. The
// error is net.ErrClosed if the worker has no use for it any more.
func (s *Server) inletOf(c *conn, of worker) (net.Conn, error) {
	s.dialing.Lock()
	defer s.dialing.Unlock()
	for range maxDials {
		if inlet := s.spareInlet(of); inlet != nil {
			return inlet, nil
		}
		if c.life.Err() != nil {
			return nil, net.ErrClosed
		}
		inlet, to, err := s.dialInlet(c)
		if err != nil {
			return nil, err
		}
		if !s.keepInlet(inlet, to) || to.instance != of.instance {
			return nil, net.ErrClosed
		}
	}
	return nil, errNoWorker
}

// dialInlet connects to a worker, unless c ends before.
func (s *Server) dialInlet(c *conn) (net.Conn, worker, error) {
	inlet, err := s.dialPatiently(c)
	if err != nil {
		return nil, worker{}, err
	}
	defer context.AfterFunc(c.life, func() { _ = inlet.Close() })()
	to, err := readReady(inlet)
	if err != nil {
		_ = inlet.Close()
		return nil, worker{}, err
	}
	return inlet, to, nil
}

// dialPatiently connects to Envoy's listener. It tries again where nobody listens yet.
func (s *Server) dialPatiently(c *conn) (net.Conn, error) {
	dialer := net.Dialer{Timeout: readyTime}
	for pause := firstPause; ; pause *= 2 {
		inlet, err := dialer.DialContext(c.life, "unix", s.Inlets(c.pid))
		if err == nil || pause == firstPause<<maxRefusals {
			return inlet, err
		}
		if !c.sleep(pause) {
			return nil, net.ErrClosed
		}
	}
}

// readReady reads the first frame of a worker.
func readReady(c net.Conn) (worker, error) {
	var b [headSize + 12]byte
	if err := c.SetReadDeadline(time.Now().Add(readyTime)); err != nil {
		return worker{}, err
	}
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return worker{}, err
	}
	if h := readHead(b[:]); h.kind != kindReady || h.length != 12 {
		return worker{}, errNotReady
	}
	p := payload{rest: b[headSize:]}
	return worker{index: p.uint32(), instance: p.uint64()}, c.SetReadDeadline(time.Time{})
}

// keepInlet keeps a connection for its worker, and closes those to the workers of an Envoy that has
// ended. It returns false if the server has stopped.
func (s *Server) keepInlet(c net.Conn, to worker) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		_ = c.Close()
		return false
	}
	for other := range s.inlets {
		if other.instance != to.instance && !s.hasLocked(other.instance) {
			s.dropInletsLocked(other.instance)
		}
	}
	s.inlets[to] = append(s.inlets[to], c)
	return true
}

// dropInletsLocked closes what was kept for the workers of a filter. s.mu is held.
func (s *Server) dropInletsLocked(instance uint64) {
	for other, kept := range s.inlets {
		if other.instance == instance {
			closeAll(kept)
			delete(s.inlets, other)
		}
	}
}

// hasLocked reports whether a filter with this number has a connection. s.mu is held.
func (s *Server) hasLocked(instance uint64) bool {
	for c := range s.conns {
		if c.worker.instance == instance {
			return true
		}
	}
	return false
}

// spareInlet returns a connection that was kept for a worker, or nil.
func (s *Server) spareInlet(of worker) (found net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept := s.inlets[of]; len(kept) > 0 {
		found, s.inlets[of] = kept[0], kept[1:]
	}
	return found
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}
