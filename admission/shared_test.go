package admission_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// testGateway is the Controller of one gateway inside a synctest bubble.
type testGateway struct {
	*admission.Controller
	*fakeShared
	t *testing.T
}

func newTestGateway(t *testing.T, s *fakeStore, l admission.Limits) *testGateway {
	t.Cleanup(func() { time.Sleep(time.Second) }) // for answers that are on the way
	g := s.newShared()
	c := admission.New(admission.Config{Shared: g, Gateway: fmt.Sprint("gw", len(s.gateways))})
	c.SetLimits("chat", l)
	return &testGateway{c, g, t}
}

type admitCall struct {
	mu  sync.Mutex
	now callState // guarded by mu
}

// callState is the outcome of a call so far.
type callState struct {
	lease   *admission.Lease
	err     error
	ended   bool
	took    time.Duration
	waited  bool
	placed  int
	unplace int
}

func (v *admitCall) state() callState {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now
}

func (v *admitCall) update(change func(*callState)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change(&v.now)
}

// start starts an Admit. Every request gets a slot.
func (s *testGateway) start(ctx context.Context, r admission.Request) *admitCall {
	v := &admitCall{}
	if r.Model == "" && r.Pool == "" {
		r.Model = "chat"
	}
	r.Unlocked.OnWait = func() { v.update(func(n *callState) { n.waited = true }) }
	r.Locked.ReserveSlot = func(string) (admission.Slot, bool) {
		v.update(func(n *callState) { n.placed++ })
		return admission.Slot{Replica: "r"}, true
	}
	r.Unlocked.ReleaseSlot = func() { v.update(func(n *callState) { n.unplace++ }) }
	started := time.Now()
	go func() {
		lease, err := s.Admit(ctx, r)
		v.update(func(n *callState) { n.lease, n.err, n.ended, n.took = lease, err, true, time.Since(started) })
	}()
	synctest.Wait()
	return v
}

func (s *testGateway) wantAdmitted(v *admitCall, within time.Duration) {
	s.t.Helper()
	time.Sleep(within)
	synctest.Wait()
	if v.state().lease == nil || v.state().placed-v.state().unplace != 1 {
		s.t.Fatalf("got %+v, want a lease with one slot", v.state())
	}
}

func (s *testGateway) wantWaiting(visits ...*admitCall) {
	s.t.Helper()
	time.Sleep(2 * time.Second)
	synctest.Wait()
	for i, v := range visits {
		if v.state().ended || !v.state().waited {
			s.t.Fatalf("visit %d: %+v, want it to wait", i, v.state())
		}
	}
}

func (s *testGateway) wantRefused(v *admitCall, reason admission.Reason) {
	s.t.Helper()
	time.Sleep(10 * time.Millisecond)
	synctest.Wait()
	var refused *admission.Refused
	if !errors.As(v.state().err, &refused) || refused.Reason != reason || refused.RetryAfter <= 0 || v.state().placed != v.state().unplace {
		s.t.Fatalf("got %+v, want a refusal: %v", v.state(), reason)
	}
}

func TestSharedGrantDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 1, MaxQueue: -1})
		v := s.start(t.Context(), admission.Request{Tokens: 5})
		s.wantAdmitted(v, time.Millisecond)
		if v.state().waited || v.state().lease.ID() != "gw1-1" || s.leaseCount() != 1 {
			t.Errorf("%+v, %s, %d leases", v.state(), v.state().lease.ID(), s.leaseCount())
		}
		s.wantRefused(s.start(t.Context(), admission.Request{}), admission.QueueFull)
		if got := s.Stats("chat"); got.InFlight != 1 || got.Queued != 0 || got.Share != 1 {
			t.Errorf("%+v", got)
		}
		v.state().lease.Release()
		if s.leaseCount() != 0 {
			t.Errorf("%d leases left", s.leaseCount())
		}
	})
}

