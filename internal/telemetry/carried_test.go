package telemetry

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// relayed is Envoy's record of a stream that the relay carried: it knows no replica, and its first byte is a heartbeat's.
func relayed(id string) Entry {
	e := final(id)
	e.Cluster, e.Model, e.Replica, e.Upstream, e.Route = headers.RelayCluster, "", "", "", routes.RelayStream
	e.FirstByte, e.LastByte, e.UpstreamDuration, e.Duration = 50*time.Millisecond, 3*time.Second, 2900*time.Millisecond, 3*time.Second
	return e
}

// whole is what the relay tells of a stream that was whole.
func whole() Carried {
	return Carried{Model: "chat", Replica: "chat-1", FirstToken: time.Second, Held: 400 * time.Millisecond, Decode: 2 * time.Second,
		Usage:        Usage{Prompt: 7, Completion: 11, Known: true, Cached: 5, CachedKnown: true},
		FinishReason: "stop", Attempts: 2, Answered: true}
}

// heard collects what Record passes on.
type heard struct {
	mu  sync.Mutex
	all []Request
}

func (f *heard) finished(q Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, q)
}

// TestCarriedOrder: whatever comes first, Envoy's record, the relay's word or the end, the request is told of once, with the relay's figures.
func TestCarriedOrder(t *testing.T) {
	t.Parallel()
	type step = func(func(Entry), *Live)
	record := func(record func(Entry), _ *Live) { record(relayed("a")) }
	carried := func(_ func(Entry), l *Live) { l.Carried(whole()) }
	again := func(_ func(Entry), l *Live) { l.Carried(Carried{Replica: "chat-9"}) }
	end := func(_ func(Entry), l *Live) { l.End(0, "") }
	for name, steps := range map[string][]step{
		"the record is last":     {carried, end, record},
		"the end is last":        {carried, record, end},
		"the client has left":    {record, carried, end},
		"everything comes twice": {carried, again, end, end, again, record},
	} {
		r, f := NewRequests(0), &heard{}
		on := Record(r, nil, f.finished)
		live := r.Begin(Begun{ID: "a", Tenant: "acme", Model: "alias", Stream: true})
		live.Decided("chat", "chat-0", 100*time.Millisecond)
		soFar := relayed("a")
		soFar.Interim, soFar.Duration = true, 0
		on(soFar)
		if rows, _ := r.List(0); rows[0].FirstByte != 0 || rows[0].Attempts != 0 {
			t.Errorf("%s: the relay's own figures are in %+v", name, rows[0])
		}
		for _, step := range steps {
			step(on, live)
		}
		want := Request{ID: "a", Method: "POST", Path: "/v1/chat/completions", Tenant: "acme", Model: "chat", Replica: "chat-1", State: Done,
			Status: 200, Route: RouteManaged, Source: "engine", Details: "via_upstream", Stream: true, Attempts: 2, BytesIn: 100, BytesOut: 2000,
			PromptTokens: 7, CompletionTokens: 11, UsageKnown: true, CachedTokens: 5, CachedKnown: true, FinishReason: "stop",
			Waited: 400 * time.Millisecond, FirstByte: time.Second, Decode: 2 * time.Second, LastByte: 3 * time.Second, Duration: 3 * time.Second,
			UpstreamDuration: 2600 * time.Millisecond}
		rows, running := r.List(0)
		for i := range f.all {
			f.all[i].Started = time.Time{}
		}
		for i := range rows {
			rows[i].Started = time.Time{}
		}
		if diff := cmp.Diff([]Request{want}, f.all); diff != "" {
			t.Errorf("%s: told (-want +got)\n%s", name, diff)
		}
		if diff := cmp.Diff([]Request{want}, rows); diff != "" || running != 0 || len(r.byID) != 0 {
			t.Errorf("%s: %d running, %d waited for (-want +got)\n%s", name, running, len(r.byID), diff)
		}
	}
}

