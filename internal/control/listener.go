package control

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/sources"
)

const (
	// handshakeTimeout bounds the handshake of a connection. An Envoy gives up after a second.
	handshakeTimeout = 3 * time.Second
	// maxHandshakes is how many connections may be in their handshake. Later ones wait in the queue
	// of the kernel.
	maxHandshakes = 1024
	// maxOfSource is how many of them one address may have. Further ones are closed at once, so
	// that an address that sends nothing does not keep the Envoys of others waiting.
	maxOfSource = maxHandshakes / 4
)

// keepAlive finds within half a minute that the host of an Envoy has vanished. For the connections
// of xDS and of decisions package internal/grpcserver finds it sooner, and finds an Envoy that is
// frozen, too.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// services are the application protocols of the services, in the order of preference. The first
// one serves a client that names none: ext_proc of an Envoy that Sluice does not configure.
func services() []string {
	return []string{headers.ALPNControl, headers.ALPNGRPC, headers.ALPNRelay, headers.ALPNAPI}
}

// Listener accepts connections of Envoys and passes each to the service that it names.
type Listener struct {
	tcp      net.Listener
	identity *identity
	log      *zap.Logger
	services map[string]*service
	// running ends with Close.
	running    context.Context
	stop       context.CancelFunc
	handshakes sync.WaitGroup
	sources    sources.Counter
	// ended is closed when Run has returned.
	ended chan struct{}
}

// service is the listener of one service.
type service struct {
	parent *Listener
	// accepted has the connections that wait for Accept.
	accepted chan net.Conn
	closing  sync.Once
	closed   chan struct{}
}

// New serves connections of l with the certificates of f. Run must run for the services to accept
// any. It fails if the files cannot be used.
func New(l net.Listener, f Files, log *zap.Logger) (*Listener, error) {
	id, err := newIdentity(f, log)
	if err != nil {
		return nil, err
	}
	all := &Listener{tcp: l, identity: id, log: log, services: map[string]*service{}, ended: make(chan struct{}),
		sources: sources.Counter{MostOfSource: maxOfSource}}
	all.running, all.stop = context.WithCancel(context.Background())
	for _, name := range services() {
		all.services[name] = &service{parent: all, accepted: make(chan net.Conn), closed: make(chan struct{})}
	}
	return all, nil
}

// Service returns the listener of a service, which is an application protocol of package headers.
func (l *Listener) Service(name string) net.Listener { return l.services[name] }

// Run accepts connections until Close or StopAccepting. It closes the listener, and returns when
// each connection that was accepted has come to its service, or has failed.
func (l *Listener) Run() error {
	defer close(l.ended)
	defer l.Close() //nolint:errcheck // the error of Accept says more
	defer l.handshakes.Wait()
	config := l.identity.tlsConfig()
	free := make(chan struct{}, maxHandshakes)
	for {
		c, err := l.tcp.Accept()
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return nil
		default:
			l.log.Warn("connection of an Envoy not accepted", zap.Error(err))
			time.Sleep(acceptPause)
			continue
		}
		// A listener of a predecessor gives its connections the standard of Go.
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetKeepAliveConfig(keepAlive) // it fails only if the connection has ended
		}
		end := l.sources.Begin(c)
		if end == nil {
			_ = c.Close() // the peer learns nothing more
			continue
		}
		free <- struct{}{}
		l.handshakes.Go(func() {
			defer func() { <-free }()
			l.pass(tls.Server(c, config), end)
		})
	}
}

// acceptPause is the pause after a connection that was not accepted, which a lack of descriptors
// causes.
const acceptPause = 50 * time.Millisecond

// pass does the handshake and gives the connection to its service. It calls end after the
// handshake.
func (l *Listener) pass(c *tls.Conn, end func()) {
	ctx, cancel := context.WithTimeout(l.running, handshakeTimeout)
	defer cancel()
	err := c.HandshakeContext(ctx)
	end()
	if err != nil {
		l.log.Warn("Envoy refused at control", zap.Stringer("address", c.RemoteAddr()), zap.Error(err))
		_ = c.Close() // the peer has been told
		return
	}
	s := l.services[c.ConnectionState().NegotiatedProtocol]
	if s == nil {
		s = l.services[headers.ALPNControl]
	}
	select {
	case s.accepted <- c:
	case <-s.closed:
		_ = c.Close() // the service accepts no more
	case <-l.running.Done():
		_ = c.Close()
	}
}

// StopAccepting ends accepting for all services, and returns when Run has: no connection that was
// accepted is lost.
func (l *Listener) StopAccepting() {
	_ = l.tcp.Close() // there is nothing to do about it
	<-l.ended
}

// Close ends accepting for all services, and ends handshakes. Connections that have come to their
// service stay.
func (l *Listener) Close() error {
	l.stop()
	return l.tcp.Close()
}

// Addr returns the address of the listener.
func (l *Listener) Addr() net.Addr { return l.tcp.Addr() }

// TCP returns the listener below TLS, for a successor.
func (l *Listener) TCP() net.Listener { return l.tcp }

func (s *service) Accept() (net.Conn, error) {
	select {
	case c := <-s.accepted:
		// net/http would look for a server of its own for the protocol.
		return struct{ net.Conn }{c}, nil
	case <-s.closed:
	case <-s.parent.running.Done():
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener. The other services go on.
func (s *service) Close() error {
	s.closing.Do(func() { close(s.closed) })
	return nil
}

func (s *service) Addr() net.Addr { return s.parent.Addr() }
