package peers

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"mime"
	"net"
	"net/http"
	"net/http/httputil"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// dialWithin bounds connecting to another gateway, and the handshake.
const dialWithin = 2 * time.Second

// forward is an answer of another gateway that is on its way through this one.
type forward struct {
	owner  string
	cancel context.CancelCauseFunc
}

// Forward has the owner answer the request, and passes its answer on as it comes. A client that leaves ends the request there as well. The
// headers of r are what the owner goes by: headers.Tenant must be there, as ext_authz or whoever else knows it has set it; keys and
// what Sluice tells its own Envoy are left out, and headers.Forwarded says who has passed it on. The body is sent as it is: whoever has read it puts it back.
//
// The error, nothing having been written to w, is for the client: gateway_unavailable when the owner is gone, cannot be reached or may not be
// asked, as for a request with headers.Forwarded, which was passed on itself. nil means that w was answered, or that the client has left. A stream of events
// that breaks off between two of them ends with an error event; what breaks off otherwise ends as in httputil.ReverseProxy, by a panic with
// http.ErrAbortHandler, so that the client sees that it is not whole.
func (p *Peers) Forward(w http.ResponseWriter, r *http.Request, owner string) *openai.Error {
	if from := r.Header.Get(headers.Forwarded); from != "" || owner == p.cfg.ID {
		p.cfg.Log.Warn("a request was not passed on: it would go round in a circle", zap.String("owner", owner), zap.String("from", from))
		return openai.Errorf(openai.CodeGatewayUnavailable, "The gateways do not agree on who runs this request.")
	}
	if _, err := p.record(r.Context(), owner); err != nil {
		return p.unavailable(r, owner, err)
	}
	ctx, stop := p.follow(r.Context(), owner)
	defer stop()
	var failed, cut error
	proxy := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) { rewrite(pr, owner) }, Transport: p.transport, FlushInterval: -1, ErrorLog: quiet(p.cfg.Log),
		ModifyResponse: func(answer *http.Response) error {
			if answer.StatusCode != http.StatusSwitchingProtocols { // its body is a connection
				kind, _, _ := mime.ParseMediaType(answer.Header.Get("content-type"))
				answer.Body = &body{ReadCloser: answer.Body, ctx: ctx, events: kind == "text/event-stream", cut: &cut}
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
	switch {
	case r.Context().Err() != nil: // nobody is there to be told
	case failed != nil:
		return p.unavailable(r, owner, errors.Join(failed, context.Cause(ctx)))
	case cut != nil:
		p.cfg.Log.Warn("a stream that another gateway runs broke off", zap.String("owner", owner), zap.Error(errors.Join(cut, context.Cause(ctx))))
	}
	return nil
}

// unavailable is what a client is told of an owner that does not answer; nil when it has left itself.
func (p *Peers) unavailable(r *http.Request, owner string, err error) *openai.Error {
	if r.Context().Err() != nil {
		return nil
	}
	p.cfg.Log.Warn("another gateway cannot be asked", zap.String("owner", owner), zap.Error(err))
	fault := openai.Errorf(openai.CodeGatewayUnavailable, "The gateway that runs this request does not answer.")
	if !errors.Is(err, errGone) {
		fault.RetryAfter = p.cfg.Expiry / beats // if it is gone, that is known soon
	}
	return fault
}

// rewrite addresses a request to its owner. The owner's name stands for its address, so that connections are kept by name.
func rewrite(pr *httputil.ProxyRequest, owner string) {
	pr.Out.URL.Scheme, pr.Out.URL.Host, pr.Out.URL.RawQuery = "https", owner, pr.In.URL.RawQuery
	for _, name := range headers.Internal() {
		if name != headers.Tenant && name != headers.Patient {
			pr.Out.Header.Del(name)
		}
	}
	for _, name := range []string{"authorization", "x-api-key", "api-key"} {
		pr.Out.Header.Del(name)
	}
}

// newTransport speaks HTTP/1.1, a connection for each request: so a client that reads slowly holds up its own stream only, and the owner
// feels it after no more than what sockets hold.
func (p *Peers) newTransport() *http.Transport {
	return &http.Transport{
		DialTLSContext: p.dial, IdleConnTimeout: idleClient, MaxIdleConnsPerHost: 32, DisableCompression: true,
	}
}

// dial connects to the gateway of this name; the port means nothing.
func (p *Peers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	owner, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	r, err := p.look(ctx, owner)
	if err != nil {
		return nil, err
	}
	plain, err := (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext(ctx, network, r.address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(plain, p.clientTLS(r))
	if err := conn.HandshakeContext(ctx); err != nil {
		plain.Close()
		return nil, err
	}
	return conn, nil
}

// follow returns a context that ends when the owner is found to be gone. stop must be called.
func (p *Peers) follow(ctx context.Context, owner string) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	f := &forward{owner, cancel}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forwards[f] = struct{}{}
	return ctx, func() {
		p.mu.Lock()
		delete(p.forwards, f)
		p.mu.Unlock()
		cancel(nil)
	}
}

// watchOne looks whether a gateway that answers somebody here still lives.
func (p *Peers) watchOne(ctx context.Context, owner string) error {
	_, err := p.look(ctx, owner)
	if !errors.Is(err, errGone) {
		delete(p.missing, owner)
		return err
	}
	since, ok := p.missing[owner]
	if !ok {
		p.missing[owner] = time.Now()
		return nil
	}
	if time.Since(since) < p.cfg.Expiry {
		return nil
	}
	delete(p.missing, owner)
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := range p.forwards {
		if f.owner == owner {
			f.cancel(err)
		}
	}
	return nil
}

// body is that of an answer. A stream of events that breaks off between two of them ends with an error event; within one, nothing can be
// said any more.
type body struct {
	io.ReadCloser
	// ctx ends when the owner is given up. The answer is not whole then, even if it seems to be: closing the connection tells the owner
	// first, which may still write the end of its answer.
	ctx context.Context
	// events: it is such a stream.
	events bool
	// cut is set when it breaks off and the client was told.
	cut *error
	// tail are the last bytes that were read, at most four.
	tail []byte
	// last is what is left of the error event.
	last *bytes.Reader
}

func (e *body) Read(b []byte) (int, error) {
	if e.last != nil {
		return e.last.Read(b)
	}
	n, err := e.ReadCloser.Read(b)
	e.tail = append(e.tail, b[max(n-4, 0):n]...)
	e.tail = append(e.tail[:0], e.tail[max(len(e.tail)-4, 0):]...)
	if gone := context.Cause(e.ctx); err == io.EOF && gone != nil { //nolint:errorlint // a Reader ends with io.EOF itself
		err = gone
	}
	if err == nil || err == io.EOF || !e.events || !e.between() { //nolint:errorlint // as above: what wraps it is a fault
		return n, err
	}
	*e.cut = err
	fault := openai.Errorf(openai.CodeGatewayUnavailable, "The gateway that runs this request has gone.")
	e.last = bytes.NewReader([]byte("data: " + string(fault.EventData()) + "\n\n"))
	return n, nil
}

// between: the last event is whole.
func (e *body) between() bool {
	return len(e.tail) == 0 || bytes.HasSuffix(e.tail, []byte("\n\n")) || bytes.HasSuffix(e.tail, []byte("\r\n\r\n")) || bytes.HasSuffix(e.tail, []byte("\r\r"))
}

// quiet is for what the standard library prints: connections that fail are no news, but for who looks for them.
func quiet(to *zap.Logger) *log.Logger {
	logger, err := zap.NewStdLogAt(to, zap.DebugLevel)
	if err != nil { // the level is a constant that exists
		panic(err)
	}
	return logger
}