// TestCarriedEnds: how a request ended, of those that did not end well.
func TestCarriedEnds(t *testing.T) {
	t.Parallel()
	left, gone := relayed("a"), relayed("a")
	left.Flags, left.Details = "DC", "downstream_remote_disconnect"
	gone.Flags, gone.Details = "UC", "upstream_reset_after_response_started{connection_termination}"
	refused := relayed("a")
	refused.Status = 503
	cut := whole()
	cut.Cause, cut.Code = CauseEngine, "upstream_truncated"
	abandoned := whole()
	abandoned.Cause, abandoned.FinishReason = CauseClient, ""
	for name, c := range map[string]struct {
		record  Entry
		carried *Carried
		want    Request
	}{
		"the engine broke it off": {relayed("a"), &cut, Request{Status: 200, Source: "engine", Cause: CauseEngine, Code: "upstream_truncated"}},
		"the client left":         {left, &abandoned, Request{Status: 200, Source: "engine", Cause: CauseClient}},
		"heartbeats, then an error": {relayed("a"), &Carried{Code: "queue_timeout"},
			Request{Status: 200, Source: "gateway", Code: "queue_timeout"}},
		"an error at once": {refused, &Carried{Code: "no_replica"}, Request{Status: 503, Source: "gateway", Code: "no_replica"}},
		"the relay died":   {gone, nil, Request{Status: 200, Source: "gateway", Cause: CauseGateway}},
	} {
		r, f := NewRequests(0), &heard{}
		on := Record(r, nil, f.finished)
		live := r.Begin(Begun{ID: "a", Stream: true})
		if c.carried != nil {
			live.Carried(*c.carried)
		} else {
			live.End(0, "")
		}
		on(c.record)
		if len(f.all) != 1 {
			t.Fatalf("%s: told %d times", name, len(f.all))
		}
		q := f.all[0]
		got := Request{Status: q.Status, Source: q.Source, Cause: q.Cause, Code: q.Code}
		if diff := cmp.Diff(c.want, got); diff != "" || q.Route != RouteManaged || q.LastByte != 0 && c.carried != nil {
			t.Errorf("%s: route %s, last byte %v (-want +got)\n%s", name, q.Route, q.LastByte, diff)
		}
	}
}

// TestRestartedGateway: what the relay of a process that is gone had carried ends as cut by the gateway, and is kept running by nobody.
func TestRestartedGateway(t *testing.T) {
	t.Parallel()
	r, m := NewRequests(0), NewMetrics(MetricsConfig{})
	on := Record(r, m)
	soFar, end := relayed("a"), relayed("a")
	soFar.Interim = true
	end.Flags = "UC"
	on(soFar)
	if rows, _ := r.List(0); len(rows) != 0 {
		t.Errorf("there are %+v", rows)
	}
	on(end)
	live := r.Begin(Begun{ID: "b", Stream: true}) // one that never reached the relay's call
	end.RequestID = "b"
	on(end)
	if _, running := r.List(0); running != 1 {
		t.Errorf("the relay has not told of it yet, and %d run", running)
	}
	live.End(0, "")
	if _, running := r.List(0); running != 0 || len(r.byID) != 0 {
		t.Errorf("%d run, %d are waited for", running, len(r.byID))
	}
	want := []string{`stream_disconnects_total{cause="gateway"} 2`}
	if diff := cmp.Diff(want, scrape(t, m, `stream_disconnects_total{cause="gateway"}`)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestTurn: a turn has no record of Envoy's, and is finished, counted and told of with its end.
func TestTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, m, f := NewRequests(0), NewMetrics(MetricsConfig{}), &heard{}
		on := Record(r, m, f.finished)
		began := time.Now()
		live := r.Begin(Begun{ID: "a/1", Path: "/v1/realtime", Tenant: "acme", Model: "chat", Stream: true, Turn: true})
		live.Decided("chat", "chat-1", 400*time.Millisecond)
		time.Sleep(4 * time.Second)
		live.Carried(whole())
		if len(f.all) != 0 {
			t.Fatal("told of before its end")
		}
		live.End(0, "")
		live.End(0, "")
		want := Request{ID: "a/1", Path: "/v1/realtime", Tenant: "acme", Model: "chat", Replica: "chat-1", State: Done, Status: 200,
			Route: RouteManaged, Source: "engine", Stream: true, Attempts: 2, PromptTokens: 7, CompletionTokens: 11, UsageKnown: true,
			CachedTokens: 5, CachedKnown: true, FinishReason: "stop", Started: began, Waited: 400 * time.Millisecond, FirstByte: time.Second,
			Decode: 2 * time.Second, LastByte: 3 * time.Second, Duration: 4 * time.Second, UpstreamDuration: 2600 * time.Millisecond}
		if diff := cmp.Diff([]Request{want}, f.all); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		wantRows(t, r, 0, want)

		refused := r.Begin(Begun{ID: "a/2", Stream: true, Turn: true})
		time.Sleep(time.Second)
		refused.Carried(Carried{Code: "queue_full", Status: 429})
		refused.End(0, "")
		if q := f.all[1]; q.Status != 429 || q.Code != "queue_full" || q.Source != "gateway" || q.Waited != time.Second || q.Cause != "" {
			t.Errorf("refused: %+v", q)
		}
		never := r.Begin(Begun{ID: "a/3", Stream: true, Turn: true})
		never.End(400, "invalid_request")
		if q := f.all[2]; q.Status != 400 || q.Source != "gateway" || q.Route != "" {
			t.Errorf("never carried: %+v", q)
		}
		abandoned := whole()
		abandoned.Cause = CauseClient
		left := r.Begin(Begun{ID: "a/4", Stream: true, Turn: true})
		left.Carried(abandoned)
		left.End(0, "")
		if q := f.all[3]; q.Status != 0 || q.Cause != CauseClient || q.LastByte != 0 {
			t.Errorf("left: %+v", q)
		}
		on(relayed("a/1")) // a client cannot choose such an id; if it could, it would be another request
		if len(f.all) != 5 || f.all[4].Tenant != "" {
			t.Errorf("the record of a turn's id was joined: %+v", f.all)
		}
	})
}

