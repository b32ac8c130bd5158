package admission

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// newTenantController is a testController with limits for the tenant "acme".
func newTenantController(t *testing.T, l Limits, acme TenantLimits) testController {
	d := newTestController(t, l)
	d.SetTenants(map[string]TenantLimits{"acme": acme})
	return d
}

func TestTenantLimitsAtOnce(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		limits TenantLimits
		before []Request // some run, the others wait: the model has two leases
		ask    Request
		want   error
	}{
		{"no limits", TenantLimits{}, nil, Request{Tokens: 1 << 30}, nil},
		{"negative limits are none", TenantLimits{-1, -1, -1, -1, -1, -1}, nil, Request{Tokens: 1 << 30, Bytes: 5, Prefill: true}, nil},
		{"requests", TenantLimits{RequestsPerMinute: 2}, make([]Request, 2), Request{}, &Refused{Reason: TenantRequests, RetryAfter: 30 * time.Second}},
		{"requests that wait count", TenantLimits{RequestsPerMinute: 4}, make([]Request, 4), Request{},
			&Refused{Reason: TenantRequests, RetryAfter: 15 * time.Second}},
		{"tokens", TenantLimits{TokensPerMinute: 60}, []Request{{Tokens: 50}}, Request{Tokens: 20}, &Refused{Reason: TenantTokens, RetryAfter: 10 * time.Second}},
		{"tokens that are waited for count", TenantLimits{TokensPerMinute: 60}, []Request{{}, {}, {Tokens: 50}}, Request{Tokens: 20},
			&Refused{Reason: TenantTokens, RetryAfter: 10 * time.Second}},
		{"the longer of two waits", TenantLimits{RequestsPerMinute: 60, TokensPerMinute: 60}, append(make([]Request, 59), Request{Tokens: 50}), Request{Tokens: 20},
			&Refused{Reason: TenantRequests, RetryAfter: 10 * time.Second}},
		{"never fits", TenantLimits{TokensPerMinute: 60}, nil, Request{Tokens: 61}, ErrNeverFits},
		{"a guess is lowered", TenantLimits{TokensPerMinute: 60}, nil, Request{Tokens: 9000, Guessed: 8990}, nil},
		{"streams", TenantLimits{MaxConcurrent: 2}, make([]Request, 2), Request{}, &Refused{Reason: TenantStreams}},
		{"streams that wait count", TenantLimits{MaxConcurrent: 4}, make([]Request, 4), Request{}, &Refused{Reason: TenantStreams}},
		{"bytes", TenantLimits{MaxQueueBytes: 9}, []Request{{Bytes: 99}, {}, {Bytes: 5}}, Request{Bytes: 5}, &Refused{Reason: TenantBytes}},
		{"what runs holds no bytes", TenantLimits{MaxQueueBytes: 9}, []Request{{Bytes: 99}}, Request{Bytes: 99}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newTenantController(t, Limits{MaxConcurrent: 2}, tt.limits)
				for _, r := range tt.before {
					r.Tenant = "acme"
					d.start(t.Context(), r)
				}
				tt.ask.Tenant = "acme"
				before, stats := d.Tenant("acme"), d.Stats("chat")
				got := d.start(t.Context(), tt.ask)
				if tt.want == nil {
					d.wantAdmitted(got, 0)
				} else {
					d.wantRefused(got, tt.want, 0)
					d.wantStats(stats)
					if after := d.Tenant("acme"); after != before {
						t.Errorf("a refused request has changed %+v to %+v", before, after)
					}
				}
				other := d.start(t.Context(), Request{Tenant: "other", Tokens: 1 << 30})
				if len(tt.before) < 2 && tt.want != nil {
					d.wantAdmitted(other, 0)
				}
				d.Remove("chat")
			})
		})
	}
}

