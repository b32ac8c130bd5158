package admission_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// TestSharedPollKeepsNobody: a task that does not wait lacked tokens. A request that needs fewer is
// not told to stay away as long, and does not wait.
func TestSharedPollKeepsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{TokensPerMinute: 6000})
		s.SetPools(map[string][]string{"auto": {"chat"}})
		s.wantAdmitted(s.start(t.Context(), admission.Request{Tokens: 3000}), time.Millisecond)
		for _, r := range []admission.TaskRequest{{Model: "chat"}, {Pool: "auto"}} {
			r.Tokens = 6000
			if _, wait, err := s.Schedule(t.Context(), r); err != nil || wait < 20*time.Second {
				t.Fatal(wait, err)
			}
			s.wantAdmitted(s.start(t.Context(), admission.Request{Tokens: 10}), 10*time.Millisecond)
		}
	})
}

// TestSharedTokensOfOneThatLeft: a waiter behind one that lacks tokens is admitted when that one
// leaves.
func TestSharedTokensOfOneThatLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{TokensPerMinute: 6000})
		s.wantAdmitted(s.start(t.Context(), admission.Request{Tokens: 3000}), time.Millisecond)
		ctx, leave := context.WithCancel(t.Context())
		large := s.start(ctx, admission.Request{Tokens: 6000})
		s.wantWaiting(large)
		small := s.start(t.Context(), admission.Request{Tokens: 10})
		s.wantWaiting(large, small)
		leave()
		s.wantAdmitted(small, 10*time.Millisecond)
	})
}

// TestSharedPassingIsNotEndless: a waiter passes another one that has left, because it needs fewer
// tokens, and is denied for the model's concurrency. It is asked about again after a pause, not at
// once and for ever.
func TestSharedPassingIsNotEndless(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, limits := newFakeStore(), admission.Limits{TokensPerMinute: 6000, MaxConcurrent: 2}
		s, other := newTestGateway(t, store, limits), newTestGateway(t, store, limits)
		s.wantAdmitted(s.start(t.Context(), admission.Request{Tokens: 3000}), time.Millisecond)
		ctx, leave := context.WithCancel(t.Context())
		large := s.start(ctx, admission.Request{Tokens: 6000, Priority: admission.Interactive})
		s.wantWaiting(large)
		small := s.start(t.Context(), admission.Request{Tokens: 10, Priority: admission.Interactive})
		s.wantWaiting(large, small)
		last := other.start(t.Context(), admission.Request{Tokens: 5})
		other.wantAdmitted(last, 10*time.Millisecond)
		s.change(func() { s.delay, s.asked = 0, nil })
		s.change(func() {
			s.beforeAnswer = func() {
				s.change(func() {
					if len(s.asked) > 100 {
						s.delay = time.Second // ends the loop, so that the test can fail
					}
				})
			}
		})
		leave()
		time.Sleep(time.Second)
		synctest.Wait()
		s.change(func() {
			if n := len(s.asked); n < 2 || n > 20 {
				t.Errorf("asked %d times in a second, want a few times", n)
			}
		})
		last.state().lease.Release()
		s.wantAdmitted(small, 300*time.Millisecond)
	})
}

// TestSharedAnswerOfOldLimits: limits change during an inquiry. A denial for the old limits holds
// back nobody.
func TestSharedAnswerOfOldLimits(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*testGateway){
		"model":  func(s *testGateway) { s.SetLimits("chat", admission.Limits{}) },
		"tenant": func(s *testGateway) { s.SetTenants(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newTestGateway(t, newFakeStore(), admission.Limits{TokensPerMinute: 600})
				if name == "tenant" {
					s.SetLimits("chat", admission.Limits{})
					s.SetTenants(map[string]admission.TenantLimits{"a": {TokensPerMinute: 600}})
				}
				s.wantAdmitted(s.start(t.Context(), admission.Request{Tenant: "a", Tokens: 600}), time.Millisecond)
				s.change(func() { s.beforeAnswer = func() { change(s) } })
				s.wantAdmitted(s.start(t.Context(), admission.Request{Tenant: "a", Tokens: 600}), 10*time.Millisecond)
			})
		})
	}
}

// TestSharedFreedMeanwhile: a lease is released during an inquiry, and the answer does not know of
// it.
func TestSharedFreedMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 1})
		first := s.start(t.Context(), admission.Request{})
		s.wantAdmitted(first, time.Millisecond)
		s.change(func() { s.beforeAnswer = first.state().lease.Release })
		s.wantAdmitted(s.start(t.Context(), admission.Request{}), 5*time.Millisecond)
	})
}

