package admissiontest

import (
	"errors"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// limitKey opens the model and gives limits to the tenant acme and to its key.
func (b *suite) limitKey(of, key admission.TenantLimits) {
	b.SetLimits("chat", admission.Limits{})
	b.SetTenants(map[string]admission.TenantLimits{"acme": of, admission.KeyTenant("acme/k"): key})
}

// ofKey is a request of the key with limits.
func ofKey(tokens int) admission.Request {
	return admission.Request{Tenant: "acme", APIKey: "acme/k", Tokens: tokens}
}

// wantKeyRefused expects a refusal because of the key.
func (b *suite) wantKeyRefused(r admission.Request, reason admission.Reason) admission.Quota {
	b.Helper()
	var refused *admission.Refused
	if _, err := b.tryAdmit(r); !errors.As(err, &refused) || refused.Reason != reason || refused.Key != "acme/k" || refused.RetryAfter <= 0 {
		b.Fatalf("got %+v, want %v of the key", err, reason)
	}
	return refused.Quota
}

// keyLimits: both the key and its tenant must allow a request. Other keys have the limits of the
// tenant only.
func keyLimits(b *suite) {
	b.limitKey(admission.TenantLimits{RequestsPerMinute: 4}, admission.TenantLimits{RequestsPerMinute: 2})
	for left := int64(1); left >= 0; left-- {
		lease := b.admit(ofKey(1))
		if q := lease.Quota().Requests; q.Limit != 2 || q.Remaining != left {
			b.Errorf("quota %+v, want %d of 2 left", q, left)
		}
		lease.Release()
	}
	if q := b.wantKeyRefused(ofKey(1), admission.TenantRequests); q.Requests.Limit != 2 || q.Requests.Remaining != 0 {
		b.Errorf("quota %+v", q)
	}
	for range 2 {
		b.admit(admission.Request{Tenant: "acme", APIKey: "acme/other"}).Release()
	}
	_ = b.wantRefused(admission.Request{Tenant: "acme"}, admission.TenantRequests)
}

// keyGivesBack: a request that its tenant refuses, or that leaves the queue, costs its key nothing.
func keyGivesBack(b *suite) {
	b.limitKey(admission.TenantLimits{MaxConcurrent: 1}, admission.TenantLimits{RequestsPerMinute: 2, TokensPerMinute: 20, MaxConcurrent: 2})
	running := b.admit(ofKey(10))
	for range 3 {
		_ = b.wantRefused(ofKey(10), admission.TenantStreams)
	}
	b.SetTenants(map[string]admission.TenantLimits{admission.KeyTenant("acme/k"): {RequestsPerMinute: 2, TokensPerMinute: 20, MaxConcurrent: 2}})
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	for range 2 {
		r := ofKey(10)
		r.Timeout = 50 * time.Millisecond
		if _, err := b.tryAdmit(r); !errors.Is(err, admission.ErrTimeout) {
			b.Fatalf("got %v", err)
		}
	}
	running.Release()
	b.admit(ofKey(10)).Release()
	b.wantKeyRefused(ofKey(0), admission.TenantRequests)
}

// keyIsCorrected: the tokens of a key are corrected as those of its tenant are.
func keyIsCorrected(b *suite) {
	b.limitKey(admission.TenantLimits{}, admission.TenantLimits{TokensPerMinute: 100})
	lease := b.admit(ofKey(100))
	b.wantKeyRefused(ofKey(50), admission.TenantTokens)
	lease.Correct(10)
	lease.Release()
	b.eventually("the tokens are back", func() bool {
		lease, err := b.tryAdmit(ofKey(80))
		if err == nil {
			lease.Release()
			lease.Correct(150) // after the release
		}
		return err == nil
	})
	b.eventually("the debt is known", func() bool {
		_, err := b.tryAdmit(ofKey(1))
		var refused *admission.Refused
		return errors.As(err, &refused) && refused.Key == "acme/k" && refused.RetryAfter > 20*time.Second
	})
	if _, err := b.tryAdmit(ofKey(101)); !errors.Is(err, admission.ErrNeverFits) {
		b.Errorf("got %v", err)
	}
}

// keyConcurrency: a waiting request counts as one of its key, and each place is given back once.
func keyConcurrency(b *suite) {
	b.limitKey(admission.TenantLimits{}, admission.TenantLimits{MaxConcurrent: 2})
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	running, waiting := b.admit(ofKey(1)), b.startAdmit(ofKey(1))
	b.wantWaiting(waiting)
	b.wantKeyRefused(ofKey(1), admission.TenantStreams)
	running.Release()
	running.Release()
	running = b.wantAdmitted(waiting)
	waiting = b.startAdmit(ofKey(1))
	b.wantWaiting(waiting)
	b.wantKeyRefused(ofKey(1), admission.TenantStreams)
	running.Release()
	b.wantAdmitted(waiting).Release()
	b.eventually("the key has its places", func() bool { return b.Tenant(admission.KeyTenant("acme/k")).Running == 0 })
}

// keyOfATask: a task is charged to its key, its requests use that up, and its end gives back what
// was not used. Any key of the tenant may complete it.
func keyOfATask(b *suite) {
	b.limitKey(admission.TenantLimits{}, admission.TenantLimits{TokensPerMinute: 100, MaxConcurrent: 1})
	ask := admission.TaskRequest{Tenant: "acme", APIKey: "acme/k", Tokens: 60}
	got := b.schedule(ask)
	b.postponed(ask)
	for range 2 { // they use what the task was charged
		r := ofKey(30)
		r.UnderTask = got.ID
		lease := b.admit(r)
		lease.Correct(30)
		lease.Release()
	}
	r := ofKey(95) // far more than is refilled meanwhile
	r.UnderTask = got.ID
	b.wantKeyRefused(r, admission.TenantTokens)
	if _, err := b.Renew(b.ctx(), "acme", got.ID, time.Minute); err != nil {
		b.Error(err)
	}
	if err := b.Complete(b.ctx(), "acme", got.ID, 10); err != nil {
		b.Fatal(err)
	}
	b.eventually("the place is free", func() bool {
		lease, err := b.tryAdmit(ofKey(40))
		if err == nil {
			lease.Release()
		}
		return err == nil
	})
	b.wantKeyRefused(ofKey(60), admission.TenantTokens) // 60 of the task, whatever was declared
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	b.limitKey(admission.TenantLimits{RequestsPerMinute: 1}, admission.TenantLimits{RequestsPerMinute: 100, MaxConcurrent: 1})
	b.admit(admission.Request{Tenant: "acme"}).Release()
	for range 3 { // the tenant refuses, so the key keeps its place
		b.postponed(admission.TaskRequest{Tenant: "acme", APIKey: "acme/k"})
	}
	b.eventually("no twin is left", func() bool { return b.Tenant(admission.KeyTenant("acme/k")).Running == 0 })
}

// keyOfARepeatedTask: repeated calls with the same key of the caller are charged once, before the
// task is admitted and after.
func keyOfARepeatedTask(b *suite) {
	b.limitKey(admission.TenantLimits{}, admission.TenantLimits{RequestsPerMinute: 1, MaxConcurrent: 1})
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	other := b.admit(admission.Request{Tenant: "other"})
	ask := admission.TaskRequest{Tenant: "acme", APIKey: "acme/k", Key: "mine"}
	b.postponed(ask)
	b.postponed(ask)
	other.Release()
	got := b.schedule(ask)
	if again := b.schedule(ask); again.ID != got.ID {
		b.Errorf("got %s and %s", got.ID, again.ID)
	}
	if n := b.Stats("chat").InFlight; n != 1 {
		b.Errorf("%d in flight, want the task", n)
	}
	if err := b.Complete(b.ctx(), "acme", got.ID, 1); err != nil {
		b.Error(err)
	}
	b.eventually("nothing is left", func() bool {
		return b.Tenant(admission.KeyTenant("acme/k")).Running == 0 && b.Stats("chat").InFlight == 0
	})
}

// keyOfAPostponedTask: a task that is not admitted holds nothing of its key, also if its caller may
// come back.
func keyOfAPostponedTask(b *suite) {
	b.limitKey(admission.TenantLimits{}, admission.TenantLimits{TokensPerMinute: 100, MaxConcurrent: 1})
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	other := b.admit(admission.Request{Tenant: "other"})
	b.postponed(admission.TaskRequest{Tenant: "acme", APIKey: "acme/k", Key: "mine", Tokens: 90})
	other.Release()
	b.admit(ofKey(90)).Release()
}

// keyRecovered: a request of before a restart counts for its key, and its cost is charged.
func keyRecovered(b *suite) {
	b.limitKey(admission.TenantLimits{}, admission.TenantLimits{TokensPerMinute: 100, MaxConcurrent: 1})
	b.admit(ofKey(0)).Release() // the store has the buckets of before the restart
	lease := b.RecoverRequest(admission.RecoveredRequest{Model: "chat", Tenant: "acme", APIKey: "acme/k", ID: "before-1.m"})
	b.wantKeyRefused(ofKey(1), admission.TenantStreams)
	lease.Release()
	lease.Correct(90)
	b.eventually("the place is free and the cost charged", func() bool {
		lease, err := b.tryAdmit(ofKey(50))
		if err == nil { // the charge is on its way
			lease.Correct(0)
			lease.Release()
		}
		var refused *admission.Refused
		return errors.As(err, &refused) && refused.Reason == admission.TenantTokens
	})
}

// keyPreempted: a request that was preempted is not refused by its key.
func keyPreempted(b *suite) {
	b.limitKey(admission.TenantLimits{}, admission.TenantLimits{RequestsPerMinute: 1, MaxConcurrent: 1})
	b.admit(ofKey(1)).Release()
	again := ofKey(1)
	again.Preempted = true
	lease := b.admit(again)
	if n := b.Tenant(admission.KeyTenant("acme/k")).Running; n != 1 {
		b.Errorf("%d leases of the key", n)
	}
	lease.Release()
}

// keyLimitsEnd: a key whose limits were taken away has those of its tenant only.
func keyLimitsEnd(b *suite) {
	b.limitKey(admission.TenantLimits{RequestsPerMinute: 3}, admission.TenantLimits{RequestsPerMinute: 1})
	running := b.admit(ofKey(1))
	b.wantKeyRefused(ofKey(1), admission.TenantRequests)
	b.SetTenants(map[string]admission.TenantLimits{"acme": {RequestsPerMinute: 3}})
	b.admit(ofKey(1)).Release()
	running.Release()
	if got := b.Tenant(admission.KeyTenant("acme/k")); got != (admission.TenantStats{}) {
		b.Errorf("the key is still known: %+v", got)
	}
}
