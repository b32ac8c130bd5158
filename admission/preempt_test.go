package admission

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// hall is a desk whose leases may be preempted, and knows which were, in order.
type hall struct {
	desk
	preempted []string
}

// soft asks for a lease of this name that may be preempted.
func (h *hall) soft(name string, r Request) *call {
	h.t.Helper()
	r.Preempt = func() { h.preempted = append(h.preempted, name) }
	return h.ask(h.t.Context(), r)
}

func (h *hall) want(names ...string) {
	h.t.Helper()
	synctest.Wait()
	if !slices.Equal(h.preempted, names) {
		h.t.Fatalf("preempted: %q, want %q", h.preempted, names)
	}
}

// urgent is an interactive request of another tenant.
func (h *hall) urgent(tokens int) *call {
	h.t.Helper()
	return h.ask(h.t.Context(), Request{Tenant: "urgent", Priority: Interactive, Tokens: tokens})
}

func inHall(t *testing.T, l Limits, test func(*hall)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &hall{desk: newDesk(t, l)}
		test(h)
		h.Close()
		synctest.Wait()
	})
}

// The youngest of the lowest band makes way, one at a time, and once for each that waits.
func TestPreemptsTheYoungestOfTheLowestBand(t *testing.T) {
	inHall(t, Limits{MaxConcurrent: 5}, func(h *hall) {
		calls := map[string]*call{}
		for _, name := range []string{"old", "young"} {
			calls[name] = h.soft(name, Request{Priority: Batch})
		}
		hard := h.ask(h.t.Context(), Request{Priority: Batch})
		calls["default"] = h.soft("default", Request{})
		calls["high"] = h.soft("high", Request{Priority: Interactive})
		h.admitted(hard, 0)
		h.waits(h.ask(h.t.Context(), Request{Priority: Batch, Tenant: "equal"}))
		h.want()
		first := h.urgent(0)
		h.want("young")
		second, third, fourth := h.urgent(0), h.urgent(0), h.urgent(0)
		h.Kick("chat")
		h.want("young") // it has not gone yet
		if calls["young"].get().lease.FirstToken() {
			t.Error("a first token of a preempted lease")
		}
		calls["young"].release()
		h.admitted(first, 0)
		h.want("young", "old")
		calls["old"].release()
		h.admitted(second, 0)
		h.want("young", "old", "default")
		calls["default"].release()
		h.admitted(third, 0)
		h.waits(fourth) // nobody of a lower band is left that may be preempted
		h.want("young", "old", "default")
		h.stats(Stats{InFlight: 5, Queued: 2, Tokens: -1}) // the last, and the equal one
	})
}

// One that waits causes one preemption, even if another takes what it got by it.
func TestPreemptsOnceForEach(t *testing.T) {
	inHall(t, Limits{}, func(h *hall) {
		s := newReplicas(2)
		soft := []*call{h.soft("a", Request{Priority: Batch}), h.soft("b", Request{Priority: Batch})}
		s.free.Store(0)
		r := s.request()
		r.Priority = Interactive
		waits := h.ask(h.t.Context(), r)
		h.want("b")
		soft[1].release() // and somebody else takes its slot
		h.waits(waits)
		h.want("b")
		s.free.Store(1)
		h.Kick("chat")
		h.admitted(waits, 0)
	})
}

// When the one leaves for whom somebody makes way, the next has that, and one whose end would not help is passed over.
func TestPreemptsForWhoeverIsNext(t *testing.T) {
	inHall(t, Limits{MaxConcurrent: 3}, func(h *hall) {
		h.soft("a", Request{Priority: Batch})
		b := h.soft("b", Request{Priority: Batch})
		h.soft("c", Request{Priority: Batch, Helps: func() bool { return false }})
		ctx, leave := context.WithCancel(h.t.Context())
		r := newReplicas(2).request()
		r.Priority = Interactive
		h.ask(ctx, r)
		h.want("b")
		next := h.ask(h.t.Context(), r)
		leave()
		h.waits(next)
		h.want("b")
		b.release()
		h.admitted(next, 0)
		h.want("b")
	})
}

// Nobody is preempted where it would not help, or must not be.
func TestPreemptsNobody(t *testing.T) {
	batch := Request{Priority: Batch, Tokens: 10}
	for name, test := range map[string]func(*hall){
		"in decode": func(h *hall) {
			if c := h.soft("a", batch); !c.get().lease.FirstToken() {
				h.t.Error("a first token was refused")
			}
		},
		"settled":  func(h *hall) { h.soft("a", batch).get().lease.Settle(5) },
		"released": func(h *hall) { h.soft("a", batch).release(); h.admitted(h.request(10), 0) },
		"native":   func(h *hall) { h.ask(h.t.Context(), batch) },
		"a task's, which has no place in the limits": func(h *hall) {
			h.soft("a", Request{Priority: Batch, Admitted: true})
			h.request(10)
		},
		"no slot would be free": func(h *hall) {
			r := batch
			r.Helps = func() bool { return false }
			h.soft("a", r)
		},
		"only of its own band": func(h *hall) {
			h.SetLimits("chat", Limits{MaxConcurrent: 2, TokensPerMinute: 100})
			r := batch
			r.Helps = func() bool { return false }
			h.soft("a", r)
			h.soft("b", Request{Priority: Interactive})
		},
		"above the limit": func(h *hall) {
			h.SetLimits("chat", Limits{MaxConcurrent: 3, TokensPerMinute: 100})
			for range 3 {
				h.soft("a", batch)
			}
			h.SetLimits("chat", Limits{MaxConcurrent: 2, TokensPerMinute: 100})
		},
		"one that had waited long": func(h *hall) {
			current := h.request(0)
			aged := h.soft("a", batch)
			time.Sleep(h.ageing)
			current.release()
			h.admitted(aged, h.ageing)
		},
		"tokens are wanting": func(h *hall) { h.soft("a", Request{Priority: Batch, Tokens: 50}) },
	} {
		t.Run(name, func(t *testing.T) {
			inHall(t, Limits{MaxConcurrent: 1, TokensPerMinute: 100, QueueTimeout: time.Hour}, func(h *hall) {
				test(h)
				tokens := 10
				if name == "tokens are wanting" {
					tokens = 60
				}
				r := newReplicas(1).request()
				r.Tenant, r.Priority, r.Tokens = "urgent", Interactive, tokens
				waits := h.ask(h.t.Context(), r)
				h.waits(waits)
				h.want()
			})
		})
	}
}

