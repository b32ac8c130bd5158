package admissiontest

import (
	"errors"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// under is a request of the tenant acme under its task.
func under(t admission.Task, tokens int) admission.Request {
	return admission.Request{Tenant: "acme", Tokens: tokens, UnderTask: t.ID}
}

// run admits a request and ends it with this cost.
func (b *suite) run(r admission.Request, cost int) {
	b.Helper()
	lease := b.admit(r)
	lease.Correct(cost)
	lease.Release()
}

// taskCoversEstimate: requests of a task use up its estimate. The rest is charged to the tenant,
// which may be at its limit.
func taskCoversEstimate(b *suite) {
	b.setTenantLimits(admission.TenantLimits{TokensPerMinute: 600})
	b.SetLimits("chat", admission.Limits{})
	small := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 1})
	b.run(under(small, 301), 301)
	_ = b.wantRefused(under(small, 400), admission.TenantTokens)
	if err := b.Complete(b.ctx(), "acme", small.ID, 0); err != nil {
		b.Fatal(err)
	}
	_ = b.wantRefused(admission.Request{Tenant: "acme", Tokens: 400}, admission.TenantTokens)
	large := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 299})
	b.run(under(large, 299), 299) // all that was left is the task's
	_ = b.wantRefused(under(large, 100), admission.TenantTokens)

	b.SetLimits("small", admission.Limits{TokensPerMinute: 60})
	tiny := b.schedule(admission.TaskRequest{Model: "small", Tokens: 1})
	if _, err := b.tryAdmit(admission.Request{Model: "small", UnderTask: tiny.ID, Tokens: 1000}); !errors.Is(err, admission.ErrNeverFits) {
		b.Errorf("1,000 tokens of a model that has 60 in a minute: %v", err)
	}
	b.run(admission.Request{Model: "small", UnderTask: tiny.ID, Tokens: 50}, 50)
	waits := b.startAdmit(admission.Request{Model: "small", UnderTask: tiny.ID, Tokens: 14})
	b.wantAdmitted(waits).Release() // when the model's tokens are there
}

// taskRequestsCount: the task counts as its first request, and every further one counts too.
func taskRequestsCount(b *suite) {
	b.SetLimits("chat", admission.Limits{})
	b.setTenantLimits(admission.TenantLimits{RequestsPerMinute: 3})
	task := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 1})
	for range 3 {
		b.run(under(task, 0), 0)
	}
	_ = b.wantRefused(under(task, 0), admission.TenantRequests)
	_ = b.wantRefused(admission.Request{Tenant: "acme"}, admission.TenantRequests)
}

// taskRequestsSettled: what a request has not used is there for the next one of its task.
func taskRequestsSettled(b *suite) {
	b.SetLimits("chat", admission.Limits{})
	b.setTenantLimits(admission.TenantLimits{TokensPerMinute: 600})
	task := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 600})
	b.run(under(task, 600), 100)
	lease := b.admit(under(task, 500))
	lease.Release()
	lease.Correct(300) // after its release, as the access log does
	b.eventually("the next one is covered", func() bool {
		next, err := b.Admit(b.ctx(), admission.Request{Model: "chat", Tenant: "acme", UnderTask: task.ID, Tokens: 200})
		if err == nil {
			next.Release()
		}
		return err == nil
	})
	_ = b.wantRefused(under(task, 200), admission.TenantTokens)
}

// taskDeclaredCost: a task costs no less than its requests have used, whatever its caller declares.
func taskDeclaredCost(b *suite) {
	b.SetLimits("chat", admission.Limits{})
	b.setTenantLimits(admission.TenantLimits{TokensPerMinute: 600})
	task := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 200})
	b.run(under(task, 10), 400)
	b.run(under(task, 10), 10)
	if err := b.Complete(b.ctx(), "acme", task.ID, 0); err != nil {
		b.Fatal(err)
	}
	b.wantUnknownTask("a second time", b.Complete(b.ctx(), "acme", task.ID, 0))
	_ = b.wantRefused(admission.Request{Tenant: "acme", Tokens: 300}, admission.TenantTokens)
	b.run(admission.Request{Tenant: "acme", Tokens: 150}, 0)
	_, err := b.tryAdmit(under(task, 1))
	b.wantUnknownTask("a request under a completed task", err)

	honest := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 100})
	b.run(under(honest, 50), 50)
	if err := b.Complete(b.ctx(), "acme", honest.ID, 180); err != nil {
		b.Fatal(err)
	}
	b.eventually("what the caller declares beyond it is charged", func() bool {
		lease, err := b.Admit(b.ctx(), admission.Request{Model: "chat", Tenant: "acme", Tokens: 120})
		if err == nil {
			lease.Correct(0)
			lease.Release()
		}
		return err != nil
	})
}