// TestSharedLateVerdict: a request whose verdict is late is told that it waits.
func TestSharedLateVerdict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 1, MaxQueue: -1})
		s.delay = 600 * time.Millisecond
		v := s.start(t.Context(), admission.Request{Tokens: 5})
		for _, c := range []struct {
			after  time.Duration
			waited bool
		}{{200 * time.Millisecond, false}, {100 * time.Millisecond, true}} {
			time.Sleep(c.after)
			synctest.Wait()
			if got := v.state(); got.waited != c.waited || got.ended {
				t.Fatalf("%+v, want waited %v", got, c.waited)
			}
		}
		s.wantAdmitted(v, time.Second)
	})
}

// TestSharedLateVerdictAwaitFor: the same for a request whose wait has two halves. It is told once,
// also if it then has to wait for its turn.
func TestSharedLateVerdictAwaitFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 1, MaxQueue: 5})
		first := s.start(t.Context(), admission.Request{Tokens: 5})
		s.wantAdmitted(first, time.Second)
		s.delay = 600 * time.Millisecond
		told := 0
		_, p, err := s.Begin(admission.Request{Model: "chat", Tokens: 5, Unlocked: admission.UnlockedHooks{OnWait: func() { told++ }}})
		if err != nil || p == nil {
			t.Fatal(err)
		}
		began := time.Now()
		if p.AwaitFor(t.Context(), time.Second) || told != 1 || time.Since(began) < 1600*time.Millisecond {
			t.Errorf("told %d times after %v, want once, and a wait of the verdict and a second", told, time.Since(began))
		}
		first.state().lease.Release()
		lease, err := p.Await(t.Context())
		if err != nil || told != 1 {
			t.Fatalf("%v, told %d times", err, told)
		}
		lease.Release()
	})
}

// TestSharedOrder: denied waiters keep their order, and an inquiry is about many of them.
func TestSharedOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 1})
		current := s.start(t.Context(), admission.Request{})
		s.wantAdmitted(current, time.Millisecond)
		var waiting []*admitCall
		for i := range 6 {
			waiting = append(waiting, s.start(t.Context(), admission.Request{Tenant: fmt.Sprint(i % 3), Tokens: 10}))
		}
		s.wantWaiting(waiting...)
		high := s.start(t.Context(), admission.Request{Priority: admission.Interactive, Tenant: "z"})
		s.wantWaiting(high)
		if got := s.Stats("chat").Queued; got != 7 {
			t.Errorf("%d queued, want 7", got)
		}
		// No inquiry is sent before the backoff while nothing happens.
		s.change(func() { s.asked = nil })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := len(s.asked); n < 20 || n > 45 {
			t.Errorf("asked %d times in 10 s", n)
		}
		for i, next := range append([]*admitCall{high}, waiting...) {
			current.state().lease.Release()
			s.wantAdmitted(next, 10*time.Millisecond)
			if i < 6 {
				s.wantWaiting(waiting[i:]...)
			}
			current = next
		}
	})
}

func TestSharedBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{})
		s.change(func() { s.delay = 10 * time.Millisecond })
		var all []*admitCall
		for range 200 {
			all = append(all, s.start(t.Context(), admission.Request{}))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for i, v := range all {
			if v.state().lease == nil || v.state().waited {
				t.Fatalf("%d: %+v", i, v.state())
			}
		}
		sizes := []int{}
		for _, claims := range s.asked {
			sizes = append(sizes, len(claims))
		}
		if !slices.Equal(sizes, []int{1, 64, 64, 64, 7}) {
			t.Errorf("questions were about %v", sizes)
		}
	})
}

func TestSharedTokens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{TokensPerMinute: 600})
		s.wantAdmitted(s.start(t.Context(), admission.Request{Tokens: 590}), time.Millisecond)
		large := s.start(t.Context(), admission.Request{Tokens: 40, Tenant: "a"})
		small := s.start(t.Context(), admission.Request{Tokens: 1, Tenant: "b"})
		high := s.start(t.Context(), admission.Request{Tokens: 1, Tenant: "c", Priority: admission.Interactive})
		s.wantAdmitted(high, 10*time.Millisecond)
		s.wantWaiting(large, small)
		s.change(func() { s.asked = nil })
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if large.state().lease == nil || small.state().lease == nil || large.state().took > 3200*time.Millisecond || len(s.asked) > 5 {
			t.Errorf("%+v, %+v, asked %d times", large.state(), small.state(), len(s.asked))
		}
	})
}

