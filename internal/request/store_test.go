package request

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
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
		r := NewStore(0)
		began := time.Now()
		live := r.Begin(Arrival{ID: "a", Method: "POST", Path: "/v1/chat/completions?key=x", Tenant: "acme", Model: "alias", Stream: true, Bytes: 100})
		row := Summary{ID: "a", Method: "POST", Path: "/v1/chat/completions", Tenant: "acme", Model: "alias", State: Queued, Stream: true,
			BytesIn: 100, Started: began}

		time.Sleep(time.Second)
		row.Waited, row.Duration = time.Second, time.Second
		wantRows(t, r, 1, row)

		live.SetDispatched("chat", "chat-0", time.Second)
		time.Sleep(time.Second)
		row.Model, row.Replica, row.State, row.Duration = "chat", "chat-0", Streaming, 2*time.Second
		wantRows(t, r, 1, row)

		time.Sleep(time.Second)
		live.Close(nil)
		row.State, row.Duration = Done, 3*time.Second
		wantRows(t, r, 0, row)

		got, done := r.join(final("a"))
		row.Status, row.Source, row.Route, row.Details = 200, "engine", "native", "via_upstream"
		row.Upstream, row.Attempts = "127.0.0.1:41000", 1
		row.BytesOut, row.FirstByte, row.UpstreamDuration = 2000, 200*time.Millisecond, 2*time.Second
		wantRows(t, r, 0, row)
		if diff := cmp.Diff(row, got); diff != "" || !done {
			t.Errorf("done %v, (-want +got)\n%s", done, diff)
		}
		live.Close(&openai.Error{Code: "late", Status: 500}) // a second End changes nothing
		wantRows(t, r, 0, row)
		if len(r.byID) != 0 {
			t.Errorf("%d requests are still waited for", len(r.byID))
		}
	})
}

