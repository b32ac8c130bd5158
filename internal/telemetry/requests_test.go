package telemetry

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// final is Envoy's record of a request that a replica served.
func final(id string) Entry {
	return Entry{
		Log: headers.LogRequests, RequestID: id, Method: "POST", Path: "/v1/chat/completions", Status: 200, Details: "via_upstream",
		Upstream: "127.0.0.1:41000", Cluster: "model/chat", Model: "chat", Replica: "chat-0", Attempts: 1, Streamed: true,
		BytesIn: 100, BytesOut: 2000, Start: time.Now().Add(-3 * time.Second), Duration: 3 * time.Second,
		FirstByte: 200 * time.Millisecond, UpstreamDuration: 2 * time.Second,
	}
}

func TestRequestLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRequests(0)
		began := time.Now()
		live := r.Begin(Begun{ID: "a", Method: "POST", Path: "/v1/chat/completions?key=x", Tenant: "acme", Model: "alias", Stream: true, Bytes: 100})
		row := Request{ID: "a", Method: "POST", Path: "/v1/chat/completions", Tenant: "acme", Model: "alias", State: Queued, Stream: true,
			BytesIn: 100, Started: began}

		time.Sleep(time.Second)
		row.Waited, row.Duration = time.Second, time.Second
		wantRows(t, r, 1, row)

		live.Decided("chat", "chat-0", time.Second)
		time.Sleep(time.Second)
		row.Model, row.Replica, row.State, row.Duration = "chat", "chat-0", Streaming, 2*time.Second
		wantRows(t, r, 1, row)

		time.Sleep(time.Second)
		live.End(0, "")
		row.State, row.Duration = Done, 3*time.Second
		wantRows(t, r, 0, row)

		got, done := r.Join(final("a"))
		row.Status, row.Source, row.Route, row.Details = 200, "engine", "native", "via_upstream"
		row.Upstream, row.Attempts = "127.0.0.1:41000", 1
		row.BytesOut, row.FirstByte, row.UpstreamDuration = 2000, 200*time.Millisecond, 2*time.Second
		wantRows(t, r, 0, row)
		if diff := cmp.Diff(row, got); diff != "" || !done {
			t.Errorf("done %v, (-want +got)\n%s", done, diff)
		}
		live.End(500, "late") // a second End changes nothing
		wantRows(t, r, 0, row)
		if len(r.byID) != 0 {
			t.Errorf("%d requests are still waited for", len(r.byID))
		}
	})
}

