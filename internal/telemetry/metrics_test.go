package telemetry

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
)

// scrape returns the sample lines that begin with one of the prefixes.
func scrape(t *testing.T, m *Metrics, prefixes ...string) []string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	var lines []string
	for line := range strings.Lines(w.Body.String()) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func TestMetricsOfFinished(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsConfig{})
	ok := request.Summary{Model: "chat", Replica: "chat-0", Status: 200, Source: "engine", Stream: true,
		Duration: 2 * time.Second, FirstByte: 40 * time.Millisecond, UpstreamDuration: time.Second}
	cut := ok
	cut.Flags, cut.UpstreamDuration = "UPE", 0
	left := request.Summary{Model: "chat", Stream: true, Flags: "DC", Source: "gateway", Duration: time.Second}
	refused := request.Summary{Model: "chat", Status: 429, Source: "gateway"}
	unauthorized := request.Summary{Status: 401, Source: "gateway"}
	slow := request.Summary{Model: "chat", Stream: true, Route: request.RouteManaged, Status: 200, Source: "engine", Cause: request.CauseSlowClient}
	for _, q := range []request.Summary{ok, ok, cut, left, refused, unauthorized, slow} {
		m.Finished(q)
	}
	got := scrape(t, m, "sluice_requests_total", "sluice_request_duration_seconds_sum", "sluice_request_duration_seconds_count",
		"sluice_first_byte_seconds_count", "sluice_upstream_request_duration_seconds_sum", "sluice_upstream_request_duration_seconds_count",
		"stream_disconnects_total")
	want := []string{
		`sluice_first_byte_seconds_count{model="chat"} 3`,
		`sluice_request_duration_seconds_sum{model=""} 0`,
		`sluice_request_duration_seconds_count{model=""} 1`,
		`sluice_request_duration_seconds_sum{model="chat"} 7`,
		`sluice_request_duration_seconds_count{model="chat"} 6`,
		`sluice_requests_total{code="200",model="chat",source="engine"} 4`,
		`sluice_requests_total{code="401",model="",source="gateway"} 1`,
		`sluice_requests_total{code="429",model="chat",source="gateway"} 1`,
		`sluice_requests_total{code="499",model="chat",source="gateway"} 1`,
		`sluice_upstream_request_duration_seconds_sum{model="chat",upstream="chat-0"} 2`,
		`sluice_upstream_request_duration_seconds_count{model="chat",upstream="chat-0"} 2`,
		`stream_disconnects_total{cause="cancelled"} 0`,
		`stream_disconnects_total{cause="client"} 1`,
		`stream_disconnects_total{cause="engine"} 1`,
		`stream_disconnects_total{cause="gateway"} 0`,
		`stream_disconnects_total{cause="moderation"} 0`,
		`stream_disconnects_total{cause="slow_client"} 1`,
		`stream_disconnects_total{cause="timeout"} 0`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// The budgets of many keys leave those of no tenant out.
func TestB3_BudgetsOfTenantsAreInTheMetrics(t *testing.T) {
	t.Parallel()
	var all []SpendingGauges
	for i := range maxSpending {
		all = append(all, SpendingGauges{Tenant: "acme", Key: "acme/" + strconv.Itoa(i), Per: "day", Of: "tokens", Hard: 1})
	}
	all = append(all, SpendingGauges{Tenant: "beta", Per: "day", Of: "tokens", Hard: 1})
	m := NewMetrics(MetricsConfig{Gauges: func() Gauges { return Gauges{Spending: all} }})
	got := scrape(t, m, "sluice_tenant_budget_used")
	if len(got) != maxSpending || !slices.Contains(got, `sluice_tenant_budget_used{key="",of="tokens",per="day",tenant="beta"} 0`) {
		t.Errorf("%d budgets, without that of the tenant beta", len(got))
	}
}

func TestMetricsOfEvents(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsConfig{Version: "1.2.3", Gauges: func() Gauges {
		return Gauges{Envoy: "1.40.0", XDSNacks: 3, Envoys: 2, Models: []ModelGauges{
			{Name: "chat", InFlight: 4, Queued: 2, Replicas: map[string]int{"ready": 2, "failed": 1}},
		}, Pools: map[string][]string{"auto": {"chat"}}, Tenants: []TenantGauges{{"acme", 3, 1}}, Shared: &SharedGauges{Up: true, Gateways: 2, Errors: 5},
			Routing:  &RoutingGauges{Messages: map[string]uint64{"sent": 6}, Placements: map[string]uint64{"dropped": 7}, SentBytes: 8},
			Spending: []SpendingGauges{{Tenant: "acme", Per: "month", Of: "cost", Used: 41.5, Hard: 50}, {Tenant: "acme", Key: "acme/1", Per: "day", Of: "tokens", Soft: 9}},
			GPUs:     []GPUGauges{{UUID: "GPU-a", Total: 80, Used: 7}}}
	}})
	m.Waited(20 * time.Millisecond)
	m.Retried("chat", "acme", request.ReasonConnect)
	m.ConfigReloaded(true)
	m.ConfigReloaded(false)
	m.ConfigReloaded(false)
	got := scrape(t, m, "scheduler_wait_time_seconds_count", "stream_retries_total", "sluice_config_reloads_total", "sluice_build_info",
		"sluice_xds_nacks_total", "sluice_envoys", "sluice_in_flight", "sluice_queued", "sluice_pool_model", "sluice_replicas", "sluice_tenant_running", "sluice_tenant_queued",
		"sluice_tenant_budget_used", "sluice_tenant_budget_limit",
		"sluice_shared_up", "sluice_gateways", "sluice_shared_errors_total", "sluice_gpu_memory_bytes",
		"sluice_route_messages_total", "sluice_route_placements_total", "sluice_route_sent_bytes_total")
	want := []string{
		`scheduler_wait_time_seconds_count{phase="prefill"} 1`,
		`sluice_build_info{envoy="1.40.0",version="1.2.3"} 1`,
		`sluice_config_reloads_total{result="failure"} 2`,
		`sluice_config_reloads_total{result="success"} 1`,
		`sluice_envoys 2`, `sluice_gateways 2`,
		`sluice_gpu_memory_bytes{kind="total",uuid="GPU-a"} 80`,
		`sluice_gpu_memory_bytes{kind="used",uuid="GPU-a"} 7`,
		`sluice_in_flight{model="chat"} 4`,
		`sluice_pool_model{model="chat",pool="auto"} 1`,
		`sluice_queued{model="chat"} 2`,
		`sluice_replicas{model="chat",state="failed"} 1`,
		`sluice_replicas{model="chat",state="ready"} 2`,
		`sluice_route_messages_total{result="sent"} 6`,
		`sluice_route_placements_total{result="dropped"} 7`,
		`sluice_route_sent_bytes_total 8`,
		`sluice_shared_errors_total 5`,
		`sluice_shared_up 1`,
		`sluice_tenant_budget_limit{bound="hard",key="",of="cost",per="month",tenant="acme"} 50`,
		`sluice_tenant_budget_limit{bound="soft",key="acme/1",of="tokens",per="day",tenant="acme"} 9`,
		`sluice_tenant_budget_used{key="",of="cost",per="month",tenant="acme"} 41.5`,
		`sluice_tenant_budget_used{key="acme/1",of="tokens",per="day",tenant="acme"} 0`,
		`sluice_tenant_queued{tenant="acme"} 1`,
		`sluice_tenant_running{tenant="acme"} 3`,
		`sluice_xds_nacks_total 3`,
		`stream_retries_total{reason="429"} 0`,
		`stream_retries_total{reason="5xx"} 0`,
		`stream_retries_total{reason="connect"} 1`,
		`stream_retries_total{reason="preempted"} 0`,
		`stream_retries_total{reason="reset"} 0`,
		`stream_retries_total{reason="ttft_timeout"} 0`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(scrape(t, m, "go_goroutines", "process_start_time_seconds")) != 2 {
		t.Error("the process's own metrics are missing")
	}
}

// TestCardinality: however many names there are, in requests or in the fleet, the labels stay few
// and the sums stay right.
func TestCardinality(t *testing.T) {
	t.Parallel()
	var gauges Gauges
	for i := range 100 {
		gauges.Models = append(gauges.Models, ModelGauges{Name: fmt.Sprint("model-", i), InFlight: 1, Replicas: map[string]int{"ready": 2}})
	}
	m := NewMetrics(MetricsConfig{
		MaxModels: 10, MaxUpstreams: 5,
		KnownModel: func(name string) bool { return strings.HasPrefix(name, "model-") },
		Gauges:     func() Gauges { return gauges },
	})
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 100 {
				q := request.Summary{Model: fmt.Sprint("model-", i), Replica: fmt.Sprint("r-", i), Status: 200, Source: "engine", UpstreamDuration: 1}
				m.Finished(q)
				m.Finished(request.Summary{Model: fmt.Sprint("made-up-", w, i), Status: 404, Source: "gateway"})
				m.Finished(request.Summary{Model: "model-\xff", Status: 12345, Source: "gateway"})
			}
		})
	}
	all.Wait()

	total := map[string]float64{}
	models, upstreams := map[string]bool{}, map[string]bool{}
	for _, line := range scrape(t, m, "sluice_requests_total", "sluice_in_flight", "sluice_replicas", "sluice_upstream_request_duration_seconds_count") {
		var value float64
		name, rest, _ := strings.Cut(line, "{")
		labels, v, _ := strings.Cut(rest, "} ")
		if _, err := fmt.Sscan(v, &value); err != nil {
			t.Fatal(err)
		}
		total[name] += value
		for label := range strings.SplitSeq(labels, ",") {
			if s, ok := strings.CutPrefix(label, "model="); ok {
				models[s] = true
				if strings.Contains(s, "made-up") {
					t.Errorf("a name that a client made up became a label: %s", s)
				}
			}
			if s, ok := strings.CutPrefix(label, "upstream="); ok {
				upstreams[s] = true
			}
		}
	}
	want := map[string]float64{"sluice_requests_total": 1200, "sluice_in_flight": 100, "sluice_replicas": 200,
		"sluice_upstream_request_duration_seconds_count": 400}
	if diff := cmp.Diff(want, total); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(models) != 11 || !models[`"other"`] || len(upstreams) != 6 {
		t.Errorf("%d models %v, %d upstreams %v; want 10 and 5, and other", len(models), models, len(upstreams), upstreams)
	}
}

