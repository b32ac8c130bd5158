package admission

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// preemptionTest is a testController that records which leases were preempted, in order.
type preemptionTest struct {
	testController
	preempted []string
}

// startPreemptible asks for a preemptible lease of this name.
func (h *preemptionTest) startPreemptible(name string, r Request) *admitCall {
	h.t.Helper()
	r.Unlocked.OnPreempt = func() { h.preempted = append(h.preempted, name) }
	return h.start(h.t.Context(), r)
}

func (h *preemptionTest) wantPreempted(names ...string) {
	h.t.Helper()
	synctest.Wait()
	if !slices.Equal(h.preempted, names) {
		h.t.Fatalf("preempted: %q, want %q", h.preempted, names)
	}
}

// startInteractive starts an interactive request of another tenant.
func (h *preemptionTest) startInteractive(tokens int) *admitCall {
	h.t.Helper()
	return h.start(h.t.Context(), Request{Tenant: "urgent", Priority: Interactive, Tokens: tokens})
}

func runPreemptionTest(t *testing.T, l Limits, test func(*preemptionTest)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &preemptionTest{testController: newTestController(t, l)}
		test(h)
		h.Close()
		synctest.Wait()
	})
}

// The youngest lease of the lowest band is preempted, one at a time, and once for each waiter.
func TestPreemptsTheYoungestOfTheLowestBand(t *testing.T) {
	runPreemptionTest(t, Limits{MaxConcurrent: 5}, func(h *preemptionTest) {
		calls := map[string]*admitCall{}
		for _, name := range []string{"old", "young"} {
			calls[name] = h.startPreemptible(name, Request{Priority: Batch})
		}
		hard := h.start(h.t.Context(), Request{Priority: Batch})
		calls["default"] = h.startPreemptible("default", Request{})
		calls["high"] = h.startPreemptible("high", Request{Priority: Interactive})
		h.wantAdmitted(hard, 0)
		h.wantWaiting(h.start(h.t.Context(), Request{Priority: Batch, Tenant: "equal"}))
		h.wantPreempted()
		first := h.startInteractive(0)
		h.wantPreempted("young")
		second, third, fourth := h.startInteractive(0), h.startInteractive(0), h.startInteractive(0)
		h.RetryWaiters("chat")
		h.wantPreempted("young") // it was not released yet
		if calls["young"].state().lease.FirstToken() {
			t.Error("a first token of a preempted lease")
		}
		calls["young"].release()
		h.wantAdmitted(first, 0)
		h.wantPreempted("young", "old")
		calls["old"].release()
		h.wantAdmitted(second, 0)
		h.wantPreempted("young", "old", "default")
		calls["default"].release()
		h.wantAdmitted(third, 0)
		h.wantWaiting(fourth) // no preemptible lease of a lower band is left
		h.wantPreempted("young", "old", "default")
		// the last one, and the one of the same band
		h.wantStats(Stats{InFlight: 5, Queued: 2, Tokens: -1})
	})
}

// A waiter causes one preemption, even if another request takes what became free.
func TestPreemptsOnceForEach(t *testing.T) {
	runPreemptionTest(t, Limits{}, func(h *preemptionTest) {
		s := newSlotCounter(2)
		soft := []*admitCall{h.startPreemptible("a", Request{Priority: Batch}), h.startPreemptible("b", Request{Priority: Batch})}
		s.free.Store(0)
		r := s.request()
		r.Priority = Interactive
		waits := h.start(h.t.Context(), r)
		h.wantPreempted("b")
		soft[1].release() // another request takes its slot
		h.wantWaiting(waits)
		h.wantPreempted("b")
		s.free.Store(1)
		h.RetryWaiters("chat")
		h.wantAdmitted(waits, 0)
	})
}

// When the waiter leaves for which a lease was preempted, the next waiter gets its room. A
// candidate whose end would not help is passed over.
func TestPreemptsForWhoeverIsNext(t *testing.T) {
	runPreemptionTest(t, Limits{MaxConcurrent: 3}, func(h *preemptionTest) {
		h.startPreemptible("a", Request{Priority: Batch})
		b := h.startPreemptible("b", Request{Priority: Batch})
		h.startPreemptible("c", Request{Priority: Batch, Locked: LockedHooks{WouldFreeSlot: func() bool { return false }}})
		ctx, leave := context.WithCancel(h.t.Context())
		r := newSlotCounter(2).request()
		r.Priority = Interactive
		h.start(ctx, r)
		h.wantPreempted("b")
		next := h.start(h.t.Context(), r)
		leave()
		h.wantWaiting(next)
		h.wantPreempted("b")
		b.release()
		h.wantAdmitted(next, 0)
		h.wantPreempted("b")
	})
}

