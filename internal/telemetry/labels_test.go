package telemetry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/request"
)

// world is what exists, for Names.
type world struct {
	mu    sync.Mutex
	names Names
}

func newWorld(models, upstreams, tenants string) *world {
	w := new(world)
	w.set(models, upstreams, tenants)
	return w
}

// set replaces the names, which are separated by spaces.
func (w *world) set(models, upstreams, tenants string) {
	of := func(names string) map[string]bool {
		all := map[string]bool{}
		for _, name := range strings.Fields(names) {
			all[name] = true
		}
		return all
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names = Names{of(models), of(upstreams), of(tenants)}
}

func (w *world) get() Names {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.names
}

func (w *world) knows(model string) bool { return w.get().Models[model] }

// servedBy is a streamed request that fills every series of a model and a replica.
func servedBy(model, replica string) request.Summary {
	return request.Summary{Model: model, Replica: replica, Status: 200, Source: "engine", Route: request.RouteNative, Stream: true, UsageKnown: true,
		PromptTokens: 10, CompletionTokens: 10, CachedKnown: true, FirstByte: time.Second, LastByte: 2 * time.Second, UpstreamDuration: time.Second}
}

// TestX18_SeriesGoWithTheirNames: the series of a replica or model that has gone are in one more
// scrape, and then deleted. Those of others stay.
func TestX18_SeriesGoWithTheirNames(t *testing.T) {
	t.Parallel()
	w := newWorld("chat embed", "pod-a pod-b", "acme")
	m := NewMetrics(MetricsConfig{Names: w.get, KnownModel: w.knows})
	for _, replica := range []string{"pod-a", "pod-b"} {
		m.Finished(servedBy("chat", replica))
		m.Finished(servedBy("embed", replica))
	}
	m.Finished(request.Summary{Model: "embed", Status: 429, Code: "queue_full", Source: "gateway"})
	count := func(part string) (n int) {
		for _, line := range scrape(t, m, "sluice_", "stream_", "scheduler_") {
			if strings.Contains(line, part) {
				n++
			}
		}
		return n
	}
	if count(`"pod-a"`) == 0 || count(`"pod-b"`) == 0 || count(`model="embed"`) == 0 {
		t.Fatal("series are missing")
	}
	stay := count(`model="chat"`)
	w.set("chat embed", "pod-b", "acme")
	if count(`"pod-a"`) == 0 {
		t.Error("the last increase of a replica that has gone is in no scrape")
	}
	if n := count(`"pod-a"`); n != 0 {
		t.Errorf("%d series of a replica that has gone", n)
	}
	w.set("chat", "pod-b", "acme")
	count("")
	if n := count(`model="embed"`); n != 0 {
		t.Errorf("%d series of a model that has gone", n)
	}
	if n := count(`model="chat"`); n == 0 || n >= stay || count(`"pod-b"`) == 0 {
		t.Errorf("%d series of the model that stays, before it were %d", n, stay)
	}
	m.Finished(servedBy("chat", "pod-a")) // it ends late
	count("")
	if n := count(`"pod-a"`); n != 0 {
		t.Errorf("%d series of a request that ended late", n)
	}
}

// TestX18_NewReplicasFindRoom: however many replicas come and go, and whether or not somebody
// scrapes, the one that lives now has a label.
func TestX18_NewReplicasFindRoom(t *testing.T) {
	t.Parallel()
	for _, scraped := range []bool{true, false} {
		w := newWorld("chat", "", "")
		m := NewMetrics(MetricsConfig{Names: w.get, KnownModel: w.knows, MaxUpstreams: 10})
		for i := range 50 {
			pod := fmt.Sprint("pod-", i)
			w.set("chat", pod, "")
			m.Finished(servedBy("chat", pod))
			if scraped {
				scrape(t, m, "sluice_")
			}
			m.swept.Store(0) // as if a second had passed
		}
		m.Finished(servedBy("chat", "pod-49"))
		if len(scrape(t, m, `sluice_upstream_request_duration_seconds_count{model="chat",upstream="pod-49"}`)) != 1 {
			t.Errorf("scraped %v: the newest replica has no label of its own: %v", scraped, slices.Sorted(maps.Keys(m.upstreams.admitted)))
		}
		if n := len(scrape(t, m, "sluice_upstream_request_duration_seconds_count")); n > 11 {
			t.Errorf("scraped %v: %d series", scraped, n)
		}
	}
}

// TestX18_TenantsAndConcurrency: tenants that have gone leave room, and series are deleted while
// requests end. The test is for the race detector, and for a series that outlives its label.
func TestX18_TenantsAndConcurrency(t *testing.T) {
	t.Parallel()
	w := newWorld("chat", "a b", "t-0")
	var tenant int
	m := NewMetrics(MetricsConfig{Names: w.get, KnownModel: w.knows, MaxModels: 3,
		Gauges: func() Gauges { return Gauges{Tenants: []TenantGauges{{Name: fmt.Sprint("t-", tenant), Running: 1}}} }})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 300 {
				m.Finished(servedBy("chat", []string{"a", "b"}[i%2]))
			}
		})
	}
	for tenant = range 20 {
		w.set("chat", []string{"a", "b"}[tenant%2], fmt.Sprint("t-", tenant))
		want := fmt.Sprintf(`sluice_tenant_running{tenant="t-%d"} 1`, tenant)
		if got := scrape(t, m, "sluice_tenant_running"); len(got) != 1 || got[0] != want {
			t.Fatalf("got %v, want %s", got, want)
		}
	}
	all.Wait()
	w.set("", "", "")
	scrape(t, m, "")
	for _, line := range scrape(t, m, "") {
		if strings.Contains(line, `"chat"`) || strings.Contains(line, `upstream="`) {
			t.Errorf("a series outlives its label: %s", line)
		}
	}
}
