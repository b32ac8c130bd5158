package request

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// lostStore returns a store, a native request of it that was closed, and what was told of it.
func lostStore(h *hold) (s *Store, r *Record, used, finished *[]Summary) {
	s, used, finished = NewStore(2), new([]Summary), new([]Summary)
	s.Subscribe(Subscribers{
		Used:     func(q *Summary) { *used = append(*used, *q) },
		Finished: []func(Summary){func(q Summary) { *finished = append(*finished, q) }},
	})
	r = s.Begin(Arrival{ID: "a", Tenant: "acme", Stream: true})
	r.SetNative(h, "chat", "chat-0", 0)
	r.Close(nil)
	return s, r, used, finished
}

// TestE3_RequestsOfADeadEnvoyCount: a request whose Envoy has died ends without an entry. It is
// told once, its charge is corrected, and an entry that comes later counts nothing.
func TestE3_RequestsOfADeadEnvoyCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &hold{cost: Cost{Usage: Usage{Prompt: 70}}}
		s, r, used, finished := lostStore(h)
		r.Lose(func() bool { return false })
		time.Sleep(lostCheck)
		synctest.Wait()
		s.Observe(final("a"))
		if len(*used) != 1 || len(*finished) != 1 {
			t.Fatalf("told %d times what it has used, and %d times that it has ended", len(*used), len(*finished))
		}
		q := (*finished)[0]
		if q.ID != "a" || q.Tenant != "acme" || q.Model != "chat" || q.Replica != "chat-0" || q.Route != RouteNative || !q.Abandoned ||
			q.Cause != CauseGateway || q.Code != "gateway_unavailable" || q.PromptTokens != 70 || q.UsageKnown || q.State != Done || q.Attempts != 1 {
			t.Errorf("%+v", q)
		}
		if len(h.corrected) != 1 || !h.corrected[0].Lost || !h.corrected[0].Abandoned || h.released != 1 {
			t.Errorf("%+v", h)
		}
		for range 3 { // others push it out of the list
			other := s.Begin(Arrival{ID: "b"})
			other.Close(nil)
		}
		if s.byID["a"] != nil {
			t.Error("it is still waited for")
		}
	})
}

// TestE3_RequestsOfALivingEnvoyWait: a request whose Envoy lives, or whose entry has come, is not
// ended.
func TestE3_RequestsOfALivingEnvoyWait(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string]func(*Store, *Record){
		"Envoy lives":           func(_ *Store, r *Record) { r.Lose(func() bool { return true }) },
		"the entry has come":    func(s *Store, r *Record) { s.Observe(final("a")); r.Lose(func() bool { return false }) },
		"the entry comes soon":  func(s *Store, r *Record) { r.Lose(func() bool { return false }); s.Observe(final("a")) },
		"the entry comes later": func(s *Store, r *Record) { r.Lose(func() bool { return true }); time.Sleep(2 * lostCheck) },
	} {
		synctest.Test(t, func(t *testing.T) {
			h := new(hold)
			s, r, used, finished := lostStore(h)
			steps(s, r)
			time.Sleep(2 * lostCheck)
			synctest.Wait()
			s.Observe(final("a"))
			if len(*used) != len(*finished) || len(*used) < 1 || (*finished)[0].Status != 200 || (*used)[0].Replica != "chat-0" || len(h.corrected) != 1 || h.corrected[0].Lost {
				t.Errorf("%s: used %+v, finished %+v, %+v", name, *used, *finished, h)
			}
		})
	}
}

// TestE3_ManagedRequestsOfADeadEnvoyCount: the relay takes the death of Envoy for a client that has
// left. The request is told once, with the relay's figures, and the gateway has broken it off. So
// is one that waited when its Envoy died.
func TestE3_ManagedRequestsOfADeadEnvoyCount(t *testing.T) {
	t.Parallel()
	left := Outcome{Model: "chat", Replica: "chat-0", Cause: CauseClient, Fault: openai.Cancelled(), Attempts: 1, Answered: true, Usage: Usage{Prompt: 7, Completion: 3}}
	for name, c := range map[string]struct {
		outcome *Outcome
		want    Summary
	}{
		"a stream of the relay": {&left, Summary{Route: RouteManaged, Source: "engine", PromptTokens: 7, CompletionTokens: 3}},
		"one that waited":       {nil, Summary{Source: "gateway"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var used, finished []Summary
			s := NewStore(2)
			s.Subscribe(Subscribers{
				Used:     func(q *Summary) { used = append(used, *q) },
				Finished: []func(Summary){func(q Summary) { finished = append(finished, q) }},
			})
			r := s.Begin(Arrival{ID: "a", Tenant: "acme", Model: "chat", Stream: true})
			if c.outcome != nil {
				r.SetOutcome(*c.outcome)
			}
			r.Close(nil)
			r.Lose(func() bool { return false })
			time.Sleep(lostCheck)
			synctest.Wait()
			s.Observe(relayed("a"))
			if len(used) != 1 || len(finished) != 1 {
				t.Fatalf("%s: told %d times what it has used, and %d times that it has ended", name, len(used), len(finished))
			}
			q := finished[0]
			if q.Code != "gateway_unavailable" || q.Cause != CauseGateway || q.Route != c.want.Route || q.Source != c.want.Source ||
				q.PromptTokens != c.want.PromptTokens || q.CompletionTokens != c.want.CompletionTokens || q.Abandoned {
				t.Errorf("%s: %+v", name, q)
			}
		})
	}
}