func TestManagedIsCountedOnce(t *testing.T) {
	t.Parallel()
	r, m := NewRequests(0), NewMetrics(MetricsConfig{})
	on := Record(r, m)
	cut, late := whole(), Carried{Code: "queue_timeout"}
	cut.Cause, cut.Code = CauseEngine, "upstream_truncated"
	for id, c := range map[string]Carried{"a": whole(), "b": cut, "c": late} {
		live := r.Begin(Begun{ID: id, Model: "chat", Stream: true})
		live.Carried(c)
		on(relayed(id))
		live.End(0, "")
	}
	want := []string{
		`sluice_first_byte_seconds_sum{model="chat"} 2`,
		`sluice_rejected_total{model="chat",reason="queue_timeout"} 1`,
		`sluice_requests_total{code="200",model="chat",source="engine"} 2`,
		`sluice_requests_total{code="200",model="chat",source="gateway"} 1`,
		`sluice_tokens_total{kind="completion",model="chat"} 22`,
		`sluice_tokens_total{kind="prompt",model="chat"} 14`,
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

// TestCarriedConcurrently: Envoy, the relay and the end of a request race, and each request is told of once.
func TestCarriedConcurrently(t *testing.T) {
	t.Parallel()
	const workers, each = 8, 200
	r, f := NewRequests(workers*each), &heard{}
	on := Record(r, nil, f.finished)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := range each {
				id := fmt.Sprint(w, "-", i)
				live := r.Begin(Begun{ID: id, Model: "chat", Stream: true})
				ends := []func(){func() { live.Carried(whole()); live.End(0, "") }, func() { on(relayed(id)) }, func() { r.List(3) }}
				rand.Shuffle(len(ends), func(i, j int) { ends[i], ends[j] = ends[j], ends[i] })
				var two sync.WaitGroup
				for _, end := range ends {
					two.Go(end)
				}
				two.Wait()
			}
		})
	}
	all.Wait()
	seen := map[string]int{}
	for _, q := range f.all {
		if seen[q.ID]++; q.Replica != "chat-1" || q.FirstByte != time.Second {
			t.Errorf("without the relay's word: %+v", q)
		}
	}
	if _, running := r.List(1); len(seen) != workers*each || len(f.all) != workers*each || running != 0 || len(r.byID) != 0 {
		t.Errorf("%d told of %d times, %d running, %d waited for", len(seen), len(f.all), running, len(r.byID))
	}
}
