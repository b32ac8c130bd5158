package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

const (
	// headerTimeout bounds the handshake, and the time for the headers of a request.
	headerTimeout = 10 * time.Second
	// serverIdleTimeout is longer than clientIdleTimeout, so that the client closes an idle
	// connection and no request meets a connection that the server is closing.
	serverIdleTimeout = 90 * time.Second
	clientIdleTimeout = 60 * time.Second
	// shutdownTimeout is how long handlers have to end after their context has ended.
	shutdownTimeout = 2 * time.Second
)

// keepAlive finds a gateway whose machine is gone within 20 s.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}

// Serve listens at Config.Listen and serves the requests that other gateways forward, until ctx
// ends; the contexts of all requests end then too.
//
// The handler may trust the headers of its requests, tenant and priority among them: Serve refuses
// requests of strangers and requests without a tenant. headers.Forwarded is the name of the other
// gateway, as its certificate proves it. A client that leaves the other gateway ends the request's
// context.
func (p *Peers) Serve(ctx context.Context, h http.Handler) error {
	l, err := listen(ctx, p.cfg.Listen)
	if err != nil {
		return err
	}
	p.setListener(l)
	server := &http.Server{
		Handler: p.authenticate(h), ReadHeaderTimeout: headerTimeout, IdleTimeout: serverIdleTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    debugLogger(p.cfg.Log),
	}
	ended := make(chan error, 1)
	go func() { ended <- p.serveListeners(server, l) }()
	p.setAddress(l.Addr().String())
	select {
	case err := <-ended:
		return fmt.Errorf("peers: %w", err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	err = server.Shutdown(closing)
	if errors.Is(err, context.DeadlineExceeded) { // a client does not read its answer
		err = server.Close()
	}
	if why := <-ended; !errors.Is(why, http.ErrServerClosed) {
		err = errors.Join(err, why)
	}
	return err
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	return l, nil
}

// serveListeners serves on l, and after Move on the listener that has taken its place.
func (p *Peers) serveListeners(server *http.Server, l net.Listener) error {
	for {
		err := server.Serve(tls.NewListener(l, p.serverTLS()))
		next := p.currentListener()
		if next == l || errors.Is(err, http.ErrServerClosed) {
			return err
		}
		l = next
	}
}

// Move makes this gateway listen at another port of the same host, which the kernel picks, and
// frees Config.Listen for the process that replaces this one. Requests that run go on. Move does
// nothing before Serve.
func (p *Peers) Move(ctx context.Context) error {
	before := p.currentListener()
	if before == nil {
		return nil
	}
	host, _, err := net.SplitHostPort(p.ownAddress())
	if err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	l, err := listen(ctx, net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	p.setListener(l)
	p.setAddress(l.Addr().String())
	return before.Close()
}

// setListener sets the listener that Serve serves on.
func (p *Peers) setListener(l net.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener = l
}

// currentListener returns the listener that Serve serves on. It is nil before Serve.
func (p *Peers) currentListener() net.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listener
}

// authenticate checks for each request that its gateway still has a record, because a connection
// may be older than the record.
func (p *Peers) authenticate(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gateway, err := p.callerOf(r.Context(), r.TLS)
		if err != nil {
			p.cfg.Log.Warn("forwarded request refused, its gateway has no record", zap.Error(err))
			w.Header().Set("connection", "close")
			openai.Errorf(openai.CodeGatewayUnavailable, "This gateway does not know the one that passed the request on.").AnswerTo(w, r.URL.Path)
			return
		}
		if r.Header.Get(headers.Tenant) == "" {
			openai.Errorf(openai.CodeInvalidAPIKey, "The request was passed on without saying whose it is.").AnswerTo(w, r.URL.Path)
			return
		}
		r.Header.Set(headers.Forwarded, gateway)
		h.ServeHTTP(w, r)
	})
}