// taskCorrectedLate: a task costs what its caller declares or what its requests have used. The more
// of both counts, also if the real cost of a request is known after the end of the task.
func taskCorrectedLate(b *suite) {
	b.SetLimits("chat", admission.Limits{})
	b.setTenantLimits(admission.TenantLimits{TokensPerMinute: 600})
	late := func(estimate, declared, cost int) {
		b.Helper()
		task := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 200})
		lease := b.admit(under(task, estimate))
		lease.Release()
		if err := b.Complete(b.ctx(), "acme", task.ID, declared); err != nil {
			b.Fatal(err)
		}
		lease.Correct(cost)
	}
	late(150, 200, 10)
	_ = b.wantRefused(admission.Request{Tenant: "acme", Tokens: 450}, admission.TenantTokens)
	late(10, 100, 250)
	_ = b.wantRefused(admission.Request{Tenant: "acme", Tokens: 200}, admission.TenantTokens)
	b.run(admission.Request{Tenant: "acme", Tokens: 140}, 0) // 600 less 200 and 250
}

// taskHeldByRequest: the end of a task frees nothing that its running request uses.
func taskHeldByRequest(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	b.setTenantLimits(admission.TenantLimits{MaxConcurrent: 1})
	task := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 1})
	running := b.admit(under(task, 1))
	if err := b.Complete(b.ctx(), "acme", task.ID, 1); err != nil {
		b.Fatal(err)
	}
	_ = b.wantRefused(admission.Request{Tenant: "acme"}, admission.TenantStreams)
	next := b.startAdmit(admission.Request{Tenant: "other"})
	b.wantWaiting(next)
	running.Release()
	b.wantAdmitted(next).Release()
	b.eventually("the tenant has room again", func() bool {
		lease, err := b.Admit(b.ctx(), admission.Request{Model: "chat", Tenant: "acme"})
		if err == nil {
			lease.Release()
		}
		return err == nil
	})
}

// taskEndedWhileWaiting: a request that waits when its task ends is not admitted without a lease.
func taskEndedWhileWaiting(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	task := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 1})
	r := under(task, 1)
	r.Locked.ReserveSlot = func(string) (admission.Slot, bool) { return admission.Slot{}, false }
	waiting := b.startAdmit(r)
	b.wantWaiting(waiting)
	if err := b.Complete(b.ctx(), "acme", task.ID, 1); err != nil {
		b.Fatal(err)
	}
	<-waiting.done
	b.wantUnknownTask("its request", waiting.err)
	b.admit(admission.Request{Tenant: "other"}).Release()
}

// taskRequestPasses: a request of a task does not wait behind one that waits for the task's lease.
func taskRequestPasses(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	task := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 1})
	head := b.startAdmit(admission.Request{Tenant: "other"})
	b.wantWaiting(head)
	free := make(chan struct{})
	r := under(task, 1)
	r.Locked.ReserveSlot = func(string) (admission.Slot, bool) {
		select {
		case <-free:
			return admission.Slot{}, true
		default:
			return admission.Slot{}, false
		}
	}
	waiting := b.startAdmit(r)
	b.wantWaiting(waiting, head)
	close(free)
	b.RetryWaiters("chat")
	b.wantAdmitted(waiting).Release()
	b.admit(under(task, 1)).Release() // at once, too
	b.wantWaiting(head)
	if err := b.Complete(b.ctx(), "acme", task.ID, 1); err != nil {
		b.Fatal(err)
	}
	b.wantAdmitted(head)
}