// TestSharedDenialEndsWithWhoWaited: what a tenant lacked for a waiter that has left does not count
// for the next.
func TestSharedDenialEndsWithWhoWaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		here, there := newTestGateway(t, store, admission.Limits{MaxConcurrent: 1}), newTestGateway(t, store, admission.Limits{MaxConcurrent: 1})
		for _, s := range []*testGateway{here, there} {
			s.SetTenants(map[string]admission.TenantLimits{"a": {TokensPerMinute: 600}})
		}
		there.SetLimits("other", admission.Limits{})
		busy := there.start(t.Context(), admission.Request{})
		there.wantAdmitted(busy, time.Millisecond)
		ctx, leave := context.WithCancel(t.Context())
		large := here.start(ctx, admission.Request{Tenant: "a", Tokens: 600})
		here.wantWaiting(large)
		there.wantAdmitted(there.start(t.Context(), admission.Request{Model: "other", Tenant: "a", Tokens: 300}), time.Millisecond)
		busy.state().lease.Release()
		here.wantWaiting(large)
		leave()
		synctest.Wait()
		here.wantAdmitted(here.start(t.Context(), admission.Request{Tenant: "a", Tokens: 10}), 10*time.Millisecond)
	})
}

// TestSharedLimitBelowAnAskedRequest: a limit falls below what a request needs while the inquiry
// about it is on its way. The request is refused, and holds up nobody.
func TestSharedLimitBelowAnAskedRequest(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]admission.Request{"model": {}, "pool": {Pool: "auto"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newTestGateway(t, newFakeStore(), admission.Limits{TokensPerMinute: 6000})
				s.SetPools(map[string][]string{"auto": {"chat"}})
				s.wantAdmitted(s.start(t.Context(), admission.Request{Tokens: 6000}), time.Millisecond)
				s.change(func() { s.beforeAnswer = func() { s.SetLimits("chat", admission.Limits{TokensPerMinute: 600}) } })
				ask.Tokens, ask.Timeout = 3000, time.Hour
				large := s.start(t.Context(), ask)
				time.Sleep(time.Second)
				s.wantAdmitted(s.start(t.Context(), admission.Request{Tokens: 10}), time.Second)
				if err := large.state().err; !errors.Is(err, admission.ErrNeverFits) {
					t.Errorf("%+v", large.state())
				}
			})
		})
	}
}

// TestAloneWithATooSmallPart: while the shared state is away, this gateway's part of a limit is
// smaller than what a request needs. The request is told to come back, and holds up nobody.
func TestAloneWithATooSmallPart(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]admission.Request{"model": {}, "pool": {Pool: "auto"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newTestGateway(t, newFakeStore(), admission.Limits{TokensPerMinute: 6000})
				s.SetPools(map[string][]string{"auto": {"chat"}})
				s.change(func() { s.down, s.live = true, 2 })
				ask.Tokens, ask.Tenant = 4000, "a"
				s.wantRefused(s.start(t.Context(), ask), admission.ModelTokens)
				s.wantAdmitted(s.start(t.Context(), admission.Request{Tenant: "b", Tokens: 10}), 10*time.Millisecond)
				ask.Tokens = 2000
				s.wantAdmitted(s.start(t.Context(), ask), 10*time.Millisecond)
			})
		})
	}
}

// TestSharedTenantTokensComeBack: a tenant's waiter lacks tokens. When an earlier request turns out
// to have cost less, after its release, the waiter is admitted.
func TestSharedTenantTokensComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 1})
		s.SetLimits("other", admission.Limits{})
		s.SetTenants(map[string]admission.TenantLimits{"a": {TokensPerMinute: 600}})
		busy := s.start(t.Context(), admission.Request{Tenant: "b"})
		s.wantAdmitted(busy, time.Millisecond)
		waiting := s.start(t.Context(), admission.Request{Tenant: "a", Tokens: 300})
		s.wantWaiting(waiting)
		first := s.start(t.Context(), admission.Request{Model: "other", Tenant: "a", Tokens: 600})
		s.wantAdmitted(first, time.Millisecond)
		busy.state().lease.Release()
		first.state().lease.Release()
		s.wantWaiting(waiting)
		first.state().lease.Correct(10)
		s.wantAdmitted(waiting, 10*time.Millisecond)
	})
}