// TestRecordCounts follows one retried request from Envoy's records to the counters.
func TestRecordCounts(t *testing.T) {
	t.Parallel()
	r, m := request.NewStore(0), NewMetrics(MetricsConfig{})
	record := observed(r, m)
	live := r.Begin(request.Arrival{ID: "a", Model: "chat"})
	live.SetDispatched("chat", "chat-0", 0)
	record(request.Entry{Log: headers.LogAttempts, RequestID: "a", Flags: "UF"})
	record(request.Entry{Log: headers.LogAttempts, RequestID: "a", Interim: true, Replica: "chat-1"})
	e := final("a")
	e.Interim = true
	record(e)
	e.Interim = false
	record(e)
	live.Close(nil)
	got := scrape(t, m, "stream_retries_total", "sluice_requests_total")
	want := []string{
		`sluice_requests_total{code="200",model="chat",source="engine"} 1`,
		`stream_retries_total{reason="429"} 0`,
		`stream_retries_total{reason="5xx"} 0`,
		`stream_retries_total{reason="connect"} 1`,
		`stream_retries_total{reason="preempted"} 0`,
		`stream_retries_total{reason="reset"} 0`,
		`stream_retries_total{reason="ttft_timeout"} 0`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func BenchmarkFinished(b *testing.B) {
	for name, stream := range map[string]bool{"answer": false, "stream": true} {
		b.Run(name, func(b *testing.B) {
			m := NewMetrics(MetricsConfig{KnownModel: func(string) bool { return true }})
			q := request.Summary{Model: "chat", Tenant: "acme", Replica: "chat-0", Upstream: "127.0.0.1:80", Route: request.RouteNative, Source: headers.SourceEngine,
				Status: 200, Stream: stream, FirstByte: time.Second, LastByte: 3 * time.Second, Duration: 3 * time.Second, UpstreamDuration: 2 * time.Second,
				PromptTokens: 100, CompletionTokens: 101, UsageKnown: true, Attempts: 1}
			b.ReportAllocs()
			for b.Loop() {
				m.Finished(q)
			}
		})
	}
}

func BenchmarkDispatched(b *testing.B) {
	m := NewMetrics(MetricsConfig{KnownModel: func(string) bool { return true }})
	b.ReportAllocs()
	for b.Loop() {
		m.Waited(time.Millisecond)
		m.Dispatched("chat", 1, 2)
	}
}