// TestSharedTenant: a tenant at its limits is refused on arrival, and keeps waiting if it waits
// already.
func TestSharedTenant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		s, other := newTestGateway(t, store, admission.Limits{MaxConcurrent: 3}), newTestGateway(t, store, admission.Limits{MaxConcurrent: 3})
		limits := map[string]admission.TenantLimits{"acme": {MaxConcurrent: 2, MaxPrefill: 1}}
		s.SetTenants(limits)
		other.SetTenants(limits)
		one := other.start(t.Context(), admission.Request{Tenant: "acme", Prefill: true})
		two := other.start(t.Context(), admission.Request{Tenant: "acme"})
		blocker := other.start(t.Context(), admission.Request{})
		other.wantAdmitted(one, time.Millisecond)
		other.wantAdmitted(two, time.Millisecond)
		other.wantAdmitted(blocker, time.Millisecond)
		s.wantRefused(s.start(t.Context(), admission.Request{Tenant: "acme"}), admission.TenantStreams)
		two.state().lease.Release()
		prefill := s.start(t.Context(), admission.Request{Tenant: "acme", Prefill: true})
		s.wantWaiting(prefill)
		stranger := s.start(t.Context(), admission.Request{Tenant: "stranger"})
		s.wantAdmitted(stranger, 300*time.Millisecond) // it passes
		one.state().lease.FirstToken()
		stranger.state().lease.Release()
		s.wantAdmitted(prefill, 500*time.Millisecond)

		// A waiter keeps waiting when its tenant reaches its limit later.
		waiting := s.start(t.Context(), admission.Request{Tenant: "acme"})
		s.wantRefused(waiting, admission.TenantStreams)
		prefill.state().lease.Release()
		time.Sleep(time.Millisecond)
		filler := s.start(t.Context(), admission.Request{Tenant: "filler"})
		s.wantAdmitted(filler, time.Millisecond)
		waiting = s.start(t.Context(), admission.Request{Tenant: "acme"})
		s.wantWaiting(waiting) // the model is full
		resumed := other.RecoverRequest(admission.RecoveredRequest{Model: "chat", Tenant: "acme", ID: "x"})
		filler.state().lease.Release()
		blocker.state().lease.Release()
		s.wantWaiting(waiting) // now the tenant is at its limit
		s.wantAdmitted(s.start(t.Context(), admission.Request{Tenant: "filler"}), time.Millisecond)
		resumed.Release()
		s.wantAdmitted(waiting, 350*time.Millisecond)
	})
}

// TestSharedQuotaOfQuietTenant: the quota of a tenant without new requests fills again, and follows
// its limits.
func TestSharedQuotaOfQuietTenant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{})
		s.change(func() { s.live = 2 })
		s.SetTenants(map[string]admission.TenantLimits{"a": {RequestsPerMinute: 7, TokensPerMinute: 6000}})
		v := s.start(t.Context(), admission.Request{Tenant: "a", Tokens: 2000})
		s.wantAdmitted(v, 10*time.Millisecond)
		v.state().lease.Release()
		time.Sleep(10 * time.Second)
		want := admission.Quota{Requests: admission.Allowance{Limit: 7, Remaining: 7},
			Tokens: admission.Allowance{Limit: 6000, Remaining: 5000, Reset: 10 * time.Second}}
		if got := s.Tenant("a").Quota; !nearQuota(got, want) {
			t.Errorf("after 10 s: %+v, want %+v", got, want)
		}
		s.SetTenants(map[string]admission.TenantLimits{"a": {TokensPerMinute: 60}})
		want = admission.Quota{Tokens: admission.Allowance{Limit: 60, Remaining: 60}}
		if got := s.Tenant("a").Quota; got != want {
			t.Errorf("after a change of the limits: %+v, want %+v", got, want)
		}
	})
}

