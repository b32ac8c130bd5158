package http1

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/sluice-gateway/sluice/internal/nonblock"
)

// Defaults of Transport. The header limit is in bytes.
const (
	DefaultDialTimeout         = 2 * time.Second
	DefaultTLSHandshakeTimeout = 4 * time.Second
	DefaultClientIdleTimeout   = 4 * time.Second
	DefaultMaxIdlePerHost      = 256
	DefaultMaxResponseHeader   = 1 << 20
)

// staleWindow is how soon a request fails on a pooled connection that the engine had closed before.
// When a request fails later, the engine may have worked on it.
const staleWindow = time.Second

// keepAlive is the interval of TCP keep-alive probes, which notice that an engine's machine is
// gone.
const keepAlive = 30 * time.Second

// Transport is an http.RoundTripper for engines. The zero value is ready to use. The fields must
// not change after the first request. Any number of goroutines may use it.
type Transport struct {
	// TLS is the configuration for https URLs; nil means the defaults of crypto/tls. An empty
	// ServerName means the host of the URL. NextProtos is always HTTP/1.1.
	TLS *tls.Config
	// DialTimeout bounds the time to connect; 0 means DefaultDialTimeout.
	DialTimeout time.Duration
	// TLSHandshakeTimeout bounds the TLS handshake that follows; 0 means
	// DefaultTLSHandshakeTimeout.
	TLSHandshakeTimeout time.Duration
	// IdleTimeout is how long a connection may be idle before it is closed; 0 means
	// DefaultClientIdleTimeout. It should be less than the engines' own idle time-out.
	IdleTimeout time.Duration
	// MaxIdlePerHost bounds the idle connections to one host; 0 means DefaultMaxIdlePerHost, a
	// negative number means that none are kept.
	MaxIdlePerHost int
	// MaxHeaderBytes bounds the head of a response together with the 1xx responses before it; 0
	// means DefaultMaxResponseHeader. A response may exceed it by what one read brings.
	MaxHeaderBytes int64

	pool idlePool
}

// Client is what a caller of engines needs of a transport.
type Client interface {
	http.RoundTripper
	CloseIdleConnections()
}

// Client returns t itself, or a transport of net/http with the settings of t if the environment has
// SLUICE_HTTP1=std.
func (t *Transport) Client() Client {
	if !useStd() {
		return t
	}
	dialer := net.Dialer{Timeout: positiveOr(t.DialTimeout, DefaultDialTimeout), KeepAlive: keepAlive}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        t.TLS.Clone(),
		TLSHandshakeTimeout:    positiveOr(t.TLSHandshakeTimeout, DefaultTLSHandshakeTimeout),
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // no HTTP/2
		IdleConnTimeout:        t.idleTimeout(),
		MaxIdleConnsPerHost:    positiveOr(t.MaxIdlePerHost, DefaultMaxIdlePerHost),
		MaxResponseHeaderBytes: positiveOr(t.MaxHeaderBytes, DefaultMaxResponseHeader),
		DisableCompression:     true,
		DisableKeepAlives:      t.MaxIdlePerHost < 0,
	}
}

// RoundTrip implements http.RoundTripper. The body of the request must be as long as ContentLength
// says. RoundTrip closes it, at the latest soon after the body of the response was closed.
//
// The Request and TLS of the response are nil. The body of the response must be read to io.EOF or
// closed. One goroutine reads it; any goroutine may close it. A trailer of more than 1 KiB is an
// error, and so is a chunk header of that length. The body of a 101 is empty. Of the hooks of
// httptrace only those of package net are called.
//
// When the context of the request ends, RoundTrip and reads of the body fail at once with
// context.Cause, as those of net/http do. An error of connecting or of the TLS handshake is a
// *net.OpError whose Op is "dial".
//
// RoundTrip makes a request a second time, whatever its method, when an idle connection turns out
// to be closed. It does so only if the engine has answered no byte, the failure came within
// staleWindow, and the body can be sent again. Then it was not this request that ended the
// connection.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	to, err := targetOf(request)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		closeBody(request)
		return nil, err
	}
	if c := t.pool.acquire(to, t.idleTimeout()); c != nil {
		began := time.Now()
		response, err := t.roundTripOn(request, c)
		if err == nil || c.heard || !closedByPeer(err) || ctx.Err() != nil || time.Since(began) > staleWindow {
			return response, err
		}
		once, ok := replayable(request)
		if !ok {
			return nil, err
		}
		request = once
	}
	c, err := t.dial(ctx, to)
	if err != nil {
		closeBody(request)
		return nil, err
	}
	return t.roundTripOn(request, c)
}

