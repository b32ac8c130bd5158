package admissiontest

import (
	"errors"
	"regexp"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

var taskID = regexp.MustCompile(`^tsk_[a-z2-7]{26}$`)

// task: a task is admitted, visible only to its tenant, and completed once.
func task(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	got := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 7})
	if !taskID.MatchString(got.ID) || got.Model != "chat" || got.Tenant != "acme" || got.Tokens != 7 {
		b.Errorf("got %+v", got)
	}
	if left := time.Until(got.Expires); left < 14*time.Minute || left > 16*time.Minute {
		b.Errorf("expires in %v, want 15 minutes", left)
	}
	if found, err := b.Task(b.ctx(), "acme", got.ID); err != nil || found.ID != got.ID || found.Model != "chat" {
		b.Errorf("found %+v, %v", found, err)
	}
	_, err := b.Task(b.ctx(), "other", got.ID)
	b.wantUnknownTask("another tenant's", err)
	b.wantUnknownTask("completed by another tenant", b.Complete(b.ctx(), "other", got.ID, 1))
	b.wantUnknownTask("no such task", b.Complete(b.ctx(), "acme", "tsk_", 1))
	_, err = b.Renew(b.ctx(), "other", got.ID, time.Hour)
	b.wantUnknownTask("renewed by another tenant", err)
	if wait := b.postponed(admission.TaskRequest{Tenant: "acme"}); wait < 100*time.Millisecond || wait > 250*time.Millisecond {
		b.Errorf("told to wait %v for a slot, want 100 to 250 ms", wait)
	}
	var ended sync.Map
	var wg sync.WaitGroup
	for i := range 8 { // only one call ends it
		wg.Go(func() {
			if err := b.Complete(b.ctx(), "acme", got.ID, 7); err == nil {
				ended.Store(i, true)
			} else if !errors.Is(err, admission.ErrUnknownTask) {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	ended.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		b.Errorf("completed %d times", n)
	}
	_, err = b.Task(b.ctx(), "acme", got.ID)
	b.wantUnknownTask("completed", err)
	b.schedule(admission.TaskRequest{Tenant: "acme"})
	b.postponed(admission.TaskRequest{Tenant: "acme"})
}

// taskKey: a repeated call finds the task of the first, and is charged nothing.
func taskKey(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 3})
	r := admission.TaskRequest{Tenant: "acme", Key: "k"}
	first := b.schedule(r)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			again, wait, err := b.Schedule(b.ctx(), admission.TaskRequest{Model: "chat", Tenant: "acme", Key: "k"})
			if err != nil || wait != 0 || again.ID != first.ID {
				b.Errorf("got %+v, %v, %v, want task %s", again, wait, err, first.ID)
			}
		})
	}
	wg.Wait()
	r.Tenant = "other"
	if other := b.schedule(r); other.ID == first.ID {
		b.Error("keys of different tenants are one")
	}
	b.schedule(admission.TaskRequest{Tenant: "acme"})
	b.postponed(admission.TaskRequest{Tenant: "acme"})
	if err := b.Complete(b.ctx(), "acme", first.ID, -1); err != nil {
		b.Fatal(err)
	}
	r.Tenant = "acme"
	r.Model = "chat"
	if next, wait, err := b.Schedule(b.ctx(), r); !errors.Is(err, admission.ErrTaskEnded) {
		b.Errorf("the key of a completed task: %+v, %v, %v, want ErrTaskEnded", next, wait, err)
	}
	b.schedule(admission.TaskRequest{Tenant: "acme"}) // its place is free
}

// taskKeyWhileFull: a repeated call finds the task of the first although others wait for what that
// task holds.
func taskKeyWhileFull(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	r := admission.TaskRequest{Model: "chat", Tenant: "acme", Key: "k"}
	first := b.schedule(r)
	waiting := b.startAdmit(admission.Request{Tenant: "other"})
	b.wantWaiting(waiting)
	for range 3 {
		if again := b.schedule(r); again.ID != first.ID {
			b.Errorf("got task %s, want %s", again.ID, first.ID)
		}
	}
	if err := b.Complete(b.ctx(), "acme", first.ID, -1); err != nil {
		b.Fatal(err)
	}
	running := b.wantAdmitted(waiting)
	waiting = b.startAdmit(admission.Request{Tenant: "other"})
	b.wantWaiting(waiting)
	if next, wait, err := b.Schedule(b.ctx(), r); !errors.Is(err, admission.ErrTaskEnded) {
		b.Errorf("the key of a completed task: %+v, %v, %v, want ErrTaskEnded", next, wait, err)
	}
	running.Release()
	b.wantAdmitted(waiting).Release()
}