// nearQuota reports whether quotas differ by no more than an answer takes.
func nearQuota(got, want admission.Quota) bool {
	near := func(a, b admission.Allowance) bool {
		return a.Limit == b.Limit && max(a.Remaining-b.Remaining, b.Remaining-a.Remaining) <= 1 && (a.Reset-b.Reset).Abs() <= 10*time.Millisecond
	}
	return near(got.Requests, want.Requests) && near(got.Tokens, want.Tokens)
}

func TestSharedFreedElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		a, b := newTestGateway(t, store, admission.Limits{MaxConcurrent: 1}), newTestGateway(t, store, admission.Limits{MaxConcurrent: 1})
		holder := a.start(t.Context(), admission.Request{})
		a.wantAdmitted(holder, time.Millisecond)
		waiting := b.start(t.Context(), admission.Request{})
		b.wantWaiting(waiting)
		if got := b.Stats("chat"); got.Share != 1 || got.InFlight != 0 {
			t.Errorf("%+v", got)
		}
		before := len(b.asked)
		holder.state().lease.Release()
		b.wantAdmitted(waiting, time.Millisecond)
		if n := len(b.asked) - before; n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

// TestSharedServed: what a tenant got at other gateways counts in the order here.
func TestSharedServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 1})
		current := s.start(t.Context(), admission.Request{})
		s.wantAdmitted(current, time.Millisecond)
		all := map[string][]*admitCall{}
		for range 6 {
			for _, tenant := range []string{"a", "b"} {
				all[tenant] = append(all[tenant], s.start(t.Context(), admission.Request{Tenant: tenant, Tokens: 8}))
			}
		}
		s.wantWaiting()
		s.subscriber.TokensServed("chat", "a", 24)
		s.subscriber.TokensServed("nobody", "a", 24)
		s.subscriber.TokensServed("chat", "nobody", 24)
		order := ""
		for range 12 {
			current.state().lease.Release()
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			for tenant, visits := range all {
				if len(visits) > 0 && visits[0].state().ended {
					order += tenant
					current, all[tenant] = visits[0], visits[1:]
				}
			}
		}
		if order != "abbbbababaaa" && order != "abbbbbabaaaa" {
			t.Errorf("order %s ignores that the other gateway has admitted three requests of a", order)
		}
	})
}

func TestSharedStale(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for stale, most := range map[int]time.Duration{3: 4 * time.Millisecond, 4: 40 * time.Millisecond} {
			s := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 5})
			s.change(func() { s.stale = stale })
			v := s.start(t.Context(), admission.Request{})
			s.wantAdmitted(v, most)
			if v.state().waited != (stale > 3) || v.state().placed != stale+1 {
				t.Errorf("%d stale: %+v", stale, v.state())
			}
		}
	})
}

// TestSharedUnavailable: without the store every gateway admits its part.
func TestSharedUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 7, TokensPerMinute: 600, MaxQueue: 10})
		s.SetTenants(map[string]admission.TenantLimits{"acme": {RequestsPerMinute: 3}})
		s.change(func() { s.down, s.live = true, 3 })
		one, two := s.start(t.Context(), admission.Request{Tenant: "acme", Tokens: 150}), s.start(t.Context(), admission.Request{})
		s.wantAdmitted(one, 5*time.Millisecond)
		s.wantAdmitted(two, 5*time.Millisecond)
		if one.state().waited || s.reported != 2 {
			t.Errorf("%+v, %d kept", one.state(), s.reported)
		}
		s.wantRefused(s.start(t.Context(), admission.Request{Tenant: "acme"}), admission.TenantRequests)
		third := s.start(t.Context(), admission.Request{}) // a third of 7 is 2
		s.wantWaiting(third)
		one.state().lease.Release()
		s.wantAdmitted(third, time.Millisecond)
		two.state().lease.Release()
		tokens := s.start(t.Context(), admission.Request{Tokens: 100})
		s.wantWaiting(tokens) // a third of 600, of which 150 are charged
		s.wantAdmitted(tokens, 20*time.Second)
		third.state().lease.Release()
		tokens.state().lease.Release()

		floor := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 2})
		floor.change(func() { floor.down, floor.live = true, 5 })
		floor.wantAdmitted(floor.start(t.Context(), admission.Request{}), 5*time.Millisecond)
		floor.wantWaiting(floor.start(t.Context(), admission.Request{}))
		floor.Remove("chat")
	})
}

