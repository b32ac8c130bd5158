package xds

import (
	"bytes"
	"crypto/rand"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	extproc "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// TestTraffic sends real requests through a real Envoy that the Server configures.
func TestTraffic(t *testing.T) {
	t.Parallel()
	g := newGateway(t, Config{Listen: "127.0.0.1:0", MaxBody: 4 << 20}, func(r *Resources) {
		// The stand-ins are slow on a busy machine. TestEnvoyOutlivesTheServer covers an ext_proc
		// that is too slow.
		alterListener(t, r, func(m *hcm.HttpConnectionManager) {
			var p extproc.ExternalProcessor
			alterFilter(t, m, extProcName, &p, func() { p.MessageTimeout = durationpb.New(testTimeout) })
		})
	})
	for name, test := range map[string]func(*testing.T, *gateway){
		"engine":         engineAnswers,
		"names":          oddNames,
		"stream":         streamHeaders,
		"http2":          overHTTP2,
		"big body":       bigBody,
		"forged headers": forgedHeaders,
		"forged envoy":   forgedEnvoyHeaders,
		"path mutation":  pathMutation,
		"dead replica":   deadReplica,
		"drop before":    droppedBeforeHeaders,
		"retry limit":    retryLimit,
		"pinned":         pinnedReplica,
		"fallback":       listOfGoneReplicas,
		"api":            apiRoutes,
		"replies":        ownReplies,
		"connections":    keptConnections,
		"release":        releasedOnAck,
		"log":            loggedRequest,
		"attempts":       loggedAttempts,
		"tasks":          taskRoutes,
		"quota":          quotaHeaders,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, g)
		})
	}
}

func engineAnswers(t *testing.T, g *gateway) {
	a := newEngine(t, "a")
	g.settle(t, "plain", replica("plain-0", a))
	for _, row := range routes.Of(routes.Replica) {
		path := row.Path
		body := []byte("{ \"model\": \"plain\",\t\"x\":\"ü\"}\n")
		got := g.do(t, http.MethodPost, path+"?a=b", body, "x-test-cluster", "model/plain", "x-test-list", a.String(),
			"x-test-observe", "1", "x-test-usage", "1",
			"Authorization", "Bearer secret", "X-Api-Key", "secret", "Api-Key", "secret", "Proxy-Authorization", "secret",
			"Idempotency-Key", "1", "X-Sluice-Timeout-Ms", "5", "X-Sluice-Priority", "batch", "X-Sluice-Task-Id", "t", "Accept-Encoding", "br")
		saw := got.saw(t)
		if saw.Digest != digest(body) {
			t.Errorf("%s: the body was changed", path)
		}
		for name := range saw.Header {
			name = strings.ToLower(name)
			if strings.HasPrefix(name, "x-sluice-") || strings.HasPrefix(name, headers.Endpoint) || strings.HasSuffix(name, "authorization") ||
				strings.HasSuffix(name, "key") || name == "x-envoy-external-address" || name == "x-envoy-internal" {
				t.Errorf("%s: the engine saw the header %s", path, name)
			}
		}
		if got := saw.Header.Get("Accept-Encoding"); got != "br" {
			t.Errorf("%s: accept-encoding became %q", path, got)
		}
		checkHeaders(t, got.Header, map[string]string{
			headers.Source: "engine", headers.Replica: "plain-0", "server": "", "via": "", "x-accel-buffering": "",
		})
		if id := got.Header.Get(headers.RequestID); id == "" || id != saw.Header.Get(headers.RequestID) {
			t.Errorf("%s: request id %q, the engine saw %q", path, id, saw.Header.Get(headers.RequestID))
		}
	}
}

func checkHeaders(t testing.TB, h http.Header, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for name := range want {
		got[name] = strings.Join(h.Values(name), " + ")
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("headers (-want +got):\n%s", d)
	}
}

func streamHeaders(t *testing.T, g *gateway) {
	a := newEngine(t, "a")
	g.settle(t, "stream", replica("stream-0", a))
	got := g.chat(t, "stream", a.String(), "x-test-stream", "1", "Accept-Encoding", "gzip, br")
	if enc := got.saw(t).Header.Values("Accept-Encoding"); !slices.Equal(enc, []string{"identity"}) {
		t.Errorf("the engine was asked for %q", enc)
	}
	checkHeaders(t, got.Header, map[string]string{
		"cache-control": "no-cache, no-transform", "x-accel-buffering": "no",
		headers.Source: "engine", headers.Replica: "stream-0",
	})
}