// A tenant at a cap of its own pushes nobody out.
func TestPreemptsNobodyForATenantsCap(t *testing.T) {
	inHall(t, Limits{}, func(h *hall) {
		h.SetTenants(map[string]TenantLimits{"urgent": {MaxPrefill: 1}})
		h.soft("a", Request{Priority: Batch})
		r := Request{Tenant: "urgent", Priority: Interactive, Prefill: true}
		h.ask(h.t.Context(), r)
		h.waits(h.ask(h.t.Context(), r))
		h.want()
	})
}

// What a preempted lease took is given back, whatever is said of its cost. When it comes again it goes before the others of its tenant,
// and is not refused although its quotas are used up.
func TestPreemptedComesAgain(t *testing.T) {
	inHall(t, Limits{MaxConcurrent: 1, TokensPerMinute: 1000}, func(h *hall) {
		h.SetTenants(map[string]TenantLimits{"t": {RequestsPerMinute: 2, TokensPerMinute: 150, MaxConcurrent: 2}})
		r := Request{Tenant: "t", Priority: Batch, Tokens: 100}
		first := h.soft("first", r)
		behind := h.ask(h.t.Context(), Request{Tenant: "t", Priority: Batch, Tokens: 50}) // the quotas are used up
		urgent := h.urgent(1)
		h.want("first")
		first.get().lease.Settle(70)
		first.release()
		h.admitted(urgent, 0)
		h.stats(Stats{InFlight: 1, Queued: 1, Tokens: 999})
		if q := h.Tenant("t").Quota; q.Requests.Remaining != 1 || q.Tokens.Remaining != 100 {
			t.Fatalf("quota %+v after the preemption", q)
		}
		h.waits(h.ask(h.t.Context(), r)) // and somebody takes them
		r.Preempted = true
		again := h.soft("again", r)
		h.waits(again)
		urgent.release()
		h.admitted(again, 0)
		again.get().lease.Settle(70) // not preempted this time
		again.release()
		h.stats(Stats{Tokens: 999 - 70 - 50, InFlight: 1, Queued: 1})
		h.admitted(behind, 0)
	})
}

// A preempted request has room in a full queue, and is not evicted from it.
func TestPreemptedHasRoom(t *testing.T) {
	inHall(t, Limits{MaxConcurrent: 1, MaxQueue: 1}, func(h *hall) {
		first := h.soft("first", Request{Priority: Batch})
		urgent := h.urgent(0)
		first.release()
		h.admitted(urgent, 0)
		h.waits(h.ask(h.t.Context(), Request{Priority: Batch}))
		h.refused(h.ask(h.t.Context(), Request{Priority: Batch, Tenant: "a"}), full, 0)
		again := h.soft("again", Request{Priority: Batch, Preempted: true})
		h.waits(again)
		h.refused(h.ask(h.t.Context(), Request{Tenant: "b"}), full, 0) // to evict the one new request is not enough
		h.stats(Stats{InFlight: 1, Queued: 2, Tokens: -1})
		urgent.release()
		h.admitted(again, 0)
	})
}

// A quota that is lowered ends the waiting of new requests, and not of a preempted one.
func TestPreemptedKeepsWaiting(t *testing.T) {
	inHall(t, Limits{MaxConcurrent: 1}, func(h *hall) {
		h.SetTenants(map[string]TenantLimits{"t": {TokensPerMinute: 150}})
		urgent := h.urgent(0)
		again := h.soft("again", Request{Tenant: "t", Tokens: 100, Preempted: true})
		fresh := h.ask(h.t.Context(), Request{Tenant: "t", Tokens: 50})
		h.waits(again, fresh)
		h.SetTenants(map[string]TenantLimits{"t": {TokensPerMinute: 100}})
		h.waits(again)
		h.refused(fresh, &Refused{Reason: TenantTokens, RetryAfter: 30 * time.Second}, 0)
		h.SetTenants(map[string]TenantLimits{"t": {TokensPerMinute: 100, RequestsPerMinute: 1, MaxConcurrent: 1}})
		urgent.release()
		h.admitted(again, 0)
	})
}

// A preempted request waits for its tenant's own cap on requests at once, where a new one would be refused.
func TestPreemptedStaysWithinItsTenant(t *testing.T) {
	inHall(t, Limits{}, func(h *hall) {
		h.SetTenants(map[string]TenantLimits{"t": {MaxConcurrent: 1}})
		running := h.ask(h.t.Context(), Request{Tenant: "t"})
		again := h.ask(h.t.Context(), Request{Tenant: "t", Preempted: true})
		h.waits(again)
		time.Sleep(time.Second)
		running.release()
		h.admitted(again, time.Second)
	})
}
