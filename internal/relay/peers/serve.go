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
	// headersWithin bounds the handshake, and the headers of a request.
	headersWithin = 10 * time.Second
	// idleServer is longer than idleClient, so that the client's side closes an idle connection and no request meets one that is being closed.
	idleServer = 90 * time.Second
	idleClient = 60 * time.Second
	// closingWithin is how long handlers have to end after their context has.
	closingWithin = 2 * time.Second
)

// keepAlive finds a host that is gone within 20 s.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}

// Serve answers what other gateways pass on, until ctx ends: then the contexts of all requests end too. l is closed then; nil means a
// listener at Config.Listen. The handler gets requests with the headers that the other gateway had, tenant and priority among them, and may
// trust them; those without a tenant are refused before. headers.Forwarded is the name of the other gateway, by its certificate. A client that
// leaves the other gateway ends the request's context.
func (p *Peers) Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	if l == nil {
		var err error
		if l, err = (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(ctx, "tcp", p.cfg.Listen); err != nil {
			return fmt.Errorf("peers: %w", err)
		}
	}
	address := p.cfg.Advertise
	if address == "" {
		address = l.Addr().String()
		if err := dialable(address); err != nil {
			return errors.Join(fmt.Errorf("peers: %w", err), l.Close())
		}
	}
	server := &http.Server{
		Handler: p.trusting(h), ReadHeaderTimeout: headersWithin, IdleTimeout: idleServer,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    quiet(p.cfg.Log),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(tls.NewListener(l, p.serverTLS())) }()
	p.setAddress(address)
	select {
	case err := <-ended:
		return fmt.Errorf("peers: %w", err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closingWithin)
	defer cancel()
	err := server.Shutdown(closing)
	if errors.Is(err, context.DeadlineExceeded) { // somebody does not read what it is sent
		err = server.Close()
	}
	if why := <-ended; !errors.Is(why, http.ErrServerClosed) {
		err = errors.Join(err, why)
	}
	return err
}

// trusting asks for each request whether its gateway is still one: a connection may be older than the record that let it in.
func (p *Peers) trusting(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gateway, err := p.caller(r.Context(), r.TLS)
		if err != nil {
			p.cfg.Log.Warn("a request of a gateway that is none any more was refused", zap.Error(err))
			w.Header().Set("connection", "close")
			refuse(w, openai.Errorf(openai.CodeGatewayUnavailable, "This gateway does not know the one that passed the request on."))
			return
		}
		if r.Header.Get(headers.Tenant) == "" {
			refuse(w, openai.Errorf(openai.CodeInvalidAPIKey, "The request was passed on without saying whose it is."))
			return
		}
		r.Header.Set(headers.Forwarded, gateway)
		h.ServeHTTP(w, r)
	})
}

func refuse(w http.ResponseWriter, e *openai.Error) {
	w.Header().Set(headers.Source, headers.SourceGateway)
	e.Answer(w)
}
