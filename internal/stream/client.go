package stream

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

const (
	// connectTimeout and engineIdle are those of Envoy's clusters: see package xds.
	connectTimeout = 2 * time.Second
	engineIdle     = 4 * time.Second
	// clientBuffer is for reading from an engine and writing to it, in bytes; there are two for each running stream.
	clientBuffer = 4 << 10
)

// clients call replicas: one client for each way of calling. The zero value is ready to use.
type clients struct {
	mu sync.Mutex
	// by transport; nil is plain HTTP; guarded by mu
	by map[*engines.Transport]*http.Transport
}

// send sends the request to the replica.
func (r *Relay) send(request *http.Request, at dispatch.Upstream, p Policy) (*http.Response, error) {
	if p.GRPC && r.config.Workers != nil {
		return r.config.Workers.RoundTrip(request)
	}
	client, err := r.clients.of(at.Transport)
	if err != nil {
		return nil, err
	}
	return client.RoundTrip(request)
}

func (c *clients) of(t *engines.Transport) (*http.Transport, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if client := c.by[t]; client != nil {
		return client, nil
	}
	client, err := newClient(t)
	if err != nil {
		return nil, err
	}
	if c.by == nil {
		c.by = map[*engines.Transport]*http.Transport{}
	}
	c.by[t] = client
	return client, nil
}

// keep drops the clients of transports that are no longer in use.
func (c *clients) keep(used map[*engines.Transport]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t, client := range c.by {
		if t != nil && !used[t] {
			client.CloseIdleConnections()
			delete(c.by, t)
		}
	}
}

func (c *clients) close() { c.keep(nil) }

func newClient(t *engines.Transport) (*http.Transport, error) {
	client := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}).DialContext,
		DisableCompression:  true,
		IdleConnTimeout:     engineIdle,
		MaxIdleConnsPerHost: 256,
		ReadBufferSize:      clientBuffer,
		WriteBufferSize:     clientBuffer,
		TLSHandshakeTimeout: 2 * connectTimeout,
		Protocols:           new(http.Protocols),
	}
	client.Protocols.SetHTTP1(true)
	if t == nil || t.TLS == nil {
		return client, nil
	}
	client.TLSClientConfig = &tls.Config{ServerName: t.TLS.ServerName, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: t.TLS.Unchecked} //nolint:gosec // the file says so of this server
	if t.TLS.CA != "" {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM([]byte(t.TLS.CA))
		client.TLSClientConfig.RootCAs = pool
	}
	return client, nil
}

// requestTo makes the request for a replica.
func (a *attempts) requestTo(ctx context.Context, at dispatch.Upstream) (*http.Request, *openai.Error) {
	body, _ := a.call.Scan.Rewrite(a.call.Body, a.ticket.Served)
	if a.policy.InjectUsage && a.call.Scan.Stream && !a.call.Scan.IncludeUsage && a.call.Scan.Endpoint.Chunked() {
		body = askForUsage(body)
	}
	path, query, _ := strings.Cut(a.call.Path, "?")
	if a.policy.Rerank == RerankTEI && a.call.Scan.Endpoint == openai.Rerank {
		rerank, fault := readRerank(body)
		if fault != nil {
			return nil, fault
		}
		a.rerank, path, body = rerank, teiRerankPath, rerank.tei()
	}
	target := url.URL{Scheme: "http", Host: at.Address}
	header := a.call.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	prefix := ""
	if t := at.Transport; t != nil {
		prefix = t.Prefix
		if t.TLS != nil {
			target.Scheme = "https"
		}
		for _, h := range t.Headers {
			header.Set(h.Name, h.Value)
		}
	}
	target.Path, target.RawQuery = prefix+path, query
	header.Set("accept-encoding", "identity")
	if header.Get("content-type") == "" {
		header.Set("content-type", "application/json")
	}
	if a.tracer != nil {
		if parent := a.tracer.Traceparent(); parent != "" {
			header.Set("traceparent", parent)
		}
	}
	if left := a.call.Scan.Timeout - time.Since(a.call.Received); a.policy.GRPC && a.call.Scan.Timeout > 0 {
		header.Set(headers.Timeout, strconv.FormatInt(max(left.Milliseconds(), 1), 10)) // the worker's own deadline
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, openai.Errorf(openai.CodeUpstreamError, "The engine's address cannot be called.")
	}
	request.Header = header
	if at.Host != "" {
		request.Host = at.Host
	}
	return request, nil
}

// passed are those headers of a client's request that the engine gets.
func passed(from http.Header) http.Header {
	to := make(http.Header, len(from))
	for name, values := range from {
		lower := strings.ToLower(name)
		if hopByHop(lower) || strings.HasPrefix(lower, "x-sluice-") || strings.HasPrefix(lower, "x-envoy-") || strings.HasPrefix(lower, headers.Endpoint) {
			continue
		}
		to[name] = values
	}
	return to
}

func hopByHop(lower string) bool {
	switch lower {
	case "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "expect",
		"authorization", "x-api-key", "api-key", "proxy-authorization", "accept-encoding", headers.IdempotencyKey, "last-event-id":
		return true
	}
	return false
}