// TestSharedUnavailableKeepsOff: other gateways were last seen with most of the limit, so only the
// rest is granted.
func TestSharedUnavailableKeepsOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		l := admission.Limits{MaxConcurrent: 6}
		s, other := newTestGateway(t, store, l), newTestGateway(t, store, l)
		for range 4 {
			other.wantAdmitted(other.start(t.Context(), admission.Request{}), time.Millisecond)
		}
		own := s.start(t.Context(), admission.Request{})
		s.wantAdmitted(own, time.Millisecond)
		if got := s.Stats("chat"); got.Share != 5 {
			t.Errorf("%+v, want a share of 5", got)
		}
		s.change(func() { s.down, s.live = true, 2 })
		s.wantAdmitted(s.start(t.Context(), admission.Request{}), 5*time.Millisecond)
		// half of 6 is 3, but others have 4
		s.wantWaiting(s.start(t.Context(), admission.Request{}))
		s.change(func() { s.down = false })
		own.state().lease.Release()
		s.Remove("chat")
	})
}

// TestSharedUnavailableForLong: what other gateways held when the store was lost bounds this
// gateway for a time only. Then it has its share, as they have.
func TestSharedUnavailableForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		l := admission.Limits{MaxConcurrent: 6, QueueTimeout: time.Hour}
		s, other := newTestGateway(t, store, l), newTestGateway(t, store, l)
		for range 5 {
			other.wantAdmitted(other.start(t.Context(), admission.Request{}), time.Millisecond)
		}
		s.wantAdmitted(s.start(t.Context(), admission.Request{}), time.Millisecond)
		s.change(func() { s.down, s.live = true, 2 })
		lost := time.Now()
		second, third, fourth := s.start(t.Context(), admission.Request{}), s.start(t.Context(), admission.Request{}), s.start(t.Context(), admission.Request{})
		s.wantWaiting(second, third, fourth)
		time.Sleep(time.Until(lost.Add(76 * time.Second)))
		s.wantWaiting(fourth)
		if second.state().lease == nil || third.state().lease == nil {
			t.Error("a share of 3 is not granted 76 s after the store was lost")
		}
	})
}

// TestSharedLeaveWhileAsking: a waiter that is cancelled during an inquiry returns at once, and
// what it is granted is given back.
func TestSharedLeaveWhileAsking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 1, TokensPerMinute: 600})
		s.SetTenants(map[string]admission.TenantLimits{"acme": {RequestsPerMinute: 1, TokensPerMinute: 600}})
		s.change(func() { s.delay = 50 * time.Millisecond })
		ctx, leave := context.WithCancel(t.Context())
		v := s.start(ctx, admission.Request{Tenant: "acme", Tokens: 600})
		time.Sleep(10 * time.Millisecond)
		leave()
		synctest.Wait()
		if v.state().err != context.Canceled || v.state().took != 10*time.Millisecond || v.state().placed != 1 || v.state().unplace != 1 {
			t.Fatalf("%+v", v.state())
		}
		if got := s.Tenant("acme"); got.Queued != 0 || got.Running != 0 {
			t.Errorf("%+v", got)
		}
		next := s.start(t.Context(), admission.Request{Tenant: "acme", Tokens: 600})
		s.wantAdmitted(next, 200*time.Millisecond)
		// A timeout during an inquiry is ignored if the answer is a grant, and fails the waiter
		// otherwise.
		late := s.start(t.Context(), admission.Request{Timeout: 20 * time.Millisecond})
		time.Sleep(60 * time.Millisecond)
		synctest.Wait()
		if !errors.Is(late.state().err, admission.ErrTimeout) || late.state().placed != late.state().unplace {
			t.Errorf("%+v", late.state())
		}
		next.state().lease.Release()
		in := s.start(t.Context(), admission.Request{Timeout: 20 * time.Millisecond})
		s.wantAdmitted(in, 60*time.Millisecond)
		in.state().lease.Release()
		if s.leaseCount() != 0 {
			t.Errorf("%d leases left", s.leaseCount())
		}
	})
}