// No lease is preempted if that would not help, or must not be.
func TestPreemptsNobody(t *testing.T) {
	batch := Request{Priority: Batch, Tokens: 10}
	for name, test := range map[string]func(*preemptionTest){
		"in decode": func(h *preemptionTest) {
			if c := h.startPreemptible("a", batch); !c.state().lease.FirstToken() {
				h.t.Error("a first token was refused")
			}
		},
		"settled": func(h *preemptionTest) { h.startPreemptible("a", batch).state().lease.Correct(5) },
		"released": func(h *preemptionTest) {
			h.startPreemptible("a", batch).release()
			h.wantAdmitted(h.startTokens(10), 0)
		},
		"native": func(h *preemptionTest) { h.start(h.t.Context(), batch) },
		"a task's, which has no place in the limits": func(h *preemptionTest) {
			h.SetLimits("chat", Limits{MaxConcurrent: 2, TokensPerMinute: 100})
			task := h.scheduleTask(TaskRequest{Tenant: "a", Tokens: 10})
			h.startPreemptible("a", Request{Priority: Batch, Tokens: 10, UnderTask: task.ID})
			h.startTokens(10)
		},
		"no slot would be free": func(h *preemptionTest) {
			r := batch
			r.Locked.WouldFreeSlot = func() bool { return false }
			h.startPreemptible("a", r)
		},
		"only of its own band": func(h *preemptionTest) {
			h.SetLimits("chat", Limits{MaxConcurrent: 2, TokensPerMinute: 100})
			r := batch
			r.Locked.WouldFreeSlot = func() bool { return false }
			h.startPreemptible("a", r)
			h.startPreemptible("b", Request{Priority: Interactive})
		},
		"above the limit": func(h *preemptionTest) {
			h.SetLimits("chat", Limits{MaxConcurrent: 3, TokensPerMinute: 100})
			for range 3 {
				h.startPreemptible("a", batch)
			}
			h.SetLimits("chat", Limits{MaxConcurrent: 2, TokensPerMinute: 100})
		},
		"one that had waited long": func(h *preemptionTest) {
			current := h.startTokens(0)
			aged := h.startPreemptible("a", batch)
			time.Sleep(h.ageing)
			current.release()
			h.wantAdmitted(aged, h.ageing)
		},
		"tokens are wanting": func(h *preemptionTest) { h.startPreemptible("a", Request{Priority: Batch, Tokens: 50}) },
	} {
		t.Run(name, func(t *testing.T) {
			runPreemptionTest(t, Limits{MaxConcurrent: 1, TokensPerMinute: 100, QueueTimeout: time.Hour}, func(h *preemptionTest) {
				test(h)
				tokens := 10
				if name == "tokens are wanting" {
					tokens = 60
				}
				r := newSlotCounter(1).request()
				r.Tenant, r.Priority, r.Tokens = "urgent", Interactive, tokens
				waits := h.start(h.t.Context(), r)
				h.wantWaiting(waits)
				h.wantPreempted()
			})
		})
	}
}

// A tenant at a limit of its own causes no preemption.
func TestPreemptsNobodyForATenantsCap(t *testing.T) {
	runPreemptionTest(t, Limits{}, func(h *preemptionTest) {
		h.SetTenants(map[string]TenantLimits{"urgent": {MaxPrefill: 1}})
		h.startPreemptible("a", Request{Priority: Batch})
		r := Request{Tenant: "urgent", Priority: Interactive, Prefill: true}
		h.start(h.t.Context(), r)
		h.wantWaiting(h.start(h.t.Context(), r))
		h.wantPreempted()
	})
}