// TestJoinOrder: the record may come before or after End and Begin's knowledge is in the row either
// way.
func TestJoinOrder(t *testing.T) {
	t.Parallel()
	refused := Entry{Log: headers.LogRequests, RequestID: "a", Status: 429, Details: "sluice_queue_full", Start: time.Now(), Duration: time.Second}
	for name, steps := range map[string][]func(*Store, *Record){
		"record last": {func(_ *Store, l *Record) { l.Close(&openai.Error{Code: "queue_full", Status: 429}) }, func(r *Store, _ *Record) { r.join(refused) }},
		"end last":    {func(r *Store, _ *Record) { r.join(refused) }, func(_ *Store, l *Record) { l.Close(&openai.Error{Code: "queue_full", Status: 429}) }},
		"no end":      {func(r *Store, _ *Record) { r.join(refused) }},
		"no record":   {func(_ *Store, l *Record) { l.Close(&openai.Error{Code: "queue_full", Status: 429}) }},
	} {
		r := NewStore(4)
		live := r.Begin(Arrival{ID: "a", Tenant: "acme", Model: "chat"})
		for _, step := range steps {
			step(r, live)
		}
		rows, running := r.List(0)
		if len(rows) != 1 || running != 0 {
			t.Fatalf("%s: %d rows, %d running", name, len(rows), running)
		}
		got := rows[0]
		got.Started, got.Duration, got.Waited, got.Details = time.Time{}, 0, 0, ""
		want := Summary{ID: "a", Tenant: "acme", Model: "chat", State: Done, Status: 429, Code: "queue_full", Source: "gateway"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

// TestNeverBegun: answers that Envoy gave, or that were given before the body, exist in the access
// log alone.
func TestNeverBegun(t *testing.T) {
	t.Parallel()
	r := NewStore(4)
	for _, e := range []Entry{
		{RequestID: "1", Path: "/v1/chat/completions", Status: 401, Details: "sluice_invalid_api_key"},
		{RequestID: "2", Path: "/v1/chat/completions", Status: 503, Details: "cluster_not_found", Flags: "NC"},
		{RequestID: "", Status: 400, Flags: "DPE"},
		{RequestID: "3", Path: "/health", Status: 200},
	} {
		if q, done := r.join(e); !done || q.Status != e.Status || q.State != Done || q.Source != "gateway" {
			t.Errorf("%+v: done %v, got %+v", e, done, q)
		}
	}
	rows, running := r.List(0)
	var got []string
	for _, q := range rows {
		got = append(got, fmt.Sprint(q.Status, q.Code))
	}
	// Probes are counted but not kept.
	if diff := cmp.Diff([]string{"400", "503gateway_unavailable", "401invalid_api_key"}, got); diff != "" || running != 0 {
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
		if q, _ := NewStore(1).join(c.e); q.Source != c.want {
			t.Errorf("%+v: source %q, want %q", c.e, q.Source, c.want)
		}
	}
}

// TestStreamsOfBefore: streams that outlived a restart are known from periodic records, until their
// end or until nobody has heard of them for long.
func TestStreamsOfBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewStore(4)
		tell := func(id string) {
			e := final(id)
			e.Interim, e.Duration, e.Metadata = true, 0, map[string]string{"tenant": "acme"}
			if _, done := r.join(e); done {
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
		if _, done := r.join(final("whole")); !done {
			t.Fatal("not done")
		}
		if rows, running := r.List(0); running != 0 || len(rows) != 1 || rows[0].State != Done || len(r.byID) != 0 {
			t.Fatalf("%d running, %d waited for: %+v", running, len(r.byID), rows)
		}
	})
}

// tried observes an entry of headers.LogAttempts, and returns why the attempt before was repeated.
func (s *Store) tried(e Entry) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason, _ := s.addAttemptLocked(&e)
	return reason
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
		r := NewStore(1)
		r.Begin(Arrival{ID: "a"}).SetDispatched("chat", "chat-0", 0)
		var got []string
		for _, e := range c.entries {
			got = append(got, r.tried(e))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}

	r := NewStore(1)
	r.Begin(Arrival{ID: "a"}).SetDispatched("chat", "chat-0", 0)
	r.tried(failed("UF"))
	r.tried(moved)
	if rows, _ := r.List(0); rows[0].Replica != "chat-1" || rows[0].Upstream != "127.0.0.1:41001" || rows[0].Attempts != 2 {
		t.Errorf("the row did not follow: %+v", rows[0])
	}
}

func TestListLimits(t *testing.T) {
	t.Parallel()
	r := NewStore(3)
	for i := range 5 {
		r.Begin(Arrival{ID: fmt.Sprint("done-", i)}).Close(nil)
		r.Begin(Arrival{ID: fmt.Sprint("live-", i)})
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

// TestRequestsConcurrently lets every kind of caller loose at once: nothing may be left running,
// waited for or counted twice.
func TestRequestsConcurrently(t *testing.T) {
	t.Parallel()
	const workers, each = 8, 300
	r := NewStore(64)
	var mu sync.Mutex
	finished := map[string]int{}
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := range each {
				id := fmt.Sprint(w, "-", i)
				live := r.Begin(Arrival{ID: id, Model: "chat"})
				live.SetDispatched("chat", "chat-0", time.Millisecond)
				ends := []func(){
					func() { live.Close(nil) },
					func() {
						if q, done := r.join(final(id)); done {
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

func wantRows(t *testing.T, r *Store, running int, want ...Summary) {
	t.Helper()
	got, n := r.List(0)
	if diff := cmp.Diff(want, got); diff != "" || n != running {
		t.Errorf("%d running, want %d; (-want +got)\n%s", n, running, diff)
	}
}

// hold counts what a Hold is told.
type hold struct {
	moved                 []string
	corrected             []Response
	firstTokens, released int
	cost                  Cost
	// response is the id of the response. nil: nobody wants it.
	response *string
}

func (h *hold) Moved(address string)    { h.moved = append(h.moved, address) }
func (h *hold) FirstToken() bool        { h.firstTokens++; return true }
func (h *hold) WantsResponseID() bool   { return h.response != nil }
func (h *hold) LearnResponse(id string) { *h.response = id }
func (h *hold) Correct(r Response) Cost { h.corrected = append(h.corrected, r); return h.cost }
func (h *hold) Release()                { h.released++ }

// The hold of a native request is told what the access log and ext_proc tell of the request, and is
// released once, whatever comes first.
func TestHold(t *testing.T) {
	t.Parallel()
	moved := Entry{Log: headers.LogAttempts, Interim: true, RequestID: "a", Upstream: "127.0.0.1:41001"}
	type step = func(*Store, *Record)
	end := func(_ *Store, r *Record) { r.Close(nil) }
	entry := func(s *Store, _ *Record) { s.Observe(final("a")) }
	for name, steps := range map[string][]step{
		"the entry is last": {end, entry, entry},
		"the end is last":   {entry, end, end},
		"no entry":          {end},
	} {
		s, h := NewStore(1), new(hold)
		r := s.Begin(Arrival{ID: "a", Stream: true})
		r.SetNative(h, "chat", "chat-0", 0)
		s.Observe(moved)
		s.FirstToken("a", nil)
		s.FirstToken("nobody's", nil)
		for _, step := range steps {
			step(s, r)
		}
		wantCorrected := 1
		if name == "no entry" {
			wantCorrected = 0
		}
		if len(h.corrected) != wantCorrected || h.released != 1 || h.firstTokens != 1 || len(h.moved) != 1 || h.moved[0] != moved.Upstream {
			t.Errorf("%s: %+v", name, h)
		}
		if wantCorrected == 1 && (h.corrected[0].Bytes != 2000 || !h.corrected[0].Stream || h.corrected[0].Failed) {
			t.Errorf("%s: %+v", name, h.corrected[0])
		}
		if name != "no entry" && len(s.byID) != 0 {
			t.Errorf("%s: %d are waited for", name, len(s.byID))
		}
	}
}

// The id of a short response is learned although its log entry and its end came first.
func TestB2_LateIDOfAResponse(t *testing.T) {
	t.Parallel()
	end := func(_ *Store, r *Record) { r.Close(nil) }
	entry := func(s *Store, _ *Record) { s.Observe(final("a")) }
	for name, steps := range map[string][]func(*Store, *Record){
		"the entry is last": {end, entry}, "the end is last": {entry, end},
	} {
		s, id := NewStore(1), ""
		r, h := s.Begin(Arrival{ID: "a", Stream: true}), &hold{response: &id}
		r.SetNative(h, "chat", "chat-0", 0)
		for _, step := range steps {
			step(s, r)
		}
		for n := range 3 { // others push it out of the list
			other := s.Begin(Arrival{ID: fmt.Sprint(n)})
			other.SetNative(new(hold), "chat", "chat-0", 0)
			other.Close(nil)
		}
		if more := s.FirstToken("a", []byte(`{"object":"response",`)); !more || id != "" {
			t.Errorf("%s: the id is %q, and more is wanted: %t", name, id, more)
		}
		if s.FirstToken("a", []byte(`{"object":"response","id":"resp_1"`)); id != "resp_1" {
			t.Errorf("%s: the id is %q", name, id)
		}
		if h.firstTokens > 0 {
			t.Errorf("%s: the end of the response was told as its first token", name)
		}
	}
}

// A retry is counted although the log of attempts tells of it after the final entry and the end.
// The log of attempts is a stream of its own, so nothing orders it before the final entry.
func TestS12_LateLogOfAttempts(t *testing.T) {
	t.Parallel()
	end := func(_ *Store, r *Record) { r.Close(nil) }
	entry := func(s *Store, _ *Record) {
		e := final("a")
		e.Attempts = 2
		s.Observe(e)
	}
	failed := func(s *Store, _ *Record) {
		s.Observe(Entry{Log: headers.LogAttempts, RequestID: "a", Replica: "chat-0", Flags: "UC"})
	}
	moved := func(s *Store, _ *Record) {
		s.Observe(Entry{Log: headers.LogAttempts, Interim: true, RequestID: "a", Replica: "chat-1"})
	}
	for name, steps := range map[string][]func(*Store, *Record){
		"the attempts are first": {failed, moved, end, entry},
		"the entry is first":     {entry, end, failed, moved},
		"the end is first":       {end, entry, failed, moved},
		"between the two":        {failed, entry, end, moved},
	} {
		s, retries := NewStore(1), 0
		s.Subscribe(Subscribers{Retried: func(model, _, reason string) {
			if retries++; model != "chat" || reason != ReasonReset {
				t.Errorf("%s: a retry of %q because of %q", name, model, reason)
			}
		}})
		r := s.Begin(Arrival{ID: "a"})
		r.SetNative(new(hold), "chat", "chat-0", 0)
		for _, step := range steps {
			step(s, r)
		}
		if retries != 1 {
			t.Errorf("%s: %d retries", name, retries)
		}
	}
}

// The first bytes of a response of the Responses API are not its first token. A stream begins with
// events about the response, and another response comes as a whole. The time of a first token
// teaches the prediction.
func TestB1_FirstTokenOfAResponse(t *testing.T) {
	t.Parallel()
	const created = "data: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\"}}\n\n"
	const token = "data: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n"
	for _, test := range []struct {
		stream bool
		begin  string
		tokens int
		more   bool
	}{
		{true, created, 0, true}, {true, created + token, 1, false}, {false, `{"id":"resp_1"`, 0, false},
	} {
		s, id := NewStore(1), ""
		h := &hold{response: &id}
		s.Begin(Arrival{ID: "a", Stream: test.stream}).SetNative(h, "chat", "chat-0", 0)
		if more := s.FirstToken("a", []byte(test.begin)); more != test.more || h.firstTokens != test.tokens || id != "resp_1" {
			t.Errorf("%q: told of %d first tokens, more is wanted: %t, and the id is %q", test.begin, h.firstTokens, more, id)
		}
	}
}

// News of a request that comes late still corrects its charge, however many have ended since; but
// not for ever.
func TestLateNews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, h := NewStore(2), new(hold)
		native := func(id string, h *hold) {
			r := s.Begin(Arrival{ID: id})
			r.SetNative(h, "chat", "chat-0", 0)
			r.Close(nil)
		}
		native("a", h)
		for i := range 10 {
			native(fmt.Sprint(i), new(hold))
		}
		time.Sleep(lateNews)
		s.Observe(final("a"))
		if len(h.corrected) != 1 {
			t.Errorf("settled %d times", len(h.corrected))
		}
		time.Sleep(time.Nanosecond)
		native("b", new(hold))
		native("c", new(hold))
		native("d", new(hold)) // pushes the others out
		if len(s.late) > 3 || len(s.byID) > 5 {
			t.Errorf("%d late ones, %d are waited for", len(s.late), len(s.byID))
		}
	})
}

// A name that a client chose is bounded and valid UTF-8, whatever the client has sent.
func TestNamesAreText(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"mine": "mine", "\xff": "?", "a\xffé": "a?é",
		strings.Repeat("é", 101): strings.Repeat("é", 100), "a" + strings.Repeat("é", 100): "a" + strings.Repeat("é", 99),
	} {
		if got := clip(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
