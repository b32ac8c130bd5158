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
	"github.com/sluice-gateway/sluice/internal/openai/messages"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// dialTimeout bounds connecting to another gateway, with the TLS handshake.
const dialTimeout = 2 * time.Second

// forward is a request that this gateway is forwarding.
type forward struct {
	owner  string
	cancel context.CancelCauseFunc
}

// Forward has the owner answer the request, and passes the answer on as it comes. A client that
// leaves ends the request at the owner as well. The owner believes the headers of r: headers.Tenant
// must be set, as ext_authz does it. Forward removes keys and the headers between Sluice and its
// own Envoy, and adds headers.Forwarded with the name of this gateway. It sends r.Body as it is.
//
// The error is for the client, and nothing was written to w. It is gateway_unavailable when the
// owner is gone or cannot be reached. It is that, too, when the owner must not be asked, because
// the request was forwarded already. nil means that w was answered or that the client has left. A
// stream that breaks off between two events ends with an error event. An answer that breaks off
// elsewhere ends in a panic with http.ErrAbortHandler, as in httputil.ReverseProxy, so that the
// client sees that it is not whole.
func (p *Peers) Forward(w http.ResponseWriter, r *http.Request, owner string) *openai.Error {
	if from := r.Header.Get(headers.Forwarded); from != "" || owner == p.cfg.ID {
		p.cfg.Log.Warn("request not forwarded, it would loop", zap.String("owner", owner), zap.String("from", from))
		return openai.Errorf(openai.CodeGatewayUnavailable, "The gateways do not agree on who runs this request.")
	}
	if _, err := p.findRecord(r.Context(), owner); err != nil {
		return p.unavailable(r, owner, err)
	}
	ctx, stop := p.trackForward(r.Context(), owner)
	defer stop()
	var failed, cut error
	endpoint, _ := openai.EndpointOf(r.URL.Path)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) { rewrite(pr, owner) }, Transport: p.transport, FlushInterval: -1, ErrorLog: debugLogger(p.cfg.Log),
		ModifyResponse: func(answer *http.Response) error {
			if resumed, ok := openai.EndpointOf(answer.Header.Get(headers.Resumed)); ok {
				endpoint = resumed
			}
			answer.Header.Del(headers.Resumed)
			if answer.StatusCode != http.StatusSwitchingProtocols { // its body is a connection
				kind, _, _ := mime.ParseMediaType(answer.Header.Get("content-type"))
				answer.Body = &responseBody{ReadCloser: answer.Body, ctx: ctx, isEventStream: kind == "text/event-stream",
					endpoint: endpoint, cut: &cut}
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
	switch {
	case r.Context().Err() != nil: // the client has left
	case failed != nil:
		return p.unavailable(r, owner, errors.Join(failed, context.Cause(ctx)))
	case cut != nil:
		p.cfg.Log.Warn("stream of another gateway broke off", zap.String("owner", owner), zap.Error(errors.Join(cut, context.Cause(ctx))))
	}
	return nil
}

// unavailable returns what the client is told when the owner does not answer. nil: the client has
// left.
func (p *Peers) unavailable(r *http.Request, owner string, err error) *openai.Error {
	if r.Context().Err() != nil {
		return nil
	}
	p.cfg.Log.Warn("request not forwarded, the owner does not answer", zap.String("owner", owner), zap.Error(err))
	fault := openai.Errorf(openai.CodeGatewayUnavailable, "The gateway that runs this request does not answer.")
	if !errors.Is(err, errNoRecord) {
		fault.RetryAfter = p.cfg.Expiry / renewalsPerExpiry // the record of an owner that is gone will expire by then
	}
	return fault
}

// rewrite addresses a request to its owner. The URL has the owner's name instead of its address, so
// that connections are pooled by name.
func rewrite(pr *httputil.ProxyRequest, owner string) {
	pr.Out.URL.Scheme, pr.Out.URL.Host, pr.Out.URL.RawQuery = "https", owner, pr.In.URL.RawQuery
	for _, name := range headers.Internal() {
		if name != headers.Tenant && name != headers.Key && name != headers.Patient && name != headers.TimeLeft {
			pr.Out.Header.Del(name)
		}
	}
	for _, name := range []string{"authorization", "x-api-key", "api-key"} {
		pr.Out.Header.Del(name)
	}
}

// newTransport returns a transport that speaks HTTP/1.1, with one connection for each running
// request. So a client that reads slowly holds up only its own stream, and the owner notices it
// when the sockets are full.
func (p *Peers) newTransport() *http.Transport {
	return &http.Transport{
		DialTLSContext: p.dial, IdleConnTimeout: clientIdleTimeout, MaxIdleConnsPerHost: 32, DisableCompression: true,
	}
}

// dial connects to the gateway with this name. The port in address means nothing.
func (p *Peers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	owner, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	r, err := p.fetchRecord(ctx, owner)
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

// trackForward returns a context that ends when the owner turns out to be gone. stop must be
// called.
func (p *Peers) trackForward(ctx context.Context, owner string) (_ context.Context, stop func()) {
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

// checkOwner cancels the forwards to an owner that has had no record for Config.Expiry. Only Run
// calls it.
func (p *Peers) checkOwner(ctx context.Context, owner string) error {
	_, err := p.fetchRecord(ctx, owner)
	if !errors.Is(err, errNoRecord) {
		delete(p.missingSince, owner)
		return err
	}
	since, ok := p.missingSince[owner]
	if !ok {
		p.missingSince[owner] = time.Now()
		return nil
	}
	if time.Since(since) < p.cfg.Expiry {
		return nil
	}
	delete(p.missingSince, owner)
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := range p.forwards {
		if f.owner == owner {
			f.cancel(err)
		}
	}
	return nil
}

// responseBody is the body of a forwarded answer. A stream that breaks off between two events gets
// an error event at its end. Within an event nothing can be added.
type responseBody struct {
	io.ReadCloser
	// ctx ends when the owner turns out to be gone. The answer counts as broken then even if its
	// end has come: closing the connection reaches the owner first, which may still write the end
	// of its answer.
	ctx context.Context
	// isEventStream says that the answer is a stream of events.
	isEventStream bool
	// endpoint says which form the error event has.
	endpoint openai.Endpoint
	// cut is set when the stream broke off and an error event was added.
	cut *error
	// tail holds the last bytes that were read, at most four.
	tail []byte
	// errorEvent has what is left to read of the error event. nil: the stream has not broken off.
	errorEvent *bytes.Reader
}

func (e *responseBody) Read(b []byte) (int, error) {
	if e.errorEvent != nil {
		return e.errorEvent.Read(b)
	}
	n, err := e.ReadCloser.Read(b)
	e.tail = append(e.tail, b[max(n-4, 0):n]...)
	e.tail = append(e.tail[:0], e.tail[max(len(e.tail)-4, 0):]...)
	if gone := context.Cause(e.ctx); err == io.EOF && gone != nil { //nolint:errorlint // a Reader ends with io.EOF itself
		err = gone
	}
	if err == nil || err == io.EOF || !e.isEventStream || !e.isBetweenEvents() { //nolint:errorlint // as above: an error that wraps io.EOF is a failure
		return n, err
	}
	*e.cut = err
	fault := openai.Errorf(openai.CodeGatewayUnavailable, "The gateway that runs this request has gone.")
	e.errorEvent = bytes.NewReader(errorEvent(e.endpoint, fault))
	return n, nil
}

// errorEvent returns the event with an error at the end of a stream of the endpoint.
func errorEvent(e openai.Endpoint, fault *openai.Error) []byte {
	switch {
	case e.OfMessages():
		return messages.AppendError(nil, fault)
	case e == openai.Responses: // nobody here counts its events, so the error has the number 0
		return fault.AppendResponsesEvent(nil, 0)
	}
	return sse.AppendData(nil, fault.EventData())
}

// isBetweenEvents reports whether the last event was read to its end.
func (e *responseBody) isBetweenEvents() bool {
	return len(e.tail) == 0 || bytes.HasSuffix(e.tail, []byte("\n\n")) || bytes.HasSuffix(e.tail, []byte("\r\n\r\n")) || bytes.HasSuffix(e.tail, []byte("\r\r"))
}

// debugLogger returns a logger for the standard library that logs at debug level: connections that
// fail are normal.
func debugLogger(to *zap.Logger) *log.Logger {
	logger, err := zap.NewStdLogAt(to, zap.DebugLevel)
	if err != nil { // the level is a constant that exists
		panic(err)
	}
	return logger
}
