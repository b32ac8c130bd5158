package telemetry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/request"
)

// of returns servedBy for a tenant.
func of(tenant, model string) request.Summary {
	q := servedBy(model, "pod-a")
	q.Tenant, q.Waited = tenant, 20*time.Millisecond
	return q
}

// TestO5_TwinsNameModelAndTenant: each metric of streams and of the scheduler that has no label for
// the model has a twin with model and tenant.
func TestO5_TwinsNameModelAndTenant(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsConfig{})
	m.Finished(of("acme", "chat"))
	cut := of("acme", "chat")
	cut.Cause = request.CauseEngine
	m.Finished(cut)
	m.Finished(request.Summary{Model: "chat", Tenant: "acme", Status: 429, Code: "rate_limited", Source: "gateway"})
	m.Finished(request.Summary{Status: 401, Code: "invalid_api_key", Source: "gateway"})
	m.Retried("chat", "acme", request.ReasonConnect)
	m.Dispatched("chat", 1, 30)
	var got []string
	for _, line := range scrape(t, m, "sluice_tenant_", "sluice_batch_size") {
		if !strings.Contains(line, "le=") {
			got = append(got, line)
		}
	}
	want := []string{
		`sluice_batch_size_sum{model="chat",phase="decode"} 30`,
		`sluice_batch_size_count{model="chat",phase="decode"} 1`,
		`sluice_batch_size_sum{model="chat",phase="prefill"} 1`,
		`sluice_batch_size_count{model="chat",phase="prefill"} 1`,
		`sluice_tenant_queue_wait_seconds_sum{model="chat",tenant="acme"} 0.04`,
		`sluice_tenant_queue_wait_seconds_count{model="chat",tenant="acme"} 2`,
		`sluice_tenant_rejected_total{model="",reason="invalid_api_key",tenant=""} 1`,
		`sluice_tenant_rejected_total{model="chat",reason="rate_limited",tenant="acme"} 1`,
		`sluice_tenant_requests_total{code="200",model="chat",tenant="acme"} 2`,
		`sluice_tenant_requests_total{code="401",model="",tenant=""} 1`,
		`sluice_tenant_requests_total{code="429",model="chat",tenant="acme"} 1`,
		`sluice_tenant_stream_disconnects_total{cause="engine",model="chat",tenant="acme"} 1`,
		`sluice_tenant_stream_retries_total{model="chat",reason="connect",tenant="acme"} 1`,
		`sluice_tenant_ttft_seconds_sum{model="chat",tenant="acme"} 2`,
		`sluice_tenant_ttft_seconds_count{model="chat",tenant="acme"} 2`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestO5_SeriesGoWithTheirTenant: the series of a tenant or a model that has gone are deleted, and
// make room.
func TestO5_SeriesGoWithTheirTenant(t *testing.T) {
	t.Parallel()
	w := newWorld("chat embed", "pod-a", "acme zeta")
	m := NewMetrics(MetricsConfig{Names: w.get, KnownModel: w.knows})
	m.perTenant.pairs.max = 3
	for _, tenant := range []string{"acme", "zeta"} {
		m.Finished(of(tenant, "chat"))
		m.Finished(of(tenant, "embed"))
	}
	count := func(part string) (n int) {
		for _, line := range scrape(t, m, "sluice_tenant_requests_total", "sluice_tenant_ttft_seconds_count") {
			if strings.Contains(line, part) {
				n++
			}
		}
		return n
	}
	if n := count(`tenant="other"`); n != 2 { // the fourth pair
		t.Errorf("%d series of pairs beyond the bound, want 2", n)
	}
	w.set("chat embed", "pod-a", "zeta")
	if count(`tenant="acme"`) == 0 {
		t.Error("the last increase of a tenant that has gone is in no scrape")
	}
	if n := count(`tenant="acme"`); n != 0 {
		t.Errorf("%d series of a tenant that has gone", n)
	}
	m.Finished(of("zeta", "embed"))
	if n := count(`model="embed",tenant="zeta"`); n != 2 {
		t.Errorf("%d series of the pair that found room, want 2", n)
	}
	w.set("chat", "pod-a", "zeta")
	count("")
	if n := count(`model="embed"`); n != 0 || len(m.perTenant.pairs.admitted) != 1 {
		t.Errorf("%d series of a model that has gone; pairs: %v", n, m.perTenant.pairs.admitted)
	}
}

// TestO5_PairsAreBounded: however many tenants call however many models, the series are bounded.
func TestO5_PairsAreBounded(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsConfig{})
	m.perTenant.pairs.max = 100
	for i := range 50 {
		for j := range 20 {
			m.Finished(request.Summary{Model: fmt.Sprint("model-", j), Tenant: fmt.Sprint("tenant-", i), Status: 200, Source: "engine"})
		}
	}
	if n := len(scrape(t, m, "sluice_tenant_requests_total")); n > 100+20 {
		t.Errorf("%d series", n)
	}
}

// TestO5_ReloadsLoadsAndRestarts: a scrape tells of the last reload, of the time of starts, and of
// restarts.
func TestO5_ReloadsLoadsAndRestarts(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsConfig{Gauges: func() Gauges {
		return Gauges{Restarts: []RestartGauges{{Model: "chat", Replica: "chat-0", Count: 3}},
			Models: []ModelGauges{{Name: "chat", Launched: true, Desired: 2}}}
	}})
	reloaded := func(want string) {
		t.Helper()
		if got := scrape(t, m, "sluice_config_last_reload_successful"); len(got) != 1 || got[0] != "sluice_config_last_reload_successful "+want {
			t.Errorf("%v, want %s", got, want)
		}
	}
	reloaded("1")
	m.ConfigReloaded(false)
	reloaded("0")
	m.ConfigReloaded(true)
	reloaded("1")
	m.Loaded("chat", 2*time.Second)
	want := []string{
		`sluice_cold_start_seconds_sum{model="chat"} 2`,
		`sluice_cold_start_seconds_count{model="chat"} 1`,
		`sluice_model_desired_replicas{model="chat"} 2`,
		`sluice_replica_restarts_total{model="chat",replica="chat-0"} 3`,
	}
	got := scrape(t, m, "sluice_cold_start_seconds_sum", "sluice_cold_start_seconds_count", "sluice_model_desired_replicas", "sluice_replica_restarts_total")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(scrape(t, m, "sluice_config_last_reload_success_timestamp_seconds 1.")) != 1 {
		t.Error("the time of the last reload is missing")
	}
}
