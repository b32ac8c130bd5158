package request

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// relayed is Envoy's record of a stream that the relay carried: it knows no replica, and its first
// byte is a heartbeat's.
func relayed(id string) Entry {
	e := final(id)
	e.Cluster, e.Model, e.Replica, e.Upstream, e.Route = headers.RelayCluster, "", "", "", routes.RelayStream
	e.FirstByte, e.LastByte, e.UpstreamDuration, e.Duration = 50*time.Millisecond, 3*time.Second, 2900*time.Millisecond, 3*time.Second
	return e
}

// whole is what the relay tells of a stream that was whole.
func whole() Outcome {
	return Outcome{Model: "chat", Replica: "chat-1", TTFT: time.Second, Held: 400 * time.Millisecond, Decode: 2 * time.Second,
		Usage:  Usage{Prompt: 7, Completion: 11, Known: true, Cached: 5, CachedKnown: true},
		Finish: "stop", Attempts: 2, Answered: true}
}

// heard collects what Record passes on.
type heard struct {
	mu  sync.Mutex
	all []Summary
}

// subscribed has s tell finished. It returns what the access log is told to.
func subscribed(s *Store, finished func(Summary)) func(Entry) {
	s.Subscribe(Subscribers{Finished: []func(Summary){finished}})
	return func(e Entry) { s.Observe(e) }
}

// join observes an entry of headers.LogRequests, and returns the request if it has ended.
func (s *Store) join(e Entry) (q Summary, ended bool) {
	if s == nil {
		return Summary{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addLocked(&e, Cost{})
}

func (f *heard) finished(q Summary) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, q)
}

