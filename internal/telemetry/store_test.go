package telemetry

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

func TestManagedIsCountedOnce(t *testing.T) {
	t.Parallel()
	r, m := request.NewStore(0), NewMetrics(MetricsConfig{})
	on := observed(r, m)
	cut, late := whole(), request.Outcome{Fault: &openai.Error{Code: "queue_timeout"}}
	cut.Cause, cut.Fault = request.CauseEngine, &openai.Error{Code: "upstream_truncated"}
	for id, c := range map[string]request.Outcome{"a": whole(), "b": cut, "c": late} {
		live := r.Begin(request.Arrival{ID: id, Model: "chat", Stream: true})
		live.SetOutcome(c)
		on(relayed(id))
		live.Close(nil)
	}
	want := []string{
		`sluice_first_byte_seconds_sum{model="chat"} 2`,
		`sluice_rejected_total{model="chat",reason="queue_timeout"} 1`,
		`sluice_requests_total{code="200",model="chat",source="engine"} 2`,
		`sluice_requests_total{code="200",model="chat",source="gateway"} 1`,
		`sluice_tokens_total{kind="cached",model="chat",tenant=""} 10`,
		`sluice_tokens_total{kind="completion",model="chat",tenant=""} 22`,
		`sluice_tokens_total{kind="prompt",model="chat",tenant=""} 14`,
		`sluice_ttft_seconds_count{cached="true",model="chat"} 2`,
		`sluice_upstream_request_duration_seconds_count{model="chat",upstream="chat-1"} 1`,
		`stream_disconnects_total{cause="engine"} 1`,
		`stream_tokens_per_second_count{model="chat",phase="decode"} 2`,
		`stream_tokens_per_second_count{model="chat",phase="prefill"} 2`,
		`stream_ttft_seconds_sum{model="chat",route="managed"} 2`,
		`stream_ttft_seconds_count{model="chat",route="managed"} 2`,
	}
	got := scrape(t, m, "sluice_first_byte_seconds_sum", "sluice_rejected_total", "sluice_requests_total", "sluice_tokens_total",
		"sluice_ttft_seconds_count", "sluice_upstream_request_duration_seconds_count", `stream_disconnects_total{cause="engine"}`,
		"stream_tokens_per_second_count", "stream_ttft_seconds_sum", "stream_ttft_seconds_count")
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	var r *request.Store
	var m *Metrics
	live := r.Begin(request.Arrival{ID: "a"})
	live.SetDispatched("chat", "chat-0", 0)
	live.Close(nil)
	m.Waited(0)
	m.Retried("chat", "acme", request.ReasonConnect)
	live.SetTrace("00-1-2-01", "")
	live.SetOutcome(request.Outcome{})
	m.Gaps("chat", 1)
	m.Dispatched("chat", 1, 1)
	m.ConfigReloaded(true)
	record := observed(r, m, requestLogOf(nil, false).Finished)
	record(final("a"))
	record(request.Entry{Log: headers.LogAttempts})
	if rows, running := r.List(1); rows != nil || running != 0 {
		t.Error("a nil Requests has rows")
	}
}

func BenchmarkRequest(b *testing.B) {
	r, m := request.NewStore(0), NewMetrics(MetricsConfig{})
	record := observed(r, m)
	e := final("")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		e.RequestID = ids[i%len(ids)]
		live := r.Begin(request.Arrival{ID: e.RequestID, Tenant: "acme", Model: "chat", Stream: true})
		live.SetDispatched("chat", "chat-0", time.Millisecond)
		m.Waited(time.Millisecond)
		live.Close(nil)
		record(e)
	}
}

var ids = func() []string {
	s := make([]string, 1024)
	for i := range s {
		s[i] = fmt.Sprintf("0f5b0d5e-7d1c-4b7a-9d5e-%012x", i)
	}
	return s
}()
