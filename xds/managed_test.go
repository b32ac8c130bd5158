package xds

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/grpc"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/routes"
)

func managedConfig(dir string) Config {
	return Config{
		Listen: "127.0.0.1:0", MaxBody: 4 << 20,
		RelaySocket: filepath.Join(dir, "relay.sock"), GRPCSocket: filepath.Join(dir, "grpc.sock"),
	}
}

// managed is a gateway with stand-ins for the parts that carry streams themselves.
type managed struct {
	*gateway
	grpc *grpc.Server

	mu sync.Mutex
	// arrived counts the requests at the relay, by handoff. Guarded by mu.
	arrived map[string]int
}

func newManaged(t *testing.T) *managed {
	t.Helper()
	dir := shortDir(t)
	m := &managed{grpc: serveGRPC(t, dir), arrived: map[string]int{}}
	relay := &http.Server{Handler: m}
	l := listenUnix(t, dir, "relay.sock")
	go relay.Serve(l) //nolint:errcheck // ends with Close
	t.Cleanup(func() { relay.Close() })
	m.gateway = newGatewayIn(t, dir, managedConfig(dir), nil)
	return m
}

// ServeHTTP stands in for the relay. It echoes the messages of WebSockets, answers requests for
// streams with what they asked for, and answers requests with a handoff with what it received.
func (m *managed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("x-test-drop") != "":
		m.count(r)
		panic(http.ErrAbortHandler)
	case r.URL.Path == "/v1/realtime":
		echo(w, r)
	case strings.HasPrefix(r.URL.Path, "/v1/streams"):
		b, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if r.Header.Get("x-test-engine") != "" {
			w.Header().Set(headers.Source, headers.SourceEngine)
		}
		fmt.Fprintf(w, "%s %s tenant=%s read=%d", r.Method, r.URL.EscapedPath(), r.Header.Get(headers.Tenant), len(b))
	default:
		m.count(r)
		b, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set(headers.Source, headers.SourceEngine)
		w.Header().Set(headers.Replica, "r-0")
		json.NewEncoder(w).Encode(seen{Engine: "relay", Header: r.Header, Size: len(b), Digest: digest(b)}) //nolint:errcheck // the client sees
	}
}

func (m *managed) count(r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arrived[r.Header.Get(headers.Handoff)]++
}

func (m *managed) arrivals(ticket string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.arrived[ticket]
}

func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("x-test-protocols", strings.Join(r.Header.Values("sec-websocket-protocol"), " + "))
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"realtime"}, InsecureSkipVerify: true})
	if err != nil {
		// Accept has written the error.
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(1 << 20)
	tenant := r.Header.Get(headers.Tenant)
	for {
		kind, b, err := c.Read(r.Context())
		if err != nil || c.Write(r.Context(), kind, append(b, " "+tenant...)) != nil {
			return
		}
	}
}

// TestManaged sends requests through a real Envoy to the parts of Sluice that carry streams
// themselves.
func TestManaged(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	for name, test := range map[string]func(*testing.T, *managed){
		"relay":        relayed,
		"big":          relayedBody,
		"reset":        relayedOnce,
		"forged":       forgedTicket,
		"streams":      runningStreams,
		"realtime":     realtime,
		"browser":      browsersKey,
		"no websocket": noWebSocket,
		"HTTP/2":       webSocketOverHTTP2,
		"gRPC":         grpcMessages,
		"deadline":     grpcDeadline,
		"refused":      grpcRefused,
		"not gRPC":     notGRPC,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, m)
		})
	}
}

func (m *managed) relay(t *testing.T, ticket string, body []byte, pairs ...string) answer {
	t.Helper()
	return m.do(t, http.MethodPost, chatPath, body, append(pairs, "x-test-cluster", headers.RelayCluster, "x-test-ticket", ticket)...)
}

// The handoff arrives, the client's key does not, and the header of the relay that names who
// answered is kept.
func relayed(t *testing.T, m *managed) {
	for stream, name := range map[string]string{"": routes.Relay, "1": routes.RelayStream} {
		got := m.relay(t, "t"+stream, []byte("{}"), "x-test-stream", stream, "Authorization", "Bearer k", "X-Api-Key", "k", "Api-Key", "k",
			"Proxy-Authorization", "k", "Accept-Encoding", "br", "x-test-note-"+headers.RemainingTokens, "7")
		saw := got.saw(t)
		checkHeaders(t, saw.Header, map[string]string{
			headers.Handoff: "t" + stream, "authorization": "", "x-api-key": "", "api-key": "", "proxy-authorization": "", "accept-encoding": "br",
		})
		checkHeaders(t, got.Header, map[string]string{headers.Source: "engine", headers.Replica: "r-0", "cache-control": "",
			headers.RemainingTokens: "7", headers.LimitTokens: ""})
		if e := m.log.wait(t, got.Header.Get(headers.RequestID)); e.GetCommonProperties().GetRouteName() != name {
			t.Errorf("route %q, want %q", e.GetCommonProperties().GetRouteName(), name)
		}
	}
}