// TestCarriedOrder: whatever comes first, Envoy's record, the relay's word or the end, the request
// is told of once, with the relay's figures.
func TestCarriedOrder(t *testing.T) {
	t.Parallel()
	type step = func(func(Entry), *Record)
	record := func(record func(Entry), _ *Record) { record(relayed("a")) }
	carried := func(_ func(Entry), l *Record) { l.SetOutcome(whole()) }
	again := func(_ func(Entry), l *Record) { l.SetOutcome(Outcome{Replica: "chat-9"}) }
	end := func(_ func(Entry), l *Record) { l.Close(nil) }
	for name, steps := range map[string][]step{
		"the record is last":     {carried, end, record},
		"the end is last":        {carried, record, end},
		"the client has left":    {record, carried, end},
		"everything comes twice": {carried, again, end, end, again, record},
	} {
		r, f := NewStore(0), &heard{}
		on := subscribed(r, f.finished)
		live := r.Begin(Arrival{ID: "a", Tenant: "acme", Model: "alias", Stream: true})
		live.SetDispatched("chat", "chat-0", 100*time.Millisecond)
		soFar := relayed("a")
		soFar.Interim, soFar.Duration = true, 0
		on(soFar)
		if rows, _ := r.List(0); rows[0].FirstByte != 0 || rows[0].Attempts != 0 {
			t.Errorf("%s: the relay's own figures are in %+v", name, rows[0])
		}
		for _, step := range steps {
			step(on, live)
		}
		want := Summary{ID: "a", Method: "POST", Path: "/v1/chat/completions", Tenant: "acme", Model: "chat", Replica: "chat-1", State: Done,
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
		if diff := cmp.Diff([]Summary{want}, f.all); diff != "" {
			t.Errorf("%s: told (-want +got)\n%s", name, diff)
		}
		if diff := cmp.Diff([]Summary{want}, rows); diff != "" || running != 0 || len(r.byID) != 0 {
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
	cut.Cause, cut.Fault = CauseEngine, &openai.Error{Code: "upstream_truncated"}
	abandoned := whole()
	abandoned.Cause, abandoned.Finish = CauseClient, ""
	for name, c := range map[string]struct {
		record  Entry
		carried *Outcome
		want    Summary
	}{
		"the engine broke it off": {relayed("a"), &cut, Summary{Status: 200, Source: "engine", Cause: CauseEngine, Code: "upstream_truncated"}},
		"the client left":         {left, &abandoned, Summary{Status: 200, Source: "engine", Cause: CauseClient}},
		"heartbeats, then an error": {relayed("a"), &Outcome{Fault: &openai.Error{Code: "queue_timeout"}},
			Summary{Status: 200, Source: "gateway", Code: "queue_timeout"}},
		"an error at once": {refused, &Outcome{Fault: &openai.Error{Code: "no_replica"}}, Summary{Status: 503, Source: "gateway", Code: "no_replica"}},
		"the relay died":   {gone, nil, Summary{Status: 200, Source: "gateway", Cause: CauseGateway}},
	} {
		r, f := NewStore(0), &heard{}
		on := subscribed(r, f.finished)
		live := r.Begin(Arrival{ID: "a", Stream: true})
		if c.carried != nil {
			live.SetOutcome(*c.carried)
		} else {
			live.Close(nil)
		}
		on(c.record)
		if len(f.all) != 1 {
			t.Fatalf("%s: told %d times", name, len(f.all))
		}
		q := f.all[0]
		got := Summary{Status: q.Status, Source: q.Source, Cause: q.Cause, Code: q.Code}
		if diff := cmp.Diff(c.want, got); diff != "" || q.Route != RouteManaged || q.LastByte != 0 && c.carried != nil {
			t.Errorf("%s: route %s, last byte %v (-want +got)\n%s", name, q.Route, q.LastByte, diff)
		}
	}
}

// The generation of a request goes on after its client has left. The tokens of the request are
// shown when they are known, whether or not it has ended by then. They are in no sum of Finished.
func TestB3_UsageAfterTheClientHasLeft(t *testing.T) {
	t.Parallel()
	used := Usage{Prompt: 7, Completion: 40, Known: true, Cached: 5}
	log := func(on func(Entry), _ *Record) { on(relayed("a")) }
	tell := func(_ func(Entry), r *Record) { r.SetUsage(used) }
	for name, steps := range map[string][]func(func(Entry), *Record){
		"the log entry is first": {log, tell},
		"the usage is first":     {tell, log},
	} {
		s, f := NewStore(0), &heard{}
		on := subscribed(s, f.finished)
		r := s.Begin(Arrival{ID: "a", Tenant: "acme", Model: "chat", Stream: true})
		r.SetOutcome(Outcome{Model: "chat", Replica: "chat-1", Cause: CauseClient, Attempts: 1, Answered: true, UsedElsewhere: true})
		r.Close(nil)
		for _, step := range steps {
			step(on, r)
		}
		rows, _ := s.List(0)
		if q := rows[0]; q.CompletionTokens != 40 || q.CachedTokens != 5 || !q.UsageKnown || !q.CachedKnown || q.Cause != CauseClient {
			t.Errorf("%s: %+v", name, q)
		}
		if len(f.all) != 1 || !f.all[0].UsedApart {
			t.Errorf("%s: told %+v", name, f.all)
		}
	}
}

// TestTurn: a turn has no record of Envoy's, and is finished, counted and told of with its end.
func TestTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, f := NewStore(0), &heard{}
		on := subscribed(r, f.finished)
		began := time.Now()
		live := r.Begin(Arrival{ID: "a/1", Path: "/v1/realtime", Tenant: "acme", Model: "chat", Stream: true, OnConnection: true})
		live.SetDispatched("chat", "chat-1", 400*time.Millisecond)
		time.Sleep(4 * time.Second)
		live.SetOutcome(whole())
		if len(f.all) != 0 {
			t.Fatal("told of before its end")
		}
		live.Close(nil)
		live.Close(nil)
		want := Summary{ID: "a/1", Path: "/v1/realtime", Tenant: "acme", Model: "chat", Replica: "chat-1", State: Done, Status: 200,
			Route: RouteManaged, Source: "engine", Stream: true, Attempts: 2, PromptTokens: 7, CompletionTokens: 11, UsageKnown: true,
			CachedTokens: 5, CachedKnown: true, FinishReason: "stop", Started: began, Waited: 400 * time.Millisecond, FirstByte: time.Second,
			Decode: 2 * time.Second, LastByte: 3 * time.Second, Duration: 4 * time.Second, UpstreamDuration: 2600 * time.Millisecond}
		if diff := cmp.Diff([]Summary{want}, f.all); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		wantRows(t, r, 0, want)

		refused := r.Begin(Arrival{ID: "a/2", Stream: true, OnConnection: true})
		time.Sleep(time.Second)
		refused.SetOutcome(Outcome{Fault: &openai.Error{Code: "queue_full", Status: 429}})
		refused.Close(nil)
		if q := f.all[1]; q.Status != 429 || q.Code != "queue_full" || q.Source != "gateway" || q.Waited != time.Second || q.Cause != "" {
			t.Errorf("refused: %+v", q)
		}
		never := r.Begin(Arrival{ID: "a/3", Stream: true, OnConnection: true})
		time.Sleep(time.Second) // its message arrives slowly
		never.Close(&openai.Error{Code: "invalid_request", Status: 400})
		if q := f.all[2]; q.Status != 400 || q.Source != "gateway" || q.Route != "" || q.Waited != 0 {
			t.Errorf("never carried: %+v", q)
		}
		abandoned := whole()
		abandoned.Cause = CauseClient
		left := r.Begin(Arrival{ID: "a/4", Stream: true, OnConnection: true})
		left.SetOutcome(abandoned)
		left.Close(nil)
		if q := f.all[3]; q.Status != 0 || q.Cause != CauseClient || q.LastByte != 0 {
			t.Errorf("left: %+v", q)
		}
		on(relayed("a/1")) // a client cannot choose such an id; if it could, it would be another request
		if len(f.all) != 5 || f.all[4].Tenant != "" {
			t.Errorf("the record of a turn's id was joined: %+v", f.all)
		}
		wrong := r.Begin(Arrival{ID: "a/5", Stream: true, OnConnection: true})
		time.Sleep(time.Second) // a hook reads it
		wrong.SetOutcome(Outcome{Fault: &openai.Error{Code: "content_filter", Status: 400}})
		wrong.Close(nil)
		if q := f.all[5]; q.Status != 400 || q.Waited != 0 {
			t.Errorf("refused by a rule: %+v", q)
		}
		late := r.Begin(Arrival{ID: "a/6", Stream: true, OnConnection: true})
		late.SetWaits()
		time.Sleep(time.Second) // until a limit becomes smaller than the request
		late.SetOutcome(Outcome{Fault: &openai.Error{Code: "invalid_request", Status: 400}})
		late.Close(nil)
		if q := f.all[6]; q.Status != 400 || q.Waited != time.Second {
			t.Errorf("refused after a wait: %+v", q)
		}
	})
}