// TestJoinOrder: the record may come before or after End and Begin's knowledge is in the row either way.
func TestJoinOrder(t *testing.T) {
	t.Parallel()
	refused := Entry{Log: headers.LogRequests, RequestID: "a", Status: 429, Details: "sluice_queue_full", Start: time.Now(), Duration: time.Second}
	for name, steps := range map[string][]func(*Requests, *Live){
		"record last": {func(_ *Requests, l *Live) { l.End(429, "queue_full") }, func(r *Requests, _ *Live) { r.Join(refused) }},
		"end last":    {func(r *Requests, _ *Live) { r.Join(refused) }, func(_ *Requests, l *Live) { l.End(429, "queue_full") }},
		"no end":      {func(r *Requests, _ *Live) { r.Join(refused) }},
		"no record":   {func(_ *Requests, l *Live) { l.End(429, "queue_full") }},
	} {
		r := NewRequests(4)
		live := r.Begin(Begun{ID: "a", Tenant: "acme", Model: "chat"})
		for _, step := range steps {
			step(r, live)
		}
		rows, running := r.List(0)
		if len(rows) != 1 || running != 0 {
			t.Fatalf("%s: %d rows, %d running", name, len(rows), running)
		}
		got := rows[0]
		got.Started, got.Duration, got.Waited, got.Details = time.Time{}, 0, 0, ""
		want := Request{ID: "a", Tenant: "acme", Model: "chat", State: Done, Status: 429, Code: "queue_full", Source: "gateway"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

// TestNeverBegun: answers that Envoy gave, or that were given before the body, exist in the access log alone.
func TestNeverBegun(t *testing.T) {
	t.Parallel()
	r := NewRequests(4)
	for _, e := range []Entry{
		{RequestID: "1", Path: "/v1/chat/completions", Status: 401, Details: "sluice_invalid_api_key"},
		{RequestID: "2", Path: "/v1/chat/completions", Status: 503, Details: "cluster_not_found", Flags: "NC"},
		{RequestID: "", Status: 400, Flags: "DPE"},
		{RequestID: "3", Path: "/health", Status: 200},
	} {
		if q, done := r.Join(e); !done || q.Status != e.Status || q.State != Done || q.Source != "gateway" {
			t.Errorf("%+v: done %v, got %+v", e, done, q)
		}
	}
	rows, running := r.List(0)
	var got []string
	for _, q := range rows {
		got = append(got, fmt.Sprint(q.Status, q.Code))
	}
	// Probes are counted but not kept.
	if diff := cmp.Diff([]string{"400", "503", "401invalid_api_key"}, got); diff != "" || running != 0 {
		t.Errorf("%d running, (-want +got)\n%s", running, diff)
	}
	if len(r.byID) != 0 {
		t.Errorf("%d requests are still waited for", len(r.byID))
	}
}

func TestSource(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		e    Entry
		want string
	}{
		{Entry{Model: "chat", Status: 200, Details: "via_upstream"}, "engine"},
		{Entry{Model: "chat", Status: 400, Details: "via_upstream"}, "engine"},
		{Entry{Model: "chat", Status: 200, Details: "upstream_reset_after_response_started{protocol_error}", Flags: "UPE"}, "engine"},
		{Entry{Model: "chat", Status: 200, Details: "downstream_remote_disconnect", Flags: "DC"}, "engine"},
		{Entry{Model: "chat", Status: 500, Details: "response_timeout", FirstByte: 1}, "engine"},
		{Entry{Model: "chat", Status: 504, Details: "response_timeout", Flags: "UT"}, "gateway"},
		{Entry{Model: "chat", Status: 503, Details: "no_healthy_upstream", Flags: "UH"}, "gateway"},
		{Entry{Model: "chat", Status: 0, Details: "downstream_remote_disconnect", Flags: "DC"}, "gateway"},
		{Entry{Cluster: "sluice_api", Status: 200, Details: "via_upstream"}, "gateway"},
		{Entry{Status: 429, Details: "sluice_queue_full"}, "gateway"},
	} {
		if q, _ := NewRequests(1).Join(c.e); q.Source != c.want {
			t.Errorf("%+v: source %q, want %q", c.e, q.Source, c.want)
		}
	}
}

// TestStreamsOfBefore: streams that outlived a restart are known from periodic records, until their end or until nobody has
// heard of them for long.
func TestStreamsOfBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRequests(4)
		tell := func(id string) {
			e := final(id)
			e.Interim, e.Duration, e.Notes = true, 0, map[string]string{"tenant": "acme"}
			if _, done := r.Join(e); done {
				t.Fatal("a periodic record ended a request")
			}
		}
		tell("lost")
		tell("whole")
		rows, running := r.List(0)
		if running != 2 || rows[0].ID != "whole" || rows[0].State != Streaming || rows[0].Tenant != "acme" || rows[0].Duration != 3*time.Second {
			t.Fatalf("%d running: %+v", running, rows)
		}
		for range 3 {
			time.Sleep(logOnlyTTL / 2)
			tell("whole")
		}
		if rows, running := r.List(0); running != 1 || rows[0].ID != "whole" {
			t.Fatalf("%d running: %+v", running, rows)
		}
		if _, done := r.Join(final("whole")); !done {
			t.Fatal("not done")
		}
		if rows, running := r.List(0); running != 0 || len(rows) != 1 || rows[0].State != Done || len(r.byID) != 0 {
			t.Fatalf("%d running, %d waited for: %+v", running, len(r.byID), rows)
		}
	})
}