func relayedBody(t *testing.T, m *managed) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 2<<20/16)
	if saw := m.relay(t, "big", body).saw(t); saw.Digest != digest(body) {
		t.Errorf("%d bytes became %d others", len(body), saw.Size)
	}
}

// Envoy retries nothing.
func relayedOnce(t *testing.T, m *managed) {
	got := m.relay(t, "once", []byte("{}"), "x-test-drop", "1", "x-test-retries", "3")
	if got.StatusCode != 503 || got.code(t) != "gateway_unavailable" {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	checkHeaders(t, got.Header, map[string]string{headers.Source: "gateway", "retry-after": "1"})
	if n := m.arrivals("once"); n != 1 {
		t.Errorf("the ticket was shown %d times", n)
	}
}

// A handoff that a client sends has no effect, even with a decision for an engine.
func forgedTicket(t *testing.T, m *managed) {
	a := newEngine(t, "a")
	m.settle(t, "forged", replica("forged-0", a))
	for _, name := range []string{headers.Handoff, strings.ToUpper(headers.Handoff), "x_sluice_ticket", "x-sluice_ticket"} {
		head := "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\n" + name + ": forged\r\n" + headers.Route + ": " + routes.Decided{Relay: true}.Key() + "\r\nContent-Length: 2\r\n"
		if got := m.raw(t, head+"\r\n{}"); got.StatusCode != 503 || got.code(t) != "gateway_unavailable" {
			t.Errorf("%s: %d %s", name, got.StatusCode, got.body)
		}
		got := m.raw(t, head+"x-test-cluster: model/forged\r\nx-test-list: "+a.String()+"\r\n\r\n{}")
		if saw := got.saw(t); saw.Engine != "a" {
			t.Errorf("%s, decided: came to the %s", name, saw.Engine)
		}
	}
	if m.arrivals("forged") > 0 {
		t.Error("the relay saw it")
	}
}

func runningStreams(t *testing.T, m *managed) {
	for _, test := range []struct{ method, path string }{
		{"GET", "/v1/streams/a"}, {"GET", "/v1/streams/a%2Fb%20c"}, {"POST", "/v1/streams/a/cancel"}, {"DELETE", "/v1/streams/a"}, {"GET", "/v1/streams/"},
	} {
		got := m.do(t, test.method, test.path+"?after=1", []byte("{}"), "Authorization", "k", headers.Tenant, "root", headers.Handoff, "x")
		if want := test.method + " " + test.path + " tenant=acme read=2"; got.StatusCode != 200 || string(got.body) != want {
			t.Errorf("%d %s, want %s", got.StatusCode, got.body, want)
		}
		checkHeaders(t, got.Header, map[string]string{headers.Source: "gateway"})
		if got := m.do(t, test.method, test.path, nil); got.StatusCode != 401 {
			t.Errorf("without a key: %d %s", got.StatusCode, got.body)
		}
	}
	got := m.do(t, "GET", "/v1/streams/a", nil, "Authorization", "k", "x-test-engine", "1")
	checkHeaders(t, got.Header, map[string]string{headers.Source: "engine"})
	tooLarge(t, m.gateway, "/v1/streams/a/cancel")
	if got := m.do(t, "GET", "/v1/streams/a", nil, "Authorization", "k", "x-test-drop", "1"); got.StatusCode != 503 || got.code(t) != "gateway_unavailable" {
		t.Errorf("when the relay drops it: %d %s", got.StatusCode, got.body)
	}
	// The last two paths are not valid URLs.
	for _, path := range []string{"/v1/streamsandmore", "/v1/streams", "/v1/streams/%zz", "/v1/streams/a%2"} {
		if got := m.raw(t, "GET "+path+" HTTP/1.1\r\nhost: x\r\nx-test-answer: 404\r\n\r\n"); string(got.body) != "sluice says 404" {
			t.Errorf("%s: %d %s", path, got.StatusCode, got.body)
		}
	}
}

// The routes of managed streams have no time limit. The test reads the routes, since it cannot wait
// for a timeout that never comes.
func TestManagedStreamsHaveNoTimeLimit(t *testing.T) {
	t.Parallel()
	r := mustBuild(t, managedConfig("/run"), fleet())
	seen := map[string]bool{}
	for _, r := range routesIn(r.Routes.Message.(*route.RouteConfiguration)) {
		a := r.GetRoute()
		if own := a.GetCluster(); own != headers.RelayCluster && own != headers.GRPCCluster {
			continue
		}
		seen[r.Name] = true
		if a.Timeout == nil || a.Timeout.AsDuration() != 0 || a.IdleTimeout == nil || a.IdleTimeout.AsDuration() != 0 || a.MaxStreamDuration != nil {
			t.Errorf("%s has a limit: %v", r.Name, a)
		}
		if a.RetryPolicy != nil || a.HashPolicy != nil {
			t.Errorf("%s is tried again: %v", r.Name, a)
		}
	}
	if len(seen) != 6 {
		t.Errorf("routes %v", seen)
	}
}