// TestReservedBudget: what a waiter needs of its tenant's buckets is there when it is admitted, and
// is given back when it leaves.
func TestReservedBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTenantController(t, Limits{MaxConcurrent: 1}, TenantLimits{RequestsPerMinute: 3, TokensPerMinute: 600})
		d.SetLimits("embed", Limits{})
		holder := d.start(t.Context(), Request{})
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		waiting := d.start(ctx, requestOf("acme", 500))
		d.wantWaiting(waiting)
		d.wantRefused(d.start(t.Context(), Request{Model: "embed", Tenant: "acme", Tokens: 101}), &Refused{Reason: TenantTokens, RetryAfter: 100 * time.Millisecond}, 0)
		d.wantAdmitted(d.start(t.Context(), Request{Model: "embed", Tenant: "acme", Tokens: 100}), 0)
		want := Quota{Requests: Allowance{3, 1, 40 * time.Second}, Tokens: Allowance{600, 0, time.Minute}}
		if got := d.Tenant("acme"); got != (TenantStats{Running: 1, Queued: 1, Quota: want}) {
			t.Errorf("%+v, want quota %+v", got, want)
		}
		leave()
		d.wantRefused(waiting, context.Canceled, 0)
		want = Quota{Requests: Allowance{3, 2, 20 * time.Second}, Tokens: Allowance{600, 500, 10 * time.Second}}
		if got := d.Tenant("acme").Quota; got != want {
			t.Errorf("quota %+v, want %+v", got, want)
		}
		last := d.start(t.Context(), requestOf("acme", 500))
		holder.release()
		d.wantAdmitted(last, 0)
		if got := last.state().lease.Quota().Tokens; got != (Allowance{600, 0, time.Minute}) {
			t.Errorf("quota of the lease %+v", got)
		}
	})
}

// TestPrefillHoldsNobodyUp: a tenant at its limit of prefill waits, and others pass it.
func TestPrefillHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTenantController(t, Limits{}, TenantLimits{MaxPrefill: 2})
		d.SetLimits("embed", Limits{})
		r := Request{Tenant: "acme", Prefill: true}
		one, two := d.start(t.Context(), r), d.start(t.Context(), r)
		d.wantAdmitted(two, 0)
		three := d.start(t.Context(), r)
		r.Model = "embed"
		four, r4 := d.start(t.Context(), r), r
		r4.Prefill = false
		five := d.start(t.Context(), r4) // behind its own tenant's
		d.wantWaiting(three, four, five)
		d.wantAdmitted(d.start(t.Context(), Request{Tenant: "other", Prefill: true}), 0)
		d.wantAdmitted(d.start(t.Context(), Request{Tenant: "other", Model: "embed"}), 0)
		if got := d.Tenant("acme"); got != (TenantStats{Running: 2, Prefill: 2, Queued: 3}) {
			t.Errorf("%+v", got)
		}
		wantAtLimits := func(chat, embed int) {
			t.Helper()
			if got := []int{d.Stats("chat").AtTenantLimits, d.Stats("embed").AtTenantLimits}; !slices.Equal(got, []int{chat, embed}) {
				t.Errorf("waiters at limits of their tenant at chat and embed: %v, want %d and %d", got, chat, embed)
			}
		}
		wantAtLimits(1, 2)
		one.state().lease.FirstToken()
		one.state().lease.FirstToken()
		d.wantAdmitted(three, 0)
		d.wantWaiting(four, five)
		one.release() // it is no longer in prefill
		d.wantWaiting(four, five)
		wantAtLimits(0, 2)
		time.Sleep(time.Second)
		two.release()
		d.wantAdmitted(four, time.Second)
		d.wantAdmitted(five, time.Second)
		wantAtLimits(0, 0)
		three.state().lease.FirstToken()
		four.state().lease.FirstToken()
		if got := d.Tenant("acme"); got != (TenantStats{Running: 3}) {
			t.Errorf("%+v", got)
		}
	})
}

func TestParkedLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTenantController(t, Limits{}, TenantLimits{MaxPrefill: 1})
		r := Request{Tenant: "acme", Prefill: true, Timeout: 3 * time.Second, Bytes: 7}
		holder := d.start(t.Context(), r)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		a, b := d.start(ctx, r), d.start(t.Context(), r)
		leave()
		d.wantRefused(a, context.Canceled, 0)
		time.Sleep(3 * time.Second)
		d.wantRefused(b, ErrTimeout, 3*time.Second)
		c := d.start(t.Context(), r)
		d.wantWaiting(c)
		holder.release()
		d.wantAdmitted(c, 0)
		c.release()
		if got := d.Tenant("acme"); got != (TenantStats{}) || waitingBytesOf(d.Controller) != 0 {
			t.Errorf("left over: %+v", got)
		}
	})
}

// TestParkedHeadLeaves: when a parked head leaves, the waiters behind it are admitted at the same
// moment, if nothing else keeps them.
func TestParkedHeadLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTenantController(t, Limits{}, TenantLimits{MaxPrefill: 1})
		d.start(t.Context(), Request{Tenant: "acme", Prefill: true})
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		head := d.start(ctx, Request{Tenant: "acme", Prefill: true})
		next, last := d.start(t.Context(), requestOf("acme", 0)), d.start(t.Context(), Request{Tenant: "acme", Prefill: true})
		d.wantWaiting(head, next, last)
		leave()
		d.wantAdmitted(next, 0)
		d.wantWaiting(last)
		d.Remove("chat")
	})
}