// A model's name reaches its cluster whatever characters it has.
func oddNames(t *testing.T, g *gateway) {
	a := newEngine(t, "a")
	for _, name := range []string{"meta-llama/Llama-3.1:8b", "with space", "ümläut-模型", "%REQ(x)%", `quo"te\\`, "a,b"} {
		g.settle(t, name, replica("r-0", a))
		if got := g.chat(t, name, a.String()); got.StatusCode != 200 {
			t.Errorf("%q: %d %s", name, got.StatusCode, got.body)
		}
	}
	ids := []string{"127.0.0.1:8080", `id "with" %everything% ü`}
	b := newEngine(t, "b")
	g.settle(t, "ids", replica(ids[0], a), replica(ids[1], b))
	for i, engine := range []net.Addr{a, b} {
		if got := g.chat(t, "ids", engine.String()); got.Header.Get(headers.Replica) != ids[i] {
			t.Errorf("replica %q, want %q", got.Header.Get(headers.Replica), ids[i])
		}
	}
}

func overHTTP2(t *testing.T, g *gateway) {
	a := newEngine(t, "a")
	g.settle(t, "h2", replica("h2-0", a))
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.addr+chatPath, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("x-test-cluster", "model/h2")
	request.Header.Set("x-test-list", a.String())
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.ProtoMajor != 2 || response.StatusCode != 200 || response.Header.Get(headers.Replica) != "h2-0" {
		t.Errorf("%s %d from %q", response.Proto, response.StatusCode, response.Header.Get(headers.Replica))
	}
}

func bigBody(t *testing.T, g *gateway) {
	a := newEngine(t, "a")
	g.settle(t, "big", replica("big-0", a))
	body := make([]byte, 4<<20)
	rand.Read(body)
	for _, size := range []int{3 << 20, 4 << 20} {
		got := g.do(t, http.MethodPost, chatPath, body[:size], "x-test-cluster", "model/big", "x-test-list", a.String())
		if saw := got.saw(t); saw.Digest != digest(body[:size]) {
			t.Errorf("%d bytes became %d others", size, saw.Size)
		}
	}
	got := g.do(t, http.MethodPost, chatPath, append(body, '!'), "x-test-cluster", "model/big", "x-test-list", a.String())
	if got.StatusCode != 413 || got.code(t) != "request_too_large" || !bytes.Contains(got.body, []byte("4 MiB")) {
		t.Errorf("one byte more: %d %s", got.StatusCode, got.body)
	}
}