// TestSharedGrantsLeaveNoDebt: the shared state granted a gateway more than its part of a tenant's
// tokens for an hour. When it does not answer any more, the tenant gets this gateway's part, no
// less and no more, also if requests cost more than their estimates.
func TestSharedGrantsLeaveNoDebt(t *testing.T) {
	t.Parallel()
	const cost = 900 // tokens, once a second
	for _, estimate := range []int{cost, cost / 10} {
		synctest.Test(t, func(t *testing.T) {
			s := newTestGateway(t, newFakeStore(), admission.Limits{})
			s.SetTenants(map[string]admission.TenantLimits{"acme": {TokensPerMinute: 60_000}})
			s.change(func() { s.live = 2 })
			serve := func(seconds int) (refused int) {
				for range seconds {
					l, err := s.Admit(t.Context(), admission.Request{Model: "chat", Tenant: "acme", Tokens: estimate})
					if err == nil {
						l.Release()
						l.Correct(cost)
					} else if refusal := new(admission.Refused); !errors.As(err, &refusal) || refusal.RetryAfter > 5*time.Second {
						t.Fatal(err)
					} else {
						refused++
					}
					time.Sleep(time.Second)
				}
				return refused
			}
			if n := serve(3600); n > 0 {
				t.Fatalf("%d requests were refused while the shared state answered", n)
			}
			s.change(func() { s.down = true })
			if n := 1800 - serve(1800); n < 980 || n > 1020 { // 30,000 tokens in each of 30 minutes
				t.Errorf("estimate %d: %d requests of a part of 1000 were admitted", estimate, n)
			}
		})
	}
}

// TestAloneRepeatedCallFindsItsTask: the shared state knows the task of a key and does not answer
// any more. The gateway that has admitted the task finds it again, also in several calls at once.
func TestAloneRepeatedCallFindsItsTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 1}) // a second task finds no room
		ask := admission.TaskRequest{Model: "chat", Tenant: "acme", Key: "k"}
		first, _, err := s.Schedule(t.Context(), ask)
		if err != nil {
			t.Fatal(err)
		}
		s.change(func() { s.down = true })
		for range 3 {
			go func() {
				if again, _, err := s.Schedule(t.Context(), ask); again.ID != first.ID {
					t.Errorf("the repeated call has task %q, %v, want %q", again.ID, err, first.ID)
				}
			}()
		}
		time.Sleep(time.Second)
		if n := s.Stats("chat").InFlight; n != 1 {
			t.Errorf("%d in flight, want 1", n)
		}
	})
}

// TestSharedLimitBelowAnAskedGuess: the same, but what no longer fits was guessed. The request is
// lowered, and asks again.
func TestSharedLimitBelowAnAskedGuess(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]admission.Request{"model": {}, "pool": {Pool: "auto"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newTestGateway(t, newFakeStore(), admission.Limits{TokensPerMinute: 6000})
				s.SetPools(map[string][]string{"auto": {"chat"}})
				s.wantAdmitted(s.start(t.Context(), admission.Request{Tokens: 6000}), time.Millisecond)
				s.change(func() { s.beforeAnswer = func() { s.SetLimits("chat", admission.Limits{TokensPerMinute: 600}) } })
				ask.Tokens, ask.Guessed, ask.Timeout = 3000, 2900, time.Hour
				s.wantAdmitted(s.start(t.Context(), ask), 2*time.Minute)
			})
		})
	}
}

// TestSharedBytesBoundWaiters: the waiters of one model hold all bytes that may wait. A request
// that need not wait is admitted, and evicts nobody. One that must wait is refused, or evicts a
// waiter of a lower priority.
func TestSharedBytesBoundWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		g := store.newShared()
		t.Cleanup(func() { time.Sleep(time.Second) })
		s := &testGateway{admission.New(admission.Config{Shared: g, MaxQueueBytes: 1000}), g, t}
		for _, model := range []string{"chat", "idle", "busy"} {
			s.SetLimits(model, admission.Limits{MaxConcurrent: 1})
			if model != "idle" {
				s.wantAdmitted(s.start(t.Context(), admission.Request{Model: model}), time.Millisecond)
			}
		}
		var waiting []*admitCall
		for range 10 {
			waiting = append(waiting, s.start(t.Context(), admission.Request{Tenant: "a", Priority: admission.Batch, Bytes: 100, Timeout: time.Hour}))
		}
		s.wantWaiting(waiting...)
		idle := s.start(t.Context(), admission.Request{Model: "idle", Tenant: "b", Bytes: 2000})
		s.wantAdmitted(idle, time.Millisecond)
		idle.state().lease.Release()
		s.wantAdmitted(s.start(t.Context(), admission.Request{Model: "idle", Tenant: "b", Priority: admission.Interactive, Bytes: 10}), time.Millisecond)
		s.wantWaiting(waiting...)
		s.wantRefused(s.start(t.Context(), admission.Request{Model: "busy", Tenant: "b", Priority: admission.Interactive, Bytes: 10}), admission.QueueFull)
		s.wantRefused(s.start(t.Context(), admission.Request{Tenant: "a", Priority: admission.Batch, Bytes: 10}), admission.QueueFull)
		urgent := s.start(t.Context(), admission.Request{Tenant: "a", Priority: admission.Interactive, Bytes: 100})
		s.wantRefused(waiting[9], admission.Evicted)
		s.wantWaiting(append(waiting[:9], urgent)...)
		s.Close()
		synctest.Wait()
	})
}

