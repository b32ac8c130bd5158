// Package h1client calls engines by HTTP/1.1 and keeps as little as it can of a response that lasts for minutes: no goroutine, and one small buffer.
//
// net/http's Transport has two goroutines and two buffers for each connection. Here a request is written and its response is read by whoever asks. Only
// a large body of a request has a goroutine, for as long as it is being written. What an engine is not asked for is not there: proxies, cookies,
// redirects, compression, "Expect", HTTP/2, CONNECT, bodies of unknown length.
package h1client

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"
)

// The defaults of a Transport.
const (
	DefaultDialTimeout         = 2 * time.Second
	DefaultTLSHandshakeTimeout = 4 * time.Second
	DefaultIdleTimeout         = 4 * time.Second
	DefaultMaxIdlePerHost      = 256
	DefaultMaxHeaderBytes      = 1 << 20
)

// staleWithin is how soon a connection that was closed before the request breaks. An engine that takes longer may have worked on it.
const staleWithin = time.Second

// keepAlive is between two probes of TCP for whether the engine's machine is still there.
const keepAlive = 30 * time.Second

// Transport is an http.RoundTripper. The zero value is ready to use; the fields must not change after the first request. It is for any number of
// goroutines.
type Transport struct {
	// TLS is for https URLs. nil: the defaults of crypto/tls. ServerName is the URL's host unless it is set; NextProtos is always HTTP/1.1.
	TLS *tls.Config
	// DialTimeout bounds the time for a TCP connection. 0: DefaultDialTimeout.
	DialTimeout time.Duration
	// TLSHandshakeTimeout bounds the handshake that follows. 0: DefaultTLSHandshakeTimeout.
	TLSHandshakeTimeout time.Duration
	// IdleTimeout is after how long without a request a connection is closed. It is to be less than the engines' own. 0: DefaultIdleTimeout.
	IdleTimeout time.Duration
	// MaxIdlePerHost bounds the connections to one host that wait for a request. 0: DefaultMaxIdlePerHost; negative: none wait.
	MaxIdlePerHost int
	// MaxHeaderBytes bounds the head of an answer with those of the 1xx answers before it, in bytes, up to what one read brings along.
	// 0: DefaultMaxHeaderBytes.
	MaxHeaderBytes int64

	pool pool
}

// RoundTrip implements http.RoundTripper. The request's body must be as long as ContentLength says; it is always closed, if not before RoundTrip returns
// then soon after the response's body was closed.
//
// The response's Request and TLS are nil. Its body must be read to io.EOF or closed, and is read by one goroutine; any may close it. Trailers of more than
// 1 KiB are an error, and so is the line before a chunk. The body of a 101 is empty. Of httptrace's hooks only those of net are called.
//
// When the request's context ends, RoundTrip and reads of the body fail at once with context.Cause, as those of net/http do. An error of connecting, the
// TLS handshake included, is a *net.OpError whose Op is "dial". A request that finds its connection closed by an engine that had nothing to do is
// made once more if it has no body or has GetBody, whatever its method: the engine has not answered a byte, and has closed the connection within a second,
// so that it is not this request that has ended it.
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
	if c := t.pool.take(to, t.idleTimeout()); c != nil {
		began := time.Now()
		response, err := t.exchange(request, c)
		if err == nil || c.heard || !dead(err) || ctx.Err() != nil || time.Since(began) > staleWithin {
			return response, err
		}
		once, ok := again(request)
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
	return t.exchange(request, c)
}

// CloseIdleConnections closes the connections that wait for a request. Those in use wait again after it.
func (t *Transport) CloseIdleConnections() { t.pool.clear() }

// again returns the request to be made a second time, if it can be.
func again(request *http.Request) (*http.Request, bool) {
	if request.Body == nil || request.Body == http.NoBody {
		return request, true
	}
	if request.GetBody == nil {
		return nil, false
	}
	body, err := request.GetBody()
	if err != nil {
		return nil, false // why it is made again says more
	}
	once := request.WithContext(request.Context())
	once.Body = body
	return once, true
}

// exchange makes the request on the connection, which it owns from now on.
func (t *Transport) exchange(request *http.Request, c *conn) (*http.Response, error) {
	c.begin(positive(t.MaxHeaderBytes, DefaultMaxHeaderBytes))
	e := &exchange{transport: t, conn: c, ctx: request.Context()}
	e.unwatch = context.AfterFunc(e.ctx, e.breakOff)
	sendErr := e.send(request)
	if sendErr != nil && !dead(sendErr) {
		return nil, e.fail(sendErr)
	}
	// An engine that does not want the rest of a body may have answered before it closed the connection.
	response, err := c.readHead(request.Method)
	switch {
	case err == nil:
		return e.answer(request, response), nil
	case sendErr != nil:
		return nil, e.fail(sendErr)
	}
	return nil, e.fail(err)
}

// dead tells the errors of a connection that the other end has closed.
func dead(err error) bool {
	var ours *bodyError
	if errors.As(err, &ours) {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func (t *Transport) dial(ctx context.Context, to target) (*conn, error) {
	dialer := net.Dialer{Timeout: positive(t.DialTimeout, DefaultDialTimeout), KeepAlive: keepAlive}
	plain, err := dialer.DialContext(ctx, "tcp", to.address)
	if err != nil {
		return nil, causeOr(ctx, err)
	}
	raw, err := plain.(syscall.Conn).SyscallConn()
	if err != nil {
		plain.Close()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: plain.RemoteAddr(), Err: err}
	}
	c := &conn{stream: plain, tcp: plain, raw: raw, to: to}
	if !to.secure {
		c.pulled = c.pull
		return c, nil
	}
	secure := tls.Client(plain, t.tlsTo(to))
	limited, cancel := context.WithTimeout(ctx, positive(t.TLSHandshakeTimeout, DefaultTLSHandshakeTimeout))
	defer cancel()
	if err := secure.HandshakeContext(limited); err != nil {
		plain.Close()
		return nil, causeOr(ctx, &net.OpError{Op: "dial", Net: "tcp", Addr: plain.RemoteAddr(), Err: err})
	}
	c.stream = secure
	return c, nil
}

func (t *Transport) tlsTo(to target) *tls.Config {
	config := t.TLS.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(to.address) // it was dialed
	}
	config.NextProtos = []string{"http/1.1"}
	return config
}

// causeOr is why the context has ended, or the error if it has not.
func causeOr(ctx context.Context, err error) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done() // net keeps the deadline by a clock of its own, which may be a little ahead
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (t *Transport) idleTimeout() time.Duration { return positive(t.IdleTimeout, DefaultIdleTimeout) }

func positive[N ~int64 | ~int](n, otherwise N) N {
	if n > 0 {
		return n
	}
	return otherwise
}