// TestE3_AWholeManagedRequestIsNotLost: nobody looks whether the Envoy of a request lives that the
// relay has carried to a good end, or that was refused. Envoy may still send the answer.
func TestE3_AWholeManagedRequestIsNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewStore(0)
		asked := func() bool { t.Error("asked"); return false }
		r, refused := s.Begin(Arrival{ID: "a", Stream: true}), s.Begin(Arrival{ID: "b"})
		r.SetOutcome(whole())
		r.Close(nil)
		r.Lose(asked)
		refused.Close(openai.Cancelled())
		refused.Lose(asked)
		time.Sleep(2 * lostCheck)
	})
}

// TestE3_RecoveredRequestsOfADeadEnvoyCount: a request of before a restart whose Envoy has died
// ends, and counts what its last periodic entry tells. One whose Envoy lives goes on, however long
// nobody hears of it.
func TestE3_RecoveredRequestsOfADeadEnvoyCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var used, finished []Summary
		var lost []Entry
		s := NewStore(4)
		s.Subscribe(Subscribers{
			CostOf:   func(e *Entry) Cost { return Cost{Usage: Usage{Prompt: e.BytesIn, Completion: e.BytesOut}} },
			Lost:     func(e *Entry) { lost = append(lost, *e) },
			Lives:    func(pid int) bool { return pid == 7 },
			Used:     func(q *Summary) { used = append(used, *q) },
			Finished: []func(Summary){func(q Summary) { finished = append(finished, q) }},
		})
		tell := func(id string, pid int, out int64) {
			e := final(id)
			if out == 0 { // no response has begun
				e.Status, e.FirstByte, e.Details = 0, 0, ""
			}
			e.Interim, e.PID, e.Duration, e.BytesOut, e.Usage = true, pid, 0, out, Usage{}
			e.Start, e.Streamed, e.Metadata = time.Now(), true, map[string]string{"tenant": "acme"}
			s.Observe(e)
		}
		tell("lives", 7, 10)
		tell("lost", 8, 10)
		time.Sleep(time.Second)
		tell("lost", 8, 40)
		time.Sleep(lateNews + lostCheck)
		synctest.Wait()
		if len(used) != 1 || len(finished) != 1 {
			t.Fatalf("told %d times what it has used, and %d times that it has ended", len(used), len(finished))
		}
		q := finished[0]
		if q.ID != "lost" || q.Tenant != "acme" || q.State != Done || q.Code != "gateway_unavailable" || q.Cause != CauseGateway ||
			q.CompletionTokens != 40 || q.PromptTokens == 0 || q.UsageKnown || q.Duration < lateNews || q.Flags != "" {
			t.Errorf("%+v", q)
		}
		if len(lost) != 1 || lost[0].RequestID != "lost" || lost[0].Interim || lost[0].BytesOut != 40 || lost[0].Metadata["tenant"] != "acme" {
			t.Errorf("the charge is corrected by %+v", lost)
		}
		tell("unanswered", 8, 0)
		time.Sleep(lateNews + lostCheck)
		synctest.Wait()
		if q := finished[1]; q.ID != "unanswered" || !q.Abandoned || q.PromptTokens == 0 || q.CompletionTokens != 0 || q.Code != "gateway_unavailable" {
			t.Errorf("%+v", q)
		}
		time.Sleep(2 * logOnlyTTL)
		if _, running := s.List(0); running != 1 || len(used) != 2 {
			t.Errorf("%d running, %d have used something", running, len(used))
		}
		s.Observe(final("lives"))
		s.Observe(final("lost"))
		if _, running := s.List(0); running != 0 || len(used) != 3 {
			t.Errorf("%d running, %d have used something", running, len(used))
		}
		time.Sleep(lateNews)
	})
}

// TestE3_ARecoveredRequestIsWatchedUntilItsEnd: the Envoy of a request of before a restart may live
// for long, and die then. A final entry that comes just after its death counts alone.
func TestE3_ARecoveredRequestIsWatchedUntilItsEnd(t *testing.T) {
	t.Parallel()
	for _, entryComes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var finished []Summary
			dies := time.Now().Add(3*lateNews + 2*time.Second)
			s := NewStore(4)
			s.Subscribe(Subscribers{
				Lives:    func(int) bool { return time.Now().Before(dies) },
				Finished: []func(Summary){func(q Summary) { finished = append(finished, q) }},
			})
			e := final("a")
			e.Interim, e.PID, e.Start, e.Streamed = true, 7, time.Now(), true
			s.Observe(e)
			time.Sleep(3*lateNews + time.Second)
			synctest.Wait()
			if _, running := s.List(0); running != 1 {
				t.Fatal("it has ended while its Envoy lives")
			}
			time.Sleep(lateNews)
			if synctest.Wait(); entryComes {
				s.Observe(final("a"))
			}
			time.Sleep(lateNews)
			synctest.Wait()
			if len(finished) != 1 || (finished[0].Code == "gateway_unavailable") == entryComes {
				t.Errorf("the entry comes: %v; ended: %+v", entryComes, finished)
			}
		})
	}
}