// taskRenewal: a task lasts as long as its lease, which a renewal starts again.
func taskRenewal(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 2})
	short := b.schedule(admission.TaskRequest{Lease: 300 * time.Millisecond})
	long := b.schedule(admission.TaskRequest{Lease: 300 * time.Millisecond})
	renewed, err := b.Renew(b.ctx(), "", long.ID, time.Hour)
	if err != nil || renewed.ID != long.ID || time.Until(renewed.Expires) < 59*time.Minute {
		b.Fatalf("got %+v, %v", renewed, err)
	}
	b.postponed(admission.TaskRequest{})
	b.eventually("the short one expires", func() bool {
		_, err := b.Task(b.ctx(), "", short.ID)
		return errors.Is(err, admission.ErrUnknownTask)
	})
	if left := time.Until(short.Expires); left > 100*time.Millisecond {
		b.Errorf("ended %v before its lease", left)
	}
	b.wantUnknownTask("completed after it expired", b.Complete(b.ctx(), "", short.ID, 0))
	b.eventually("its place is free", func() bool {
		_, wait, err := b.Schedule(b.ctx(), admission.TaskRequest{Model: "chat"})
		return wait == 0 && err == nil
	})
	if _, err := b.Task(b.ctx(), "", long.ID); err != nil {
		b.Errorf("the renewed one: %v", err)
	}
}

// taskWaits: what a call that may not wait is told, and that one that may wait does so in the
// queue.
func taskWaits(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1, TokensPerMinute: 600})
	b.SetLimits("quick", admission.Limits{TokensPerMinute: 6000})
	b.SetPools(map[string][]string{"auto": {"chat", "quick"}})
	for range 2 {
		held := b.schedule(admission.TaskRequest{Pool: "auto", Tokens: 600})
		if held.Model == "quick" {
			b.schedule(admission.TaskRequest{Model: "quick", Tokens: 5400})
			continue
		}
		if err := b.Complete(b.ctx(), "", held.ID, -1); err != nil {
			b.Fatal(err)
		}
	}
	if wait := b.postponed(admission.TaskRequest{Tokens: 100}); wait < 9*time.Second || wait > 10600*time.Millisecond {
		b.Errorf("told to wait %v for 100 tokens, want 10 s, and hardly more", wait)
	}
	if wait := b.postponed(admission.TaskRequest{Pool: "auto", Tokens: 100}); wait < 900*time.Millisecond || wait > 1100*time.Millisecond {
		b.Errorf("told to wait %v for 100 tokens of the pool, want 1 s, and hardly more", wait)
	}
	if _, _, err := b.Schedule(b.ctx(), admission.TaskRequest{Pool: "auto", Tokens: 6001}); !errors.Is(err, admission.ErrNeverFits) {
		b.Errorf("got %v, want ErrNeverFits", err)
	}
	b.SetLimits("slow", admission.Limits{MaxConcurrent: 1})
	holder := b.schedule(admission.TaskRequest{Model: "slow"})
	if wait := b.postponed(admission.TaskRequest{Model: "slow", MaxWait: 30 * time.Millisecond}); wait > 250*time.Millisecond {
		b.Errorf("told to wait %v", wait)
	}
	waiting := b.startAdmit(admission.Request{Model: "slow"})
	time.AfterFunc(50*time.Millisecond, func() {
		if err := b.Complete(b.ctx(), "", holder.ID, -1); err != nil {
			b.Error(err)
		}
	})
	b.postponed(admission.TaskRequest{Model: "slow"})
	lease := b.wantAdmitted(waiting) // a task that does not wait has not passed it
	time.AfterFunc(50*time.Millisecond, lease.Release)
	b.schedule(admission.TaskRequest{Model: "slow", MaxWait: patience})
}

// taskCorrection: the real cost of a task corrects the buckets.
func taskCorrection(b *suite) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 600})
	b.setTenantLimits(admission.TenantLimits{TokensPerMinute: 600})
	got := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 600})
	b.postponed(admission.TaskRequest{Tenant: "acme", Tokens: 300})
	if err := b.Complete(b.ctx(), "acme", got.ID, 100); err != nil {
		b.Fatal(err)
	}
	b.eventually("the rest is back", func() bool {
		_, wait, err := b.Schedule(b.ctx(), admission.TaskRequest{Model: "chat", Tenant: "acme", Tokens: 500})
		return wait == 0 && err == nil
	})
}

// taskAndRequest: the first request of a task that costs no more than its estimate takes nothing
// but a slot on a replica.
func taskAndRequest(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1, TokensPerMinute: 60})
	b.setTenantLimits(admission.TenantLimits{MaxConcurrent: 1, RequestsPerMinute: 1})
	got := b.schedule(admission.TaskRequest{Tenant: "acme", Tokens: 60})
	placed := 0
	lease := b.admit(admission.Request{Tenant: "acme", Tokens: 60, UnderTask: got.ID,
		Locked: admission.LockedHooks{ReserveSlot: func(model string) (admission.Slot, bool) {
			placed++
			return admission.Slot{Replica: model + "-0", Limit: 1}, true
		}}})
	if placed != 1 || lease.Model() != "chat" {
		b.Errorf("placed %d times, at %s", placed, lease.Model())
	}
	if n := b.Stats("chat").InFlight; n != 1 {
		b.Errorf("%d leases of the model, want the task's", n)
	}
	lease.Correct(0)
	lease.Release()
	b.postponed(admission.TaskRequest{Tenant: "acme"})
	if err := b.Complete(b.ctx(), "acme", got.ID, -1); err != nil {
		b.Fatal(err)
	}
}