// taskOfAnother: a request under a task of another tenant, or of another model, is one under a task
// that does not exist.
func taskOfAnother(b *suite) {
	b.SetLimits("chat", admission.Limits{})
	b.SetLimits("other", admission.Limits{})
	task := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 1})
	for what, r := range map[string]admission.Request{
		"of another tenant": {Tenant: "mallory", UnderTask: task.ID},
		"for another model": {Tenant: "acme", Model: "other", UnderTask: task.ID},
		"of nobody":         {Tenant: "mallory", UnderTask: "tsk_x"},
	} {
		_, err := b.tryAdmit(r)
		b.wantUnknownTask(what, err)
	}
	b.admit(under(task, 1)).Release()
}

// taskLifetime: renewals do not make a task last longer than its lifetime.
func taskLifetime(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	task := b.schedule(admission.TaskRequest{Tenant: "acme", Lease: time.Hour, Lifetime: 400 * time.Millisecond})
	b.eventually("it ends", func() bool {
		renewed, err := b.Renew(b.ctx(), "acme", task.ID, time.Hour)
		if err == nil && time.Until(renewed.Expires) > 500*time.Millisecond {
			b.Fatalf("renewed until %v from now", time.Until(renewed.Expires))
		}
		return errors.Is(err, admission.ErrUnknownTask)
	})
	b.eventually("its lease is free", func() bool {
		_, wait, err := b.Schedule(b.ctx(), admission.TaskRequest{Model: "chat"})
		return wait == 0 && err == nil
	})
}

// taskPrefill: a request of a task counts against the limit of prefill, and waits for it.
func taskPrefill(b *suite) {
	b.SetLimits("chat", admission.Limits{})
	b.setTenantLimits(admission.TenantLimits{MaxPrefill: 1})
	task := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 1})
	r := under(task, 1)
	r.Prefill = true
	first := b.admit(r)
	waiting := b.startAdmit(admission.Request{Tenant: "acme", Prefill: true})
	b.wantWaiting(waiting)
	first.FirstToken()
	second := b.wantAdmitted(waiting)
	first.Release()
	again := b.startAdmit(r)
	b.wantWaiting(again)
	second.Release()
	b.wantAdmitted(again)
}

// taskRequestUnused: a preempted request gives back what it took from its task.
func taskRequestUnused(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 2})
	b.setTenantLimits(admission.TenantLimits{TokensPerMinute: 600, RequestsPerMinute: 3})
	task := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 100})
	slots := make(chan struct{}, 1)
	slots <- struct{}{}
	reserve := func(string) (admission.Slot, bool) {
		select {
		case <-slots:
			return admission.Slot{}, true
		default:
			return admission.Slot{}, false
		}
	}
	r := under(task, 550)
	preempted := make(chan struct{})
	r.Priority, r.Locked.ReserveSlot = admission.Batch, reserve
	r.Unlocked.OnPreempt = func() { close(preempted) }
	lease := b.admit(r)
	urgent := b.startAdmit(admission.Request{Tenant: "other", Priority: admission.Interactive,
		Locked: admission.LockedHooks{ReserveSlot: reserve}})
	<-preempted
	slots <- struct{}{}
	lease.Release()
	b.wantAdmitted(urgent).Release()
	b.run(under(task, 550), 550)
}

// tenantDebt: an answer that was much larger than its estimate is paid by its tenant, and not by
// the others of the model.
func tenantDebt(b *suite) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 6000})
	b.setTenantLimits(admission.TenantLimits{TokensPerMinute: 600})
	b.run(admission.Request{Tenant: "acme", Tokens: 10}, 6_600)
	if wait := b.wantRefused(admission.Request{Tenant: "acme", Tokens: 1}, admission.TenantTokens); wait < 9*time.Minute ||
		wait > 10*time.Minute+2*time.Second {
		b.Errorf("told to come back in %v to a bucket that owes ten minutes, want those and hardly more", wait)
	}
	waiting := b.startAdmit(admission.Request{Tenant: "other", Tokens: 1})
	b.wantAdmitted(waiting).Release()
}