// CloseIdleConnections closes the idle connections. Connections in use become idle again later.
func (t *Transport) CloseIdleConnections() { t.pool.closeAll() }

// replayable returns the request in a form that can be sent a second time. It returns false when
// the body cannot be had again.
func replayable(request *http.Request) (*http.Request, bool) {
	if request.Body == nil || request.Body == http.NoBody {
		return request, true
	}
	if request.GetBody == nil {
		return nil, false
	}
	body, err := request.GetBody()
	if err != nil {
		return nil, false // the first failure says more than this error
	}
	once := request.WithContext(request.Context())
	once.Body = body
	return once, true
}

// roundTripOn makes the request on a connection, which it owns from then on.
func (t *Transport) roundTripOn(request *http.Request, c *clientConn) (*http.Response, error) {
	c.startResponse(positiveOr(t.MaxHeaderBytes, DefaultMaxResponseHeader))
	e := &roundTrip{transport: t, conn: c, ctx: request.Context()}
	e.unwatch = context.AfterFunc(e.ctx, e.abort)
	sendErr := e.send(request)
	if sendErr != nil && !closedByPeer(sendErr) {
		return nil, e.fail(sendErr)
	}
	// An engine that refuses the rest of a body may have answered before it closed the connection.
	response, err := c.readHead(request.Method)
	switch {
	case err == nil:
		return e.respond(request, response), nil
	case sendErr != nil:
		return nil, e.fail(sendErr)
	}
	return nil, e.fail(err)
}

// closedByPeer says whether an error means that the engine has closed the connection.
func closedByPeer(err error) bool {
	var ours *bodyError
	if errors.As(err, &ours) {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// dial opens a connection, with TLS if the target asks for it.
func (t *Transport) dial(ctx context.Context, to target) (*clientConn, error) {
	dialer := net.Dialer{Timeout: positiveOr(t.DialTimeout, DefaultDialTimeout), KeepAlive: keepAlive}
	plain, err := dialer.DialContext(ctx, "tcp", to.address)
	if err != nil {
		return nil, contextCauseOr(ctx, err)
	}
	input, err := nonblock.NewReader(plain)
	if err != nil {
		plain.Close()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: plain.RemoteAddr(), Err: err}
	}
	c := &clientConn{stream: plain, tcp: plain, input: input, output: nonblock.WriterOf(plain), quiet: input, target: to}
	if !to.secure {
		return c, nil
	}
	secure := tls.Client(plain, t.tlsTo(to))
	limited, cancel := context.WithTimeout(ctx, positiveOr(t.TLSHandshakeTimeout, DefaultTLSHandshakeTimeout))
	defer cancel()
	if err := secure.HandshakeContext(limited); err != nil {
		plain.Close()
		return nil, contextCauseOr(ctx, &net.OpError{Op: "dial", Net: "tcp", Addr: plain.RemoteAddr(), Err: err})
	}
	c.stream, c.input, c.output = secure, secure, secure
	return c, nil
}

// tlsTo returns the TLS configuration for a target.
func (t *Transport) tlsTo(to target) *tls.Config {
	config := t.TLS.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(to.address) // a valid address, because it was dialed
	}
	config.NextProtos = []string{"http/1.1"}
	return config
}

// contextCauseOr returns the cause of a context that has ended, else err.
func contextCauseOr(ctx context.Context, err error) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done() // package net keeps the deadline by its own clock, which may be a little ahead
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (t *Transport) idleTimeout() time.Duration {
	return positiveOr(t.IdleTimeout, DefaultClientIdleTimeout)
}

// positiveOr returns n if it is positive, else the default.
func positiveOr[N ~int64 | ~int](n, otherwise N) N {
	if n > 0 {
		return n
	}
	return otherwise
}
