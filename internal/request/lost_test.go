package request

import (
	"testing"
	"testing/synctest"
	"time"
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
			q.Cause != CauseGateway || q.Code != "gateway_unavailable" || q.PromptTokens != 70 || q.UsageKnown || q.State != Done {
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