// The charge of a preempted lease is given back, whatever Correct is told. When the request comes
// again, it goes before the others of its tenant, and is not refused although its tenant's buckets
// are empty.
func TestPreemptedComesAgain(t *testing.T) {
	runPreemptionTest(t, Limits{MaxConcurrent: 1, TokensPerMinute: 1000}, func(h *preemptionTest) {
		h.SetTenants(map[string]TenantLimits{"t": {RequestsPerMinute: 2, TokensPerMinute: 150, MaxConcurrent: 2}})
		r := Request{Tenant: "t", Priority: Batch, Tokens: 100}
		first := h.startPreemptible("first", r)
		// the buckets are empty
		behind := h.start(h.t.Context(), Request{Tenant: "t", Priority: Batch, Tokens: 50})
		urgent := h.startInteractive(1)
		h.wantPreempted("first")
		first.state().lease.Correct(70)
		first.release()
		h.wantAdmitted(urgent, 0)
		h.wantStats(Stats{InFlight: 1, Queued: 1, Tokens: 999})
		if q := h.Tenant("t").Quota; q.Requests.Remaining != 1 || q.Tokens.Remaining != 100 {
			t.Fatalf("quota %+v after the preemption", q)
		}
		h.wantWaiting(h.start(h.t.Context(), r)) // another request takes the lease
		r.Preempted = true
		again := h.startPreemptible("again", r)
		h.wantWaiting(again)
		urgent.release()
		h.wantAdmitted(again, 0)
		again.state().lease.Correct(70) // not preempted this time
		again.release()
		h.wantStats(Stats{Tokens: 999 - 70 - 50, InFlight: 1, Queued: 1})
		h.wantAdmitted(behind, 0)
	})
}

// A full queue accepts a preempted request, and does not evict it.
func TestPreemptedHasRoom(t *testing.T) {
	runPreemptionTest(t, Limits{MaxConcurrent: 1, MaxQueue: 1}, func(h *preemptionTest) {
		first := h.startPreemptible("first", Request{Priority: Batch})
		urgent := h.startInteractive(0)
		first.release()
		h.wantAdmitted(urgent, 0)
		h.wantWaiting(h.start(h.t.Context(), Request{Priority: Batch}))
		h.wantRefused(h.start(h.t.Context(), Request{Priority: Batch, Tenant: "a"}), errQueueFull, 0)
		again := h.startPreemptible("again", Request{Priority: Batch, Preempted: true})
		h.wantWaiting(again)
		// evicting the one new request would not be enough
		h.wantRefused(h.start(h.t.Context(), Request{Tenant: "b"}), errQueueFull, 0)
		h.wantStats(Stats{InFlight: 1, Queued: 2, Tokens: -1})
		urgent.release()
		h.wantAdmitted(again, 0)
	})
}

// A lower limit refuses new waiters, but no preempted one.
func TestPreemptedKeepsWaiting(t *testing.T) {
	runPreemptionTest(t, Limits{MaxConcurrent: 1}, func(h *preemptionTest) {
		h.SetTenants(map[string]TenantLimits{"t": {TokensPerMinute: 150}})
		urgent := h.startInteractive(0)
		again := h.startPreemptible("again", Request{Tenant: "t", Tokens: 100, Preempted: true})
		fresh := h.start(h.t.Context(), Request{Tenant: "t", Tokens: 50})
		h.wantWaiting(again, fresh)
		h.SetTenants(map[string]TenantLimits{"t": {TokensPerMinute: 100}})
		h.wantWaiting(again)
		h.wantRefused(fresh, &Refused{Reason: TenantTokens, RetryAfter: 30 * time.Second}, 0)
		h.SetTenants(map[string]TenantLimits{"t": {TokensPerMinute: 100, RequestsPerMinute: 1, MaxConcurrent: 1}})
		urgent.release()
		h.wantAdmitted(again, 0)
	})
}

// A preempted request waits for its tenant's limit of requests at once, where a new one would be
// refused.
func TestPreemptedStaysWithinItsTenant(t *testing.T) {
	runPreemptionTest(t, Limits{}, func(h *preemptionTest) {
		h.SetTenants(map[string]TenantLimits{"t": {MaxConcurrent: 1}})
		running := h.start(h.t.Context(), Request{Tenant: "t"})
		again := h.start(h.t.Context(), Request{Tenant: "t", Preempted: true})
		h.wantWaiting(again)
		time.Sleep(time.Second)
		running.release()
		h.wantAdmitted(again, time.Second)
	})
}
