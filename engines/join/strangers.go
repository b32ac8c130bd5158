package join

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

const (
	// maxStrangers is how many connections may be open that have shown no certificate of a node.
	// Further ones are closed at once.
	maxStrangers = 1024
	// maxStrangersOfSource is how many of them one address may have, so that one machine does not
	// keep the nodes of others out.
	maxStrangersOfSource = maxStrangers / 4
)

// strangers counts the connections that have shown no certificate of a node.
type strangers struct {
	mu sync.Mutex
	// total is the sum of bySource, which has the addresses that have any. Guarded by mu.
	total    int
	bySource map[netip.Addr]int
}

// begin counts a connection and returns what ends that, which may be called repeatedly. It returns
// nil if there are too many.
func (s *strangers) begin(from netip.Addr) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total == maxStrangers || s.bySource[from] == maxStrangersOfSource {
		return nil
	}
	s.total++
	s.bySource[from]++
	return sync.OnceFunc(func() { s.end(from) })
}

func (s *strangers) end(from netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.bySource[from]--; s.bySource[from] == 0 {
		delete(s.bySource, from)
	}
}

// guardedListener accepts no more strangers than it may.
type guardedListener struct {
	net.Listener
	strangers *strangers
}

func newGuardedListener(l net.Listener) guardedListener {
	return guardedListener{l, &strangers{bySource: map[netip.Addr]int{}}}
}

// Accept implements net.Listener.
func (l guardedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var from netip.Addr // the zero value stands for all addresses that cannot be read
		if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			from = a.AddrPort().Addr().Unmap()
		}
		if end := l.strangers.begin(from); end != nil {
			return &guardedConn{c, end}, nil
		}
		_ = c.Close() // the peer learns nothing more
	}
}

// guardedConn is a connection that counts as one of a stranger until known is called.
type guardedConn struct {
	net.Conn
	known func()
}

// Close implements net.Conn.
func (c *guardedConn) Close() error {
	c.known()
	return c.Conn.Close()
}

// guardedCredentials are the credentials for connections of a guardedListener.
type guardedCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (g guardedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := g.TransportCredentials.ServerHandshake(raw)
	guarded, ok := raw.(*guardedConn)
	if tls, _ := info.(credentials.TLSInfo); err == nil && ok && len(tls.State.VerifiedChains) > 0 {
		guarded.known()
	}
	return c, info, err
}

// Clone implements credentials.TransportCredentials.
func (g guardedCredentials) Clone() credentials.TransportCredentials {
	return guardedCredentials{g.TransportCredentials.Clone()}
}

// receiveFirst calls receive, which waits for the first message of a call, and returns its error.
// It returns an error of its own after MessageTimeout. The caller must then end the call, which
// ends receive, and must not use the message.
func (s *Server) receiveFirst(ctx context.Context, receive func() error) error {
	received, limit := make(chan error, 1), s.config.MessageTimeout
	s.streamLoops.Go(func() { received <- receive() })
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case err := <-received:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
		return status.Errorf(codes.DeadlineExceeded, "the call has sent no message for %s", limit)
	}
}
