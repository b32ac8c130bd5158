package join

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/internal/sources"
)

const (
	// maxStrangers is how many connections may be open that have shown no certificate of a node.
	// Further ones are closed at once.
	maxStrangers = 1024
	// maxStrangersOfSource is how many of them one address may have, so that one machine does not
	// keep the nodes of others out.
	maxStrangersOfSource = maxStrangers / 4
)

// guardedListener accepts no more strangers than it may: connections that have shown no certificate
// of a node.
type guardedListener struct {
	net.Listener
	strangers *sources.Counter
}

func newGuardedListener(l net.Listener) guardedListener {
	return guardedListener{l, &sources.Counter{Most: maxStrangers, MostOfSource: maxStrangersOfSource}}
}

func (l guardedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if end := l.strangers.Begin(c); end != nil {
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

func (c *guardedConn) Close() error {
	c.known()
	return c.Conn.Close()
}

// guardedCredentials are the credentials for connections of a guardedListener.
type guardedCredentials struct {
	credentials.TransportCredentials
}

func (g guardedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := g.TransportCredentials.ServerHandshake(raw)
	guarded, ok := raw.(*guardedConn)
	if tls, _ := info.(credentials.TLSInfo); err == nil && ok && len(tls.State.VerifiedChains) > 0 {
		guarded.known()
	}
	return c, info, err
}

func (g guardedCredentials) Clone() credentials.TransportCredentials {
	return guardedCredentials{g.TransportCredentials.Clone()}
}

// receiveFirst calls receive, which waits for the first message of a call, and returns its error.
// It returns an error of its own after MessageTimeout. The caller must then end the call, which
// ends receive, and must not use the message.
func (s *Server) receiveFirst(ctx context.Context, receive func() error) error {
	received, limit := make(chan error, 1), s.config.MessageTimeout
	s.streamLoops.Go(func() { received <- receive() })
	select {
	case err := <-received:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(limit):
		return status.Errorf(codes.DeadlineExceeded, "the call has sent no message for %s", limit)
	}
}
