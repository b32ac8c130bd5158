package carry

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Forwarder returns a func that has another process of this gateway answer a request. The func
// calls that process over the network, at the address at which it listens ("unix" and a path, or
// "tcp" and a host:port). The error says that the process does not answer; nil: a response was
// written. A response that breaks off ends in a panic with http.ErrAbortHandler, as in
// httputil.ReverseProxy. The other process does not forward the request again.
func Forwarder(network, address string, log *zap.Logger) func(http.ResponseWriter, *http.Request) *openai.Error {
	transport := newTransport(network, address)
	return func(w http.ResponseWriter, r *http.Request) *openai.Error {
		var failed error
		proxy := &httputil.ReverseProxy{
			Rewrite: func(pr *httputil.ProxyRequest) {
				pr.SetURL(&url.URL{Scheme: "http", Host: "sluice"})
				pr.Out.Host = pr.In.Host
				pr.Out.URL.RawQuery = pr.In.URL.RawQuery
				pr.Out.Header.Set(headers.Forwarded, headers.ForwardedByProcess)
			},
			Transport: transport, FlushInterval: -1,
			ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
		}
		// The other process may answer before it has read the body, for which it needs only the
		// head. Without this, net/http would close the body then, and with it the answer. A writer
		// that is not net/http's needs none of it.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
		if failed == nil || r.Context().Err() != nil {
			return nil
		}
		log.Warn("request not forwarded, the other process does not answer", zap.String("address", address), zap.Error(failed))
		return openai.Errorf(openai.CodeGatewayUnavailable, "The process of the gateway that has this request does not answer.")
	}
}

// newTransport returns a transport to one address. It opens a connection for each request, so that
// a request always reaches the newest process that listens at a path.
func newTransport(network, address string) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
		DisableKeepAlives: true, DisableCompression: true,
	}
}

// ownsPath is the path at which a predecessor says whether it has a request id.
const ownsPath = "/owns"

// askTimeout bounds the question whether a predecessor has a request id.
const askTimeout = time.Second

// Handler returns the handler of a predecessor's own socket. It says which request ids the process
// has (owns), and what is known of its requests. Requests with an offer of this process go to
// offered, all others to calls.
func Handler(owns func(tenant, id string) bool, requests *request.Store, offered, calls http.Handler) http.Handler {
	known := recordsHandler(requests)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch {
		case r.Header.Get(headers.Handoff) != "":
			offered.ServeHTTP(w, r)
		case r.URL.Path == recordsPath, strings.HasPrefix(r.URL.Path, recordPath):
			known.ServeHTTP(w, r)
		case r.URL.Path != ownsPath:
			calls.ServeHTTP(w, r)
		case !owns(q.Get("tenant"), q.Get("id")):
			w.WriteHeader(http.StatusNotFound)
		}
	})
}

// Find returns the predecessor that has the request id.
func (s *Server) Find(ctx context.Context, tenant, id string) (Process, bool) {
	for _, p := range s.Predecessors() {
		if p.owns(ctx, tenant, id) {
			return p.Process, true
		}
	}
	return Process{}, false
}

// owns asks a predecessor whether it has the request id. One that does not answer has not.
func (p Process) owns(ctx context.Context, tenant, id string) bool {
	query := url.Values{"tenant": {tenant}, "id": {id}}.Encode()
	return p.ask(ctx, http.MethodGet, ownsPath+"?"+query, nil) == http.StatusOK
}

// validPath is the path at which the newest process says whether a key is still valid.
const validPath = "/valid"

// validTimeout bounds the question whether a key is still valid. It is longer than a process may
// take to read the signing keys of an identity provider again.
const validTimeout = 2 * time.Second

// KinHandler returns the handler of the socket at which the newest process serves its predecessors.
// It says which keys are still valid, by the tenant and the digest of the key. All other requests
// go to calls.
func KinHandler(valid func(tenant, key string) bool, calls http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != validPath:
			calls.ServeHTTP(w, r)
		case !valid(r.Header.Get(headers.Tenant), r.Header.Get(headers.Key)):
			w.WriteHeader(http.StatusForbidden)
		}
	})
}

// IsRevoked asks the newest process, which listens on the socket, whether a key is not valid any
// more. It is false if that process does not answer, or is of a release that does not know the
// question.
func IsRevoked(ctx context.Context, socket, tenant, key string) bool {
	ctx, cancel := context.WithTimeout(ctx, validTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sluice"+validPath, nil)
	if err != nil { // the address is a constant
		panic(err)
	}
	r.Header.Set(headers.Tenant, tenant)
	r.Header.Set(headers.Key, key)
	answer, err := newTransport("unix", socket).RoundTrip(r)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode == http.StatusForbidden
}
