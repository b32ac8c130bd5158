package xds

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	router "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/routes"
)

func alterListener(t testing.TB, r *Resources, change func(*hcm.HttpConnectionManager)) {
	t.Helper()
	l := proto.Clone(r.Listener.Message).(*listener.Listener)
	var m hcm.HttpConnectionManager
	if err := l.FilterChains[0].Filters[1].GetTypedConfig().UnmarshalTo(&m); err != nil {
		t.Fatal(err)
	}
	change(&m)
	l.FilterChains[0].Filters[1].ConfigType = &listener.Filter_TypedConfig{TypedConfig: mustPack(&m)}
	var err error
	if r.Listener, err = newResource(resourceName, l); err != nil {
		t.Fatal(err)
	}
}

// alterFilter unpacks a filter's config, lets change modify it, and packs it again.
func alterFilter(t testing.TB, m *hcm.HttpConnectionManager, name string, config validatedMessage, change func()) {
	t.Helper()
	for i, f := range m.HttpFilters {
		if f.Name == name {
			if err := f.GetTypedConfig().UnmarshalTo(config); err != nil {
				t.Fatal(err)
			}
			change()
			m.HttpFilters[i] = httpFilter(name, config)
		}
	}
}

// impatient shortens timeouts that are too long for a test.
func impatient(t testing.TB, r *Resources) {
	t.Helper()
	alterListener(t, r, func(m *hcm.HttpConnectionManager) {
		m.RequestHeadersTimeout = durationpb.New(100 * time.Millisecond)
		m.RequestTimeout = durationpb.New(3 * time.Second)
	})
	table := proto.Clone(r.Routes.Message).(*route.RouteConfiguration)
	decided := table.GetVirtualHosts()[0].GetMatcher().GetMatcherTree().GetExactMatchMap().GetMap()
	key := routes.Decided{}.Key()
	list := new(route.RouteList)
	if err := decided[key].GetAction().GetTypedConfig().UnmarshalTo(list); err != nil {
		t.Fatal(err)
	}
	list.GetRoutes()[0].GetRoute().IdleTimeout = durationpb.New(300 * time.Millisecond)
	decided[key] = takeRoutes(list.GetRoutes()...)
	var err error
	if r.Routes, err = newResource(resourceName, table); err != nil {
		t.Fatal(err)
	}
}

// spoil makes a cluster that Envoy refuses although it passes every check of Sluice.
func spoil(t testing.TB, m *Model) {
	t.Helper()
	c := proto.Clone(m.Cluster.Message).(*cluster.Cluster)
	c.LoadBalancingPolicy = lbPolicy("no policy", &router.Router{})
	bad, err := newResource(c.Name, c)
	if err != nil {
		t.Fatal(err)
	}
	m.Cluster = bad
}

// TestEnvoyOutlivesTheServer runs one Envoy through refusals, timeouts, and the death of its
// server.
func TestEnvoyOutlivesTheServer(t *testing.T) {
	t.Parallel()
	spoilt, changed, original := "", "", ""
	g := newGateway(t, Config{Listen: "127.0.0.1:0"}, func(r *Resources) {
		impatient(t, r)
		if m := r.Models[spoilt]; m != nil {
			spoil(t, m)
		}
		if m := r.Models[changed]; m != nil && m.Cluster.Version == original {
			withCluster(t, r, changed)
		}
	})
	a := newEngine(t, "a")
	g.settle(t, "good", replica("good-0", a))
	original = g.current.Models["good"].Cluster.Version
	t.Run("slow", func(t *testing.T) { slowReplies(t, g) })

	spoilt = "bad"
	g.set(t, "bad", replica("bad-0", a))
	eventually(t, "the bad cluster is refused", func() bool { return len(g.server.Status().Refused) == 1 })
	status := g.server.Status()
	if bad := status.Refused[0]; bad.Resource != "model/bad" || bad.Type != "cluster" || !strings.Contains(bad.Message, "model/bad") ||
		status.Nacks != 1 || !status.Configured || status.EnvoyVersion == "0.0.0" {
		t.Errorf("status %+v", status)
	}
	g.settle(t, "later", replica("later-0", a))
	g.chat(t, "later", a.String()).saw(t)

	// Envoy warms a cluster that changed. The server sends its endpoints again at once; otherwise
	// Envoy would acknowledge no other cluster meanwhile.
	changed = "good"
	g.set(t, "good", replica("good-0", a))
	g.settle(t, "after", replica("after-0", a))
	if n := g.stat(t, "cluster_manager.warming_clusters"); n != "0" {
		t.Errorf("%s clusters are warming", n)
	}
	g.chat(t, "good", a.String()).saw(t)

	spoilt = ""
	mended := g.acked("bad", []string{"bad-0"})
	g.mu.Lock()
	// The next update does not contain the spoilt cluster.
	g.current = nil
	g.mu.Unlock()
	g.update(t)
	g.await(t, mended, "the mended cluster is taken")
	g.chat(t, "bad", a.String()).saw(t)

	serverDies(t, g)
}