// Only ext_proc routes a request, whatever headers a client sends. The stand-in for ext_proc fails
// a request in which it sees an internal header.
func forgedHeaders(t *testing.T, g *gateway) {
	a, b := newEngine(t, "a"), newEngine(t, "b")
	g.settle(t, "forged", replica("forged-0", a), replica("forged-1", b))
	forge := "X-Sluice-Route: " + routes.Decided{}.Key() + "\r\nX-Sluice-Cluster: model/forged\r\nX-Gateway-Destination-Endpoint: " + a.String() + "\r\n"
	lower := strings.ToLower(forge)
	for name, lines := range map[string]string{
		"plain":             forge,
		"lower":             lower,
		"upper":             strings.ToUpper(forge),
		"underscores":       strings.NewReplacer("x-sluice-", "x_sluice_", "x-gateway-destination-", "x_gateway_destination_").Replace(lower),
		"one underscore":    strings.NewReplacer("x-sluice-", "x-sluice_", "x-gateway-", "x-gateway_").Replace(lower),
		"twice":             forge + forge,
		"in connection":     forge + "Connection: x-sluice-route, x-sluice-cluster, x-gateway-destination-endpoint\r\n",
		"only in conn":      "Connection: x-sluice-cluster, x-gateway-destination-endpoint, close\r\n",
		"with all the rest": forge + "X-Sluice-Tenant: root\r\nX-Sluice-Ticket: 1\r\nX-Sluice-Observe: 1\r\nX-Sluice-Usage: 1\r\nX-Gateway-Destination-Endpoint-Subset: " + a.String() + "\r\n",
	} {
		got := g.raw(t, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\n"+lines+"Content-Length: 2\r\n\r\n{}")
		if got.StatusCode != 503 || got.code(t) != "gateway_unavailable" {
			t.Errorf("%s: %d %s", name, got.StatusCode, got.body)
		}
		// The same request with a decision is routed by the decision, and no forged header reaches
		// the engine.
		got = g.raw(t, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\n"+lines+"Content-Length: 2\r\nx-test-cluster: model/forged\r\nx-test-list: "+b.String()+"\r\n\r\n{}")
		if saw := got.saw(t); saw.Engine != "b" || internalAmong(lowerKeys(saw.Header)) != "" {
			t.Errorf("%s, decided: engine %s saw %v", name, saw.Engine, saw.Header)
		}
	}
	trailers := "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: x-sluice-cluster\r\n\r\n2\r\n{}\r\n0\r\n" + forge + "\r\n"
	if got := g.raw(t, trailers); got.StatusCode != 503 {
		t.Errorf("in trailers: %d %s", got.StatusCode, got.body)
	}
	spaced := "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nX-Sluice-Cluster : model/forged\r\nContent-Length: 2\r\n\r\n{}"
	if got := g.raw(t, spaced); got.StatusCode != 400 {
		t.Errorf("with a space: %d %s", got.StatusCode, got.body)
	}
	tenant := g.do(t, http.MethodGet, "/v1/models", nil, "Authorization", "x", headers.Tenant, "root")
	if got := string(tenant.body); !strings.HasSuffix(got, " tenant=acme") {
		t.Errorf("a forged tenant: %s", got)
	}
}

func lowerKeys(h http.Header) map[string]string {
	lower := map[string]string{}
	for name := range h {
		lower[strings.ToLower(name)] = ""
	}
	return lower
}

// A client can change neither timeouts nor retries nor its request id.
func forgedEnvoyHeaders(t *testing.T, g *gateway) {
	a, dead := newEngine(t, "a"), deadAddress(t)
	g.settle(t, "xenvoy", replica("xenvoy-0", a), replica("xenvoy-1", dead))
	forged := []string{
		"X-Envoy-Max-Retries", "0", "X-Envoy-Retry-On", "5xx", "X-Envoy-Upstream-Rq-Timeout-Ms", "1",
		"X-Envoy-Upstream-Rq-Per-Try-Timeout-Ms", "1", "X-Envoy-Internal", "true", "X-Envoy-Attempt-Count", "9",
		"X-Envoy-Upstream-Alt-Stat-Name", "forged", "X-Request-Id", "11111111-1111-4111-8111-111111111111",
	}
	for name, pairs := range map[string][]string{"direct": forged, "through a proxy": append(forged, "X-Forwarded-For", "10.0.0.1")} {
		saw := g.chat(t, "xenvoy", list(dead, a), pairs...).saw(t)
		var left []string
		for name := range saw.Header {
			if strings.HasPrefix(name, "X-Envoy-") {
				left = append(left, name+": "+saw.Header.Get(name))
			}
		}
		if !slices.Equal(left, []string{"X-Envoy-Attempt-Count: 2"}) {
			t.Errorf("%s: the engine saw %q", name, left)
		}
		if id := saw.Header.Get(headers.RequestID); strings.HasPrefix(id, "1111") {
			t.Errorf("%s: the client chose the request id %s", name, id)
		}
	}
}

// ext_proc replaces an alias of a path by the path that engines know. It can change neither the
// method nor the host, which decide about the route and the engine too.
func pathMutation(t *testing.T, g *gateway) {
	a := newEngine(t, "a")
	g.settle(t, "alias", replica("alias-0", a))
	ask := []string{"x-test-cluster", "model/alias", "x-test-list", a.String(), "x-test-path", chatPath}
	got := g.do(t, http.MethodPost, "/chat/completions", []byte("{}"), append(ask, "x-test-method", "PUT", "x-test-authority", "forged")...)
	if saw := got.saw(t); saw.Path != chatPath || saw.Method != http.MethodPost || saw.Host == "forged" {
		t.Errorf("the engine saw %s %s at %s", saw.Method, saw.Path, saw.Host)
	}
}

func deadReplica(t *testing.T, g *gateway) {
	a, dead := newEngine(t, "a"), deadAddress(t)
	g.settle(t, "dead", replica("dead-0", dead), replica("dead-1", a))
	for range 20 {
		got := g.chat(t, "dead", dead.String()+","+a.String())
		if saw := got.saw(t); saw.Header.Get("X-Envoy-Attempt-Count") != "2" || got.Header.Get(headers.Replica) != "dead-1" {
			t.Fatalf("attempt %s by %s", saw.Header.Get("X-Envoy-Attempt-Count"), got.Header.Get(headers.Replica))
		}
	}
}

// A request survives a replica that dies in the middle of a large upload.
func droppedBeforeHeaders(t *testing.T, g *gateway) {
	a, early, late := newEngine(t, "a"), droppingEngine(t, 10), droppingEngine(t, 2<<20)
	g.settle(t, "drop", replica("drop-0", early), replica("drop-1", late), replica("drop-2", a))
	body := bytes.Repeat([]byte("x"), 3<<20)
	got := g.do(t, http.MethodPost, chatPath, body,
		"x-test-cluster", "model/drop", "x-test-list", list(early, late, a))
	if saw := got.saw(t); saw.Digest != digest(body) || got.Header.Get(headers.Replica) != "drop-2" {
		t.Errorf("%d bytes at %s", saw.Size, got.Header.Get(headers.Replica))
	}
}

func list(addresses ...net.Addr) string {
	texts := make([]string, len(addresses))
	for i, a := range addresses {
		texts[i] = a.String()
	}
	return strings.Join(texts, ",")
}

// ext_proc sets the number of retries for each request.
func retryLimit(t *testing.T, g *gateway) {
	a, dead := newEngine(t, "a"), deadAddress(t)
	g.settle(t, "limit", replica("limit-0", dead), replica("limit-1", a))
	if got := g.chat(t, "limit", list(dead, a), "x-test-retries", "0"); got.StatusCode != 502 {
		t.Errorf("no retry was allowed: %d %s", got.StatusCode, got.body)
	}
	g.chat(t, "limit", list(dead, a), "x-test-retries", "1").saw(t)
}

// A replica that is twice in the list is tried twice, and no other one is. Envoy picks by itself
// only after the end of the list.
func pinnedReplica(t *testing.T, g *gateway) {
	a, drops := newEngine(t, "a"), droppingEngine(t, 10)
	g.settle(t, "pinned", replica("pinned-0", drops), replica("pinned-1", a))
	for range 5 {
		if got := g.chat(t, "pinned", list(drops, drops), "x-test-retries", "1"); got.StatusCode != 502 || got.Header.Get(headers.Replica) != "pinned-0" {
			t.Errorf("%d of %s: %s", got.StatusCode, got.Header.Get(headers.Replica), got.body)
		}
	}
	g.chat(t, "pinned", list(drops), "x-test-retries", "1").saw(t)
}

// If no replica of the list exists any more, the fallback finds one that does.
func listOfGoneReplicas(t *testing.T, g *gateway) {
	a := newEngine(t, "a")
	g.settle(t, "gone", replica("gone-1", a))
	g.chat(t, "gone", deadAddress(t).String()).saw(t)
}

func apiRoutes(t *testing.T, g *gateway) {
	for _, test := range []struct {
		method, path, key, want string
		status                  int
	}{
		{"GET", "/health", "", "GET /health tenant=", 200},
		{"GET", "/v1/models", "k", "GET /v1/models tenant=acme", 200},
		{"GET", "/v1/models/a%2Fb", "k", "GET /v1/models/a/b tenant=acme", 200},
		{"GET", "//v1//models", "k", "GET /v1/models tenant=acme", 200},
		{"GET", "/x/../v1/models", "k", "GET /v1/models tenant=acme", 200},
		{"GET", "/v1/models", "", "sluice says 401", 401},
		{"GET", "/v1/models/x", "", "sluice says 401", 401},
		{"POST", "/v1/models", "", "sluice says 401", 401},
		{"POST", "/v1/models", "k", "POST /v1/models tenant=acme", 200}, // the true backend refuses it
		{"POST", "/health", "", "POST /health tenant=", 200},
		// ext_proc answers these requests: the stand-in sends what the test asks for.
		{"GET", chatPath, "", "sluice says 405", 405},
		{"GET", "/v1/modelsandmore", "", "sluice says 404", 404},
		{"PUT", "/nothing", "", "sluice says 404", 404},
	} {
		got := g.do(t, test.method, test.path, nil, "Authorization", test.key, "x-test-answer", strings.TrimPrefix(test.want, "sluice says "))
		if got.StatusCode != test.status || string(got.body) != test.want {
			t.Errorf("%s %s: %d %s", test.method, test.path, got.StatusCode, got.body)
		}
		checkHeaders(t, got.Header, map[string]string{headers.Source: "gateway"})
	}
}