func TestTried(t *testing.T) {
	t.Parallel()
	failed := func(flag string) Entry {
		return Entry{Log: headers.LogAttempts, RequestID: "a", Flags: flag, Replica: "chat-0"}
	}
	moved := Entry{Log: headers.LogAttempts, RequestID: "a", Interim: true, Replica: "chat-1", Upstream: "127.0.0.1:41001"}
	end := Entry{Log: headers.LogAttempts, RequestID: "a", Status: 200, Replica: "chat-1"}
	for name, c := range map[string]struct {
		entries []Entry
		want    []string
	}{
		"refused, dropped, served":    {[]Entry{failed("UF"), moved, failed("UC"), moved, end}, []string{"", "connect", "", "reset", ""}},
		"refused, refused, exhausted": {[]Entry{failed("UF"), failed("UF,URX")}, []string{"", "connect"}},
		"cut after its headers":       {[]Entry{{Log: headers.LogAttempts, RequestID: "a", Status: 200, Flags: "UC"}}, []string{""}},
		"of another request":          {[]Entry{{Log: headers.LogAttempts, RequestID: "b", Flags: "UF"}, moved}, []string{"", ""}},
	} {
		r := NewRequests(1)
		r.Begin(Begun{ID: "a"}).Decided("chat", "chat-0", 0)
		var got []string
		for _, e := range c.entries {
			got = append(got, r.Tried(e))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}

	r := NewRequests(1)
	r.Begin(Begun{ID: "a"}).Decided("chat", "chat-0", 0)
	r.Tried(failed("UF"))
	r.Tried(moved)
	if rows, _ := r.List(0); rows[0].Replica != "chat-1" || rows[0].Upstream != "127.0.0.1:41001" || rows[0].Attempts != 2 {
		t.Errorf("the row did not follow: %+v", rows[0])
	}
}

func TestListLimits(t *testing.T) {
	t.Parallel()
	r := NewRequests(3)
	for i := range 5 {
		r.Begin(Begun{ID: fmt.Sprint("done-", i)}).End(0, "")
		r.Begin(Begun{ID: fmt.Sprint("live-", i)})
	}
	for limit, want := range map[int][]string{
		0:  {"live-4", "live-3", "live-2", "live-1", "live-0", "done-4", "done-3", "done-2"},
		2:  {"live-4", "live-3", "done-4", "done-3"},
		99: {"live-4", "live-3", "live-2", "live-1", "live-0", "done-4", "done-3", "done-2"},
	} {
		rows, running := r.List(limit)
		var got []string
		for _, q := range rows {
			got = append(got, q.ID)
		}
		if diff := cmp.Diff(want, got); diff != "" || running != 5 {
			t.Errorf("limit %d: %d running, (-want +got)\n%s", limit, running, diff)
		}
	}
	// 5 live ones and the 3 that are kept; the evicted are forgotten.
	if len(r.byID) != 8 {
		t.Errorf("%d requests are waited for, want 8", len(r.byID))
	}
}

// TestRequestsConcurrently lets every kind of caller loose at once: nothing may be left running, waited for or counted twice.
func TestRequestsConcurrently(t *testing.T) {
	t.Parallel()
	const workers, each = 8, 300
	r := NewRequests(64)
	m := NewMetrics(MetricsConfig{})
	var mu sync.Mutex
	finished := map[string]int{}
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := range each {
				id := fmt.Sprint(w, "-", i)
				live := r.Begin(Begun{ID: id, Model: "chat"})
				live.Decided("chat", "chat-0", time.Millisecond)
				ends := []func(){
					func() { live.End(0, "") },
					func() {
						if q, done := r.Join(final(id)); done {
							m.Finished(q)
							mu.Lock()
							finished[q.ID]++
							mu.Unlock()
						}
					},
					func() { r.List(10) },
				}
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
	rows, running := r.List(0)
	if len(rows) != 64 || running != 0 || len(r.byID) != 0 || len(finished) != workers*each {
		t.Errorf("%d rows, %d running, %d waited for, %d finished", len(rows), running, len(r.byID), len(finished))
	}
	for id, n := range finished {
		if n != 1 {
			t.Errorf("%s finished %d times", id, n)
		}
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	var r *Requests
	var m *Metrics
	live := r.Begin(Begun{ID: "a"})
	live.Decided("chat", "chat-0", 0)
	live.End(0, "")
	m.Waited(0)
	m.Retried(ReasonConnect)
	live.Trace("00-1-2-01", "")
	live.Carried(Carried{})
	m.Gap("chat", 1)
	m.Dispatched(1, 1)
	m.ConfigReloaded(true)
	record := Record(r, m, NewRequestLog(nil, false).Finished)
	record(final("a"))
	record(Entry{Log: headers.LogAttempts})
	if rows, running := r.List(1); rows != nil || running != 0 {
		t.Error("a nil Requests has rows")
	}
}

func BenchmarkRequest(b *testing.B) {
	r, m := NewRequests(0), NewMetrics(MetricsConfig{})
	record := Record(r, m)
	e := final("")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		e.RequestID = ids[i%len(ids)]
		live := r.Begin(Begun{ID: e.RequestID, Tenant: "acme", Model: "chat", Stream: true})
		live.Decided("chat", "chat-0", time.Millisecond)
		m.Waited(time.Millisecond)
		live.End(0, "")
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

func wantRows(t *testing.T, r *Requests, running int, want ...Request) {
	t.Helper()
	got, n := r.List(0)
	if diff := cmp.Diff(want, got); diff != "" || n != running {
		t.Errorf("%d running, want %d; (-want +got)\n%s", n, running, diff)
	}
}