// TestSharedTaskRenewedElsewhere: a request of a task that waits here goes on waiting after another
// gateway has renewed the task, until that lease of the task ends.
func TestSharedTaskRenewedElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		a, b := newTestGateway(t, store, admission.Limits{MaxConcurrent: 4}), newTestGateway(t, store, admission.Limits{MaxConcurrent: 4})
		task, wait, err := a.Schedule(t.Context(), admission.TaskRequest{Model: "chat", Lease: 3 * time.Second})
		if err != nil || wait != 0 {
			t.Fatal(wait, err)
		}
		if _, err := b.Controller.Renew(t.Context(), "", task.ID, 40*time.Second); err != nil {
			t.Fatal(err)
		}
		began, noSlot := time.Now(), func(string) (admission.Slot, bool) { return admission.Slot{}, false }
		_, err = a.Admit(t.Context(), admission.Request{Model: "chat", UnderTask: task.ID, Locked: admission.LockedHooks{ReserveSlot: noSlot}})
		if took := time.Since(began).Round(time.Second); !errors.Is(err, admission.ErrUnknownTask) || took != 40*time.Second {
			t.Errorf("%v after %v, want %v after 40 s", err, took, admission.ErrUnknownTask)
		}
	})
}

// TestSharedTaskBusyForAMoment: a request of a task that comes while the release of the one before
// is still on its way from another gateway is admitted after it. One that comes while the one
// before runs fails, and so does one whose client leaves or whose model is removed.
func TestSharedTaskBusyForAMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		a, b := newTestGateway(t, store, admission.Limits{MaxConcurrent: 2}), newTestGateway(t, store, admission.Limits{MaxConcurrent: 2})
		task, wait, err := a.Schedule(t.Context(), admission.TaskRequest{Model: "chat"})
		if err != nil || wait != 0 {
			t.Fatal(wait, err)
		}
		under := admission.Request{UnderTask: task.ID}
		for _, release := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond} {
			first := a.start(t.Context(), under)
			a.wantAdmitted(first, 10*time.Millisecond)
			time.AfterFunc(release, first.state().lease.Release)
			next := b.start(t.Context(), under)
			other := b.start(t.Context(), admission.Request{})
			b.wantAdmitted(other, 5*time.Millisecond) // nobody else waits for it
			other.state().lease.Release()
			b.wantAdmitted(next, 300*time.Millisecond)
			next.state().lease.Release()
		}

		running := a.start(t.Context(), under)
		a.wantAdmitted(running, 10*time.Millisecond)
		ctx, leave := context.WithCancel(t.Context())
		left, busy := b.start(ctx, under), b.start(t.Context(), under)
		time.Sleep(10 * time.Millisecond)
		leave()
		time.Sleep(300 * time.Millisecond)
		if l, n := left.state(), busy.state(); !errors.Is(l.err, context.Canceled) || !errors.Is(n.err, admission.ErrTaskBusy) || n.placed != n.unplace {
			t.Errorf("left: %+v, busy: %+v", l, n)
		}
		removed := b.start(t.Context(), under)
		time.Sleep(10 * time.Millisecond)
		b.Remove("chat")
		time.Sleep(300 * time.Millisecond)
		if got := removed.state(); !errors.Is(got.err, admission.ErrRemoved) {
			t.Errorf("a request of a removed model: %+v", got)
		}
		if got := b.Tenant(""); got.Queued != 0 {
			t.Errorf("%+v are left over", got)
		}
	})
}

// TestSharedBytesOfNewcomers: requests whose verdict is late hold no more bytes than may wait.
func TestSharedBytesOfNewcomers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newFakeStore().newShared()
		t.Cleanup(func() { time.Sleep(time.Second) })
		s := &testGateway{admission.New(admission.Config{Shared: g, MaxQueueBytes: 1000}), g, t}
		s.SetLimits("chat", admission.Limits{})
		g.delay = 200 * time.Millisecond
		calls := []*admitCall{}
		for range 10 {
			calls = append(calls, s.start(t.Context(), admission.Request{Bytes: 100}))
		}
		s.wantRefused(s.start(t.Context(), admission.Request{Bytes: 100}), admission.QueueFull)
		for _, c := range calls {
			s.wantAdmitted(c, 300*time.Millisecond)
		}
		s.wantAdmitted(s.start(t.Context(), admission.Request{Bytes: 100}), 250*time.Millisecond)
	})
}