// TestSharedLeaveWhileJudged: the context ends while the slot of a denied waiter is given back.
func TestSharedLeaveWhileJudged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 1})
		s.wantAdmitted(s.start(t.Context(), admission.Request{}), time.Millisecond)
		ctx, leave := context.WithCancel(t.Context())
		slots := 0
		_, err := s.Admit(ctx, admission.Request{
			Model:  "chat",
			Locked: admission.LockedHooks{ReserveSlot: func(string) (admission.Slot, bool) { slots++; return admission.Slot{}, true }},
			Unlocked: admission.UnlockedHooks{ReleaseSlot: func() {
				leave()
				time.Sleep(time.Second)
				slots--
			}},
		})
		if err != context.Canceled || slots != 0 {
			t.Errorf("%v, %d slots", err, slots)
		}
		if got := s.Stats("chat"); got.Queued != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// TestSharedTasksElsewhere: any gateway may use a task.
func TestSharedTasksElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		l := admission.Limits{MaxConcurrent: 1}
		a, b := newTestGateway(t, store, l), newTestGateway(t, store, l)
		ctx := t.Context()
		task, _, err := a.Schedule(ctx, admission.TaskRequest{Model: "chat", Key: "k", Lease: time.Minute})
		if err != nil || task.ID == "" {
			t.Fatal(task, err)
		}
		again, _, err := b.Schedule(ctx, admission.TaskRequest{Model: "chat", Key: "k"})
		if err != nil || again.ID != task.ID {
			t.Errorf("%+v, %v", again, err)
		}
		if _, err := b.Controller.Renew(ctx, "", task.ID, time.Hour); err != nil {
			t.Error(err)
		}
		time.Sleep(30 * time.Minute)
		if err := b.Complete(ctx, "", task.ID, 0); err != nil {
			t.Error(err)
		}
		if err := a.Complete(ctx, "", task.ID, 0); err != admission.ErrUnknownTask {
			t.Error(err)
		}
		// Without the store a gateway can end its own tasks, and knows no others.
		a.change(func() { a.down = true })
		b.change(func() { b.down = true })
		own, _, err := a.Schedule(ctx, admission.TaskRequest{Model: "chat", Key: "k2"})
		if err != nil || own.ID == "" {
			t.Fatal(own, err)
		}
		if err := b.Complete(ctx, "", own.ID, 0); err != admission.ErrUnavailable {
			t.Error(err)
		}
		if err := a.Complete(ctx, "", own.ID, 0); err != nil {
			t.Error(err)
		}
		if n := store.leaseCount(); n != 0 || a.Stats("chat").InFlight != 0 {
			t.Errorf("%d leases left", n)
		}
	})
}

// TestSharedCrowd lets the callers of several gateways come, end and cancel at random, while the
// store sometimes does not answer. While it does, no limit is exceeded. Every call ends, and
// afterwards nothing is left.
func TestSharedCrowd(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) { runSharedStress(t, rand.New(rand.NewPCG(seed, 9)), seed%2 == 0) })
	}
}

