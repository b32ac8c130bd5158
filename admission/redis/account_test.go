package redis

import (
	"errors"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// TestRequestOfTaskRenewedElsewhere: a request waits longer than the first lease of its task if
// another gateway has renewed the task.
func TestRequestOfTaskRenewedElsewhere(t *testing.T) {
	t.Parallel()
	both := controllers(t, 2, "renewed", redistest.Start(t))
	for _, c := range both {
		c.SetLimits("chat", admission.Limits{MaxConcurrent: 4})
	}
	task, wait, err := both[0].Schedule(t.Context(), admission.TaskRequest{Model: "chat", Tenant: "acme", Lease: 2 * time.Second})
	if wait != 0 || err != nil {
		t.Fatal(wait, err)
	}
	if _, err := both[1].Renew(t.Context(), "acme", task.ID, time.Minute); err != nil {
		t.Fatal(err)
	}
	under := admission.Request{Model: "chat", Tenant: "acme", UnderTask: task.ID, Timeout: 3 * time.Second}
	under.Locked.ReserveSlot = func(string) (admission.Slot, bool) { return admission.Slot{}, false }
	if _, err := both[0].Admit(t.Context(), under); !errors.Is(err, admission.ErrTimeout) {
		t.Errorf("a request of the task that finds no slot for 3 s: %v, want %v", err, admission.ErrTimeout)
	}
}

// TestTaskRequestsInTurn: two gateways admit the requests of a task in turn, each as soon as the
// one before has been released. That release may still be on its way to Redis.
func TestTaskRequestsInTurn(t *testing.T) {
	t.Parallel()
	both := controllers(t, 2, "turns", redistest.Start(t))
	for _, c := range both {
		c.SetLimits("chat", admission.Limits{MaxConcurrent: 4})
	}
	task, wait, err := both[0].Schedule(t.Context(), admission.TaskRequest{Model: "chat", Tenant: "acme"})
	if wait != 0 || err != nil {
		t.Fatal(wait, err)
	}
	for i := range 100 {
		lease, err := both[i%2].Admit(t.Context(), admission.Request{Model: "chat", Tenant: "acme", UnderTask: task.ID})
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		lease.Release()
	}
}

// TestX2_TasksOverGateways: what one gateway admits under a task of another counts as if the other
// had admitted it.
func TestX2_TasksOverGateways(t *testing.T) {
	t.Parallel()
	for name, start := range servers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both := controllers(t, 2, name, start(t)...)
			for _, c := range both {
				c.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
				c.SetTenants(map[string]admission.TenantLimits{"acme": {TokensPerMinute: 600, RequestsPerMinute: 3}})
			}
			a, b := both[0], both[1]
			task, wait, err := a.Schedule(t.Context(), admission.TaskRequest{Model: "chat", Tenant: "acme", Tokens: 300})
			if wait != 0 || err != nil {
				t.Fatal(wait, err)
			}
			under := admission.Request{Model: "chat", Tenant: "acme", UnderTask: task.ID, Tokens: 300}
			running, err := b.Admit(t.Context(), under)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Admit(t.Context(), under); !errors.Is(err, admission.ErrTaskBusy) {
				t.Errorf("a second request of the task, at another gateway: %v", err)
			}
			running.Correct(500) // 200 beyond the estimate
			running.Release()
			eventually(t, "the task is free", func() bool {
				lease, err := a.Admit(t.Context(), admission.Request{Model: "chat", Tenant: "acme", UnderTask: task.ID, Tokens: 0})
				if err == nil {
					lease.Release()
				}
				return err == nil
			})
			wantTenantTokens(t, a, under, 200)

			last, err := b.Admit(t.Context(), admission.Request{Model: "chat", Tenant: "acme", UnderTask: task.ID, Tokens: 0})
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Complete(t.Context(), "acme", task.ID, 0); err != nil {
				t.Fatal(err)
			}
			if _, wait, err := a.Schedule(t.Context(), admission.TaskRequest{Model: "chat", Tenant: "other"}); wait == 0 || err != nil {
				t.Errorf("the end of a task freed its lease, which its request uses: %v, %v", wait, err)
			}
			if _, err := a.Admit(t.Context(), under); !errors.Is(err, admission.ErrUnknownTask) {
				t.Errorf("a request under a task that another gateway has ended: %v", err)
			}
			last.Release()
			eventually(t, "the lease is free", func() bool {
				_, wait, err := a.Schedule(t.Context(), admission.TaskRequest{Model: "chat", Tenant: "other"})
				return wait == 0 && err == nil
			})
		})
	}
}

// wantTenantTokens expects that a request under the task is refused, and that about this many
// tokens of the tenant are left.
func wantTenantTokens(t *testing.T, c *admission.Controller, r admission.Request, want int64) {
	t.Helper()
	var refused *admission.Refused
	if _, err := c.Admit(t.Context(), r); !errors.As(err, &refused) || refused.Reason != admission.TenantTokens && refused.Reason != admission.TenantRequests {
		t.Fatalf("got %v, want a refusal", err)
	}
	if left := refused.Quota.Tokens.Remaining; left < want-100 || left > want+100 {
		t.Errorf("%d tokens are left, want about %d", left, want)
	}
}

// TestX2_ATaskOutlivesItsExpiryWhileARequestRuns: the request of a task keeps the task's lease when
// nobody renews it.
func TestX2_ATaskOutlivesItsExpiryWhileARequestRuns(t *testing.T) {
	t.Parallel()
	s := stores(t, 1, Config{}, redistest.Start(t))[0]
	parent := task("a", "", 300*time.Millisecond)
	wantReasons(t, acquire(s, parent), admission.Granted)
	child := limited("child", 2)
	child.UnderTask, child.Tenant, child.Model = "a", parent.Tenant, parent.Model
	wantReasons(t, acquire(s, child), admission.Granted)
	eventually(t, "the task has expired", func() bool {
		_, err := s.Task(t.Context(), parent.Tenant, "a")
		return errors.Is(err, admission.ErrUnknownTask)
	})
	wantReasons(t, acquire(s, limited("y", 1)), admission.ModelConcurrency)
	s.Release("child", 0, false)
	eventually(t, "its lease ends with the request", func() bool {
		reasons := acquire(s, limited("x", 1))
		return reasons[0].Reason == admission.Granted
	})
}