// TestTenantLimitsChange: changed limits take effect at once. Waiters beyond them are refused, the
// youngest first.
func TestTenantLimitsChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTenantController(t, Limits{MaxConcurrent: 1}, TenantLimits{MaxPrefill: 1})
		holder := d.start(t.Context(), Request{})
		var calls []*admitCall
		for i := range 5 {
			calls = append(calls, d.start(t.Context(), Request{Tenant: "acme", Tokens: 100 + i, Bytes: 10, Prefill: true}))
			time.Sleep(time.Millisecond)
		}
		set := func(l TenantLimits) {
			d.SetTenants(map[string]TenantLimits{"acme": l})
			synctest.Wait()
		}
		set(TenantLimits{TokensPerMinute: 103})
		d.wantRefused(calls[4], ErrNeverFits, time.Millisecond)
		for i := 3; i > 0; i-- { // the bucket has enough for the first
			if got := calls[i].state().err; got.(*Refused).Reason != TenantTokens {
				t.Errorf("%d: %v", i, got)
			}
		}
		d.wantWaiting(calls[0])
		set(TenantLimits{MaxPrefill: 1})
		more := d.start(t.Context(), Request{Tenant: "acme", Prefill: true})
		set(TenantLimits{MaxPrefill: 1, MaxConcurrent: 1})
		if got := more.state().err; got.(*Refused).Reason != TenantStreams {
			t.Errorf("%v", got)
		}
		holder.release()
		synctest.Wait()
		if calls[0].state().lease == nil {
			t.Fatal("not admitted")
		}
		d.SetLimits("chat", Limits{})
		set(TenantLimits{MaxPrefill: 1})
		parked := d.start(t.Context(), Request{Tenant: "acme", Prefill: true})
		d.wantWaiting(parked)
		d.SetTenants(nil)
		d.wantAdmitted(parked, 0)
	})
}

func TestSettle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTenantController(t, Limits{TokensPerMinute: 600}, TenantLimits{TokensPerMinute: 60_000})
		left := func(model float64, tenant int64) {
			t.Helper()
			got := d.Tenant("acme").Quota.Tokens.Remaining
			if tokens := d.Stats("chat").Tokens; tokens != model || got != tenant {
				t.Errorf("%v tokens of the model and %v of the tenant, want %v and %v", tokens, got, model, tenant)
			}
		}
		lease := d.start(t.Context(), requestOf("acme", 600)).state().lease
		left(0, 59_400)
		lease.Correct(-1)
		left(0, 59_400)
		lease.Correct(400)
		lease.Correct(0)
		left(200, 59_600)
		lease.Release()
		lease.Correct(0)
		left(200, 59_600)
		debtor := d.start(t.Context(), requestOf("acme", 100)).state().lease
		debtor.Release()
		debtor.Correct(5000) // a debt of one full bucket at most
		left(-600, 54_600)
		waiting := d.start(t.Context(), Request{Tenant: "other", Tokens: 10, Timeout: time.Hour})
		time.Sleep(61*time.Second - 1)
		d.wantWaiting(waiting)
		time.Sleep(time.Nanosecond)
		d.wantAdmitted(waiting, 61*time.Second)
		// Tokens that are given back admit waiters at once, and fill no bucket beyond its size.
		again := d.RecoverRequest(RecoveredRequest{Model: "chat", Tenant: "acme", Tokens: 100_000, ID: "x"})
		next := d.start(t.Context(), requestOf("other", 600))
		again.Correct(0)
		d.wantAdmitted(next, 0)
		left(0, 60_000)
	})
}

func TestResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTenantController(t, Limits{MaxConcurrent: 1, TokensPerMinute: 60}, TenantLimits{MaxConcurrent: 1, RequestsPerMinute: 5})
		var leases []*Lease
		for range 3 {
			l := d.RecoverRequest(RecoveredRequest{Model: "chat", Tenant: "acme", ID: "abc", Tokens: 50})
			if l.ID() != "abc" || l.Model() != "chat" {
				t.Fatalf("%+v", l)
			}
			leases = append(leases, l)
		}
		d.wantStats(Stats{InFlight: 3, Tokens: 60})
		if got := d.Tenant("acme"); got.Running != 3 || got.Quota.Requests.Remaining != 5 {
			t.Errorf("%+v", got)
		}
		d.wantRefused(d.start(t.Context(), requestOf("acme", 0)), &Refused{Reason: TenantStreams}, 0)
		next := d.startTokens(0)
		leases[0].Release()
		leases[1].Release()
		d.wantWaiting(next)
		leases[2].Release()
		d.wantAdmitted(next, 0)
	})
}
