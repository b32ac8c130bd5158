package relay

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/http1/client"
	"github.com/sluice-gateway/sluice/internal/openai"
)

const (
	// connectTimeout and engineIdle are those of Envoy's clusters: see package xds.
	connectTimeout = 2 * time.Second
	engineIdle     = 4 * time.Second
)

// clients call replicas: one client for each way of calling. The zero value is ready to use.
type clients struct {
	mu sync.Mutex
	// by transport; nil is plain HTTP; guarded by mu
	by map[*engines.Transport]*client
}

// client calls in one way.
type client struct {
	*h1client.Transport
	used time.Time
}

// unused is after how long a client is dropped when another one is made: its way of calling has probably left the file.
const unused = 10 * time.Minute

// send sends the request to the replica.
func (r *Relay) send(request *http.Request, at dispatch.Upstream, p Policy) (*http.Response, error) {
	client := r.config.Workers
	if !p.GRPC || client == nil {
		client = r.clients.of(at.Transport)
	}
	response, err := client.RoundTrip(request)
	request.Body, request.GetBody = nil, nil // whoever keeps the request shall not keep a long prompt with it
	return response, err
}

func (c *clients) of(t *engines.Transport) *h1client.Transport {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.by[t]
	if known == nil {
		c.dropLocked(unused)
		if c.by == nil {
			c.by = map[*engines.Transport]*client{}
		}
		known = &client{Transport: newClient(t)}
		c.by[t] = known
	}
	known.used = time.Now()
	return known.Transport
}

// dropLocked lets go of the clients that nobody has used for so long. What they carry goes on.
func (c *clients) dropLocked(unused time.Duration) {
	for t, known := range c.by {
		if time.Since(known.used) >= unused {
			known.CloseIdleConnections()
			delete(c.by, t)
		}
	}
}

func (c *clients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLocked(0)
}

func newClient(t *engines.Transport) *h1client.Transport {
	client := &h1client.Transport{DialTimeout: connectTimeout, TLSHandshakeTimeout: 2 * connectTimeout, IdleTimeout: engineIdle}
	if t == nil || t.TLS == nil {
		return client
	}
	client.TLS = &tls.Config{ServerName: t.TLS.ServerName, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: t.TLS.Unchecked} //nolint:gosec // the file says so of this server
	if t.TLS.CA != "" {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM([]byte(t.TLS.CA))
		client.TLS.RootCAs = pool
	}
	return client
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
	target := "http://"
	if t := at.Transport; t != nil {
		path = t.Prefix + path
		if t.TLS != nil {
			target = "https://"
		}
	}
	target += at.Address + path
	if query != "" {
		target += "?" + query
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return nil, openai.Errorf(openai.CodeUpstreamError, "The engine's address cannot be called.")
	}
	request.Header = a.headerTo(at)
	if at.Host != "" {
		request.Host = at.Host
	}
	return request, nil
}

// headerTo is what a replica is told in headers.
func (a *attempts) headerTo(at dispatch.Upstream) http.Header {
	header := a.call.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	if t := at.Transport; t != nil {
		for _, h := range t.Headers {
			header.Set(h.Name, h.Value)
		}
	}
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
	return header
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
