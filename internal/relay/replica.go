package relay

import (
	"bytes"
	"context"
	"crypto/tls"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/http1"
	"github.com/sluice-gateway/sluice/internal/openai"
)

const (
	// connectTimeout and idleTimeout are those of Envoy's clusters: see package xds.
	connectTimeout = 2 * time.Second
	idleTimeout    = 4 * time.Second
)

// replicaClients has one client of a protocol for each transport to replicas. The zero value is
// ready to use.
type replicaClients struct {
	mu sync.Mutex
	// byTransport has the client of each transport; nil is plain HTTP. mu guards it.
	byTransport map[*engines.Transport]*replicaClient
}

type replicaClient struct {
	transport http1.Client
	// lastUsed is guarded by replicaClients.mu.
	lastUsed time.Time
}

// clientIdleTimeout is how long a client may be unused before it is dropped. Its transport has
// probably left the configuration by then.
const clientIdleTimeout = 10 * time.Minute

func (r *Relay) send(request *http.Request, replica dispatch.Upstream, p Policy) (*http.Response, error) {
	var client http1.Client
	if workers := r.config.Workers; p.GRPC && workers != nil {
		client = r.workers.get(replica.Transport, workers)
	} else {
		client = r.clients.get(replica.Transport, newHTTPClient)
	}
	response, err := client.RoundTrip(request)
	request.Body, request.GetBody = nil, nil // so that a long prompt is not held with the request
	return response, err
}

// get returns the client of a transport. If there is none, newClient makes it with the settings of
// TLS that the transport has; nil: none.
func (c *replicaClients) get(t *engines.Transport, newClient func(*tls.Config) http1.Client) http1.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.byTransport[t]
	if known == nil {
		c.dropUnusedLocked(clientIdleTimeout)
		if c.byTransport == nil {
			c.byTransport = map[*engines.Transport]*replicaClient{}
		}
		known = &replicaClient{transport: newClient(t.TLSConfig())}
		c.byTransport[t] = known
	}
	known.lastUsed = time.Now()
	return known.transport
}

// dropUnusedLocked drops the clients that were not used for so long. Requests that run go on.
func (c *replicaClients) dropUnusedLocked(unused time.Duration) {
	for t, known := range c.byTransport {
		if time.Since(known.lastUsed) >= unused {
			known.transport.CloseIdleConnections()
			delete(c.byTransport, t)
		}
	}
}

func (c *replicaClients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropUnusedLocked(0)
}

// newHTTPClient returns an HTTP client. settings are those of TLS.
func newHTTPClient(settings *tls.Config) http1.Client {
	return (&http1.Transport{DialTimeout: connectTimeout, TLSHandshakeTimeout: 2 * connectTimeout, IdleTimeout: idleTimeout, TLS: settings}).Client()
}

// newRequest returns the request to a replica: the client's, with the model's own name, and in the
// dialect of the replica.
func (f *failover) newRequest(ctx context.Context, replica dispatch.Upstream) (*http.Request, *openai.Error) {
	call := f.gen.call
	body, _ := call.Scan.Rewrite(call.Body, f.ticket.Served)
	if call.Scan.Stream && call.Scan.Endpoint.Chunked() {
		body, f.hidesUsage = askForUsage(body, f.policy.Usage, call.Scan.IncludeUsage)
	}
	path, query, _ := strings.Cut(call.Path, "?")
	if f.policy.Rerank == RerankTEI && call.Scan.Endpoint == openai.Rerank {
		rerank, fault := readRerank(body)
		if fault != nil {
			return nil, fault
		}
		f.rerank, path, body = rerank, teiRerankPath, rerank.tei()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, urlOf(replica, path, query), bytes.NewReader(body))
	if err != nil {
		return nil, openai.Errorf(openai.CodeUpstreamError, "The engine's address cannot be called.")
	}
	request.Header = f.newHeader(replica)
	request.Host = replica.Host // empty: that of the URL
	return request, nil
}

func urlOf(replica dispatch.Upstream, path, query string) string {
	if query != "" {
		path += "?" + query
	}
	return replica.Transport.URL(replica.Address, path)
}

// setReplicaHeaders sets the headers that a replica gets in every request.
func setReplicaHeaders(header http.Header, replica dispatch.Upstream) {
	if t := replica.Transport; t != nil {
		for _, h := range t.Headers {
			header.Set(h.Name, h.Value)
		}
	}
	header.Set("accept-encoding", "identity")
}

func (f *failover) newHeader(replica dispatch.Upstream) http.Header {
	call := f.gen.call
	header := call.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	setReplicaHeaders(header, replica)
	if header.Get("content-type") == "" {
		header.Set("content-type", "application/json")
	}
	if f.gen.trace != nil {
		if parent := f.gen.trace.Traceparent(); parent != "" {
			header.Set("traceparent", parent)
		}
	}
	if left := call.Scan.Timeout - time.Since(call.Received); f.policy.GRPC && call.Scan.Timeout > 0 {
		header.Set(headers.Timeout, strconv.FormatInt(max(left.Milliseconds(), 1), 10)) // the worker sets a deadline of its own
	}
	return header
}

// forwardedHeaders returns the headers of a client's request that the engine gets.
func forwardedHeaders(from http.Header) http.Header {
	to := make(http.Header, len(from))
	for name, values := range from {
		lower := strings.ToLower(name)
		if isHopByHop(lower) || strings.HasPrefix(lower, "x-sluice-") || strings.HasPrefix(lower, "x-envoy-") || strings.HasPrefix(lower, headers.Endpoint) {
			continue
		}
		to[name] = values
	}
	return to
}

// passHeaders sets the headers of an engine's answer that cross the gateway.
func passHeaders(to, from http.Header) {
	for name, values := range from {
		lower := strings.ToLower(name)
		if !isHopByHop(lower) && !headers.StripsFromEngines(lower) {
			to[name] = values
		}
	}
}

// refuseRedirect returns the error for a redirect of an engine, and nil for any other response. The
// client would send its prompt to another server, past the gateway.
func refuseRedirect(response *http.Response) *openai.Error {
	if response.StatusCode < http.StatusMultipleChoices || response.StatusCode >= http.StatusBadRequest {
		return nil
	}
	return openai.Errorf(openai.CodeUpstreamError, "The engine has answered with a redirect, which is not passed on.")
}

// isHopByHop reports whether a header, in lower case, belongs to one connection or to the gateway,
// so that it is not passed on.
func isHopByHop(lower string) bool {
	switch lower {
	case "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "accept-encoding",
		"last-event-id":
		return true
	}
	return headers.IsStripped(lower)
}