func runSharedStress(t *testing.T, random *rand.Rand, outages bool) {
	const most = 5
	store := newFakeStore()
	var sites []*testGateway
	for range 3 {
		s := newTestGateway(t, store, admission.Limits{MaxConcurrent: most, TokensPerMinute: 60_000, MaxQueue: 20})
		s.SetLimits("embed", admission.Limits{MaxConcurrent: most, MaxQueue: 20})
		s.SetPools(map[string][]string{"auto": {"chat", "embed"}})
		s.SetTenants(map[string]admission.TenantLimits{"0": {MaxPrefill: 2, RequestsPerMinute: 500}, "1": {Weight: 3, MaxConcurrent: 6}})
		sites = append(sites, s)
	}
	var inside, slots atomic.Int64
	var wg sync.WaitGroup
	for i := range 600 {
		if i%20 == 0 {
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
			s := sites[random.IntN(3)]
			s.change(func() {
				s.live, s.stale, s.down = 3, random.IntN(5), outages && random.IntN(3) == 0
				s.delay = time.Duration(random.IntN(100)) * time.Millisecond
			})
		}
		s, own := sites[random.IntN(3)], rand.New(rand.NewPCG(uint64(i), random.Uint64()))
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+own.IntN(3000))*time.Millisecond)
			defer cancel()
			r := admission.Request{
				Model: []string{"chat", "embed"}[own.IntN(2)], Tenant: fmt.Sprint(own.IntN(4)), Tokens: own.IntN(900), Bytes: own.IntN(99),
				Priority: admission.Priority(own.IntN(3) - 1), Prefill: own.IntN(2) == 0, Timeout: time.Duration(1+own.IntN(3000)) * time.Millisecond,
				Locked:   admission.LockedHooks{ReserveSlot: func(string) (admission.Slot, bool) { slots.Add(1); return admission.Slot{Replica: "r"}, true }},
				Unlocked: admission.UnlockedHooks{ReleaseSlot: func() { slots.Add(-1) }},
			}
			if own.IntN(3) == 0 {
				r.Pool = "auto"
			}
			lease, err := s.Admit(ctx, r)
			if err != nil {
				return
			}
			if n := inside.Add(1); n > 2*most && !outages {
				t.Errorf("%d inside, at most %d may be", n, 2*most)
			}
			time.Sleep(time.Duration(own.IntN(100)) * time.Millisecond)
			lease.FirstToken()
			time.Sleep(time.Duration(own.IntN(100)) * time.Millisecond)
			inside.Add(-1)
			slots.Add(-1)
			lease.Correct(own.IntN(900))
			lease.Release()
		})
	}
	wg.Wait()
	time.Sleep(time.Minute)
	for i, s := range sites {
		for _, model := range []string{"chat", "embed"} {
			if got := s.Stats(model); got.InFlight != 0 || got.Queued != 0 || got.QueuedBytes != 0 {
				t.Errorf("gateway %d, %s: left over: %+v", i, model, got)
			}
		}
		for tenant := range 4 {
			got := s.Tenant(fmt.Sprint(tenant))
			if got.Quota = (admission.Quota{}); got != (admission.TenantStats{}) {
				t.Errorf("gateway %d, tenant %d: left over: %+v", i, tenant, got)
			}
		}
	}
	if store.leaseCount() != 0 || slots.Load() != 0 {
		t.Errorf("%d leases and %d slots left", store.leaseCount(), slots.Load())
	}
}

// TestB1_SharedStateAndThoseThatHoldOut: requests that hold out keep nobody from a free slot, also
// where the state is shared.
func TestB1_SharedStateAndThoseThatHoldOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{})
		s.SetPools(map[string][]string{"p": {"chat"}})
		ctx, cancel := context.WithCancel(t.Context())
		for range 50 {
			go s.Admit(ctx, admission.Request{Model: "chat", Priority: admission.Interactive, Locked: admission.LockedHooks{ //nolint:errcheck // it waits to the end
				ReserveSlot: func(string) (admission.Slot, bool) { return admission.Slot{}, false }, HoldsOut: func() bool { return true },
			}})
		}
		time.Sleep(time.Second)
		for _, r := range []admission.Request{{Model: "chat", Tenant: "b"}, {Pool: "p", Tenant: "c", Priority: admission.Batch}} {
			v := s.start(ctx, r)
			s.wantAdmitted(v, 100*time.Millisecond)
			v.state().lease.Release()
		}
		cancel()
		synctest.Wait()
	})
}