// TestCarriedConcurrently: Envoy, the relay and the end of a request race, and each request is told
// of once.
func TestCarriedConcurrently(t *testing.T) {
	t.Parallel()
	const workers, each = 8, 200
	r, f := NewStore(workers*each), &heard{}
	on := subscribed(r, f.finished)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := range each {
				id := fmt.Sprint(w, "-", i)
				live := r.Begin(Arrival{ID: id, Model: "chat", Stream: true})
				ends := []func(){func() { live.SetOutcome(whole()); live.Close(nil) }, func() { on(relayed(id)) }, func() { r.List(3) }}
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

// TestRestartedGateway: what the relay of a process that is gone had carried ends as cut by the
// gateway, and is kept running by nobody.
func TestRestartedGateway(t *testing.T) {
	t.Parallel()
	r, f := NewStore(0), &heard{}
	on := subscribed(r, f.finished)
	soFar, end := relayed("a"), relayed("a")
	soFar.Interim = true
	end.Flags = "UC"
	on(soFar)
	if rows, _ := r.List(0); len(rows) != 0 {
		t.Errorf("there are %+v", rows)
	}
	on(end)
	live := r.Begin(Arrival{ID: "b", Stream: true}) // one that never reached the relay's call
	end.RequestID = "b"
	on(end)
	if _, running := r.List(0); running != 1 {
		t.Errorf("the relay has not told of it yet, and %d run", running)
	}
	live.Close(nil)
	if _, running := r.List(0); running != 0 || len(r.byID) != 0 {
		t.Errorf("%d run, %d are waited for", running, len(r.byID))
	}
	if len(f.all) != 2 || f.all[0].Cause != CauseGateway || f.all[1].Cause != CauseGateway {
		t.Errorf("told of %+v", f.all)
	}
}

// A managed request whose log entry comes late keeps what the relay has told, however many requests
// were refused since.
func TestS12_LateEntryOfAManagedRequest(t *testing.T) {
	t.Parallel()
	var finished []Summary
	s := NewStore(2)
	s.Subscribe(Subscribers{Finished: []func(Summary){func(q Summary) { finished = append(finished, q) }}})
	r := s.Begin(Arrival{ID: "a", Tenant: "acme", Stream: true})
	r.SetDispatched("chat", "chat-0", 0)
	r.SetOutcome(Outcome{Model: "chat", Replica: "chat-0", Answered: true, Attempts: 1, Usage: Usage{Prompt: 10, Completion: 20, Known: true}})
	r.Close(nil)
	for i := range 10 {
		s.Begin(Arrival{ID: fmt.Sprint(i)}).Close(openai.Errorf(openai.CodeRateLimited, "Too many."))
	}
	e := final("a")
	e.Cluster, e.Model, e.Replica = headers.RelayCluster, "", ""
	s.Observe(e)
	if len(finished) != 1 {
		t.Fatalf("%d have ended", len(finished))
	}
	if q := finished[0]; q.Tenant != "acme" || q.Model != "chat" || q.Replica != "chat-0" || q.Route != RouteManaged || q.CompletionTokens != 20 {
		t.Errorf("%+v", q)
	}
	if len(s.byID) > 2 || len(s.late) != 1 {
		t.Errorf("%d are waited for, %d of them late", len(s.byID), len(s.late))
	}
}