// slowReplies checks what Envoy answers after a timeout.
func slowReplies(t *testing.T, g *gateway) {
	silent := silentEngine(t)
	g.settle(t, "silent", replica("silent-0", silent))
	for name, test := range map[string]struct {
		ask    func(t *testing.T) answer
		status int
		code   string
	}{
		"headers": {func(t *testing.T) answer {
			return g.raw(t, "POST / HTTP/1.1\r\nHost: x\r\n")
		}, 408, "request_timeout"},
		"body": {func(t *testing.T) answer {
			return g.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nslow")
		}, 408, "request_timeout"},
		"processor": {func(t *testing.T) answer {
			return g.do(t, http.MethodPost, chatPath, nil, "x-test-hang", "1")
		}, 503, "gateway_unavailable"},
		"idle": {func(t *testing.T) answer {
			return g.chat(t, "silent", silent.String())
		}, 504, "upstream_timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := test.ask(t)
			if got.StatusCode != test.status || got.code(t) != test.code {
				t.Errorf("%d %s", got.StatusCode, got.body)
			}
			checkHeaders(t, got.Header, map[string]string{headers.Source: "gateway", "retry-after": "1"})
		})
	}
}

// While the server is away, streams continue and requests get a 503. The next server takes over
// Envoy unchanged.
func serverDies(t *testing.T, g *gateway) {
	next := make(chan struct{})
	engine := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // a test
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n", i)
			w.(http.Flusher).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
		}
	})
	g.settle(t, "running", replica("running-0", engine))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.addr+chatPath, bytes.NewReader([]byte("{}")))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("x-test-cluster", "model/running")
	request.Header.Set("x-test-stream", "1")
	stream, err := g.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	lines := bufio.NewScanner(stream.Body)
	expectLine := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("read %q (%v), want %q", lines.Text(), lines.Err(), want)
		}
	}
	goOn := func() {
		t.Helper()
		select {
		case next <- struct{}{}:
		case <-time.After(testTimeout):
			t.Fatal("the engine was cut off")
		}
	}
	expectLine("data: 0")

	g.stop()
	for name, got := range map[string]answer{
		"chat":   g.chat(t, "good", "192.0.2.1:1"),
		"models": g.do(t, "GET", "/v1/models", nil, "Authorization", "x"),
	} {
		if got.StatusCode != 503 || got.code(t) != "gateway_unavailable" {
			t.Errorf("%s without a server: %d %s", name, got.StatusCode, got.body)
		}
	}
	goOn()
	expectLine("data: 1")

	changes := func() string {
		return g.stat(t, "cluster_manager.cluster_(added|modified|removed)") + g.stat(t, "listener_manager.listener_(added|modified|removed)")
	}
	before := changes()
	if !strings.Contains(before, "cluster_added") || !strings.Contains(before, "listener_added") {
		t.Fatalf("no counters in %q", before)
	}
	g.mu.Lock()
	g.acks = map[string]map[string]netip.AddrPort{}
	g.server = NewServer(ServerConfig{OnAck: g.onAck})
	g.server.Set(g.current)
	g.mu.Unlock()
	known := g.acked("running", []string{"running-0"})
	serveControl(t, g.dir, g)
	g.await(t, known, "the new server knows what Envoy has")
	eventually(t, "Envoy counts as configured", func() bool { return g.server.Status().Configured })
	if after := changes(); after != before {
		t.Errorf("the new server changed Envoy: %s, before %s", after, before)
	}
	goOn()
	expectLine("data: 2")
	close(next)
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("the stream ended with %q, %v", lines.Text(), lines.Err())
	}
	a := newEngine(t, "a")
	g.settle(t, "good", replica("good-1", a))
	g.chat(t, "good", a.String()).saw(t)
}
