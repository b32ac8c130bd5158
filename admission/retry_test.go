package admission

import (
	"testing"
	"testing/synctest"
	"time"
)

// task admits a task of a tenant to a model.
func (d testController) task(tenant, model string, tokens int) Task {
	d.t.Helper()
	task, wait, err := d.Schedule(d.t.Context(), TaskRequest{Tenant: tenant, Model: model, Tokens: tokens})
	if err != nil || wait > 0 {
		d.t.Fatal(wait, err)
	}
	return task
}

// A request under a task waits for the prefill of another request of its tenant. It goes when that
// ends, whatever ends it and on whichever model, also if a request that lacks a lease is before it.
func TestPrefillEndsForARequestUnderATask(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Lease){
		"first token": func(l *Lease) { l.FirstToken() },
		"release":     (*Lease).Release,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newTestController(t, Limits{MaxConcurrent: 1})
				d.SetLimits("embed", Limits{})
				d.SetTenants(map[string]TenantLimits{"capped": {MaxPrefill: 1}})
				task := d.task("capped", "chat", 1)
				first := d.start(t.Context(), Request{Model: "embed", Tenant: "capped", Prefill: true})
				head := d.start(t.Context(), Request{Tenant: "other", Priority: Interactive})
				under := d.start(t.Context(), Request{Tenant: "capped", Prefill: true, UnderTask: task.ID})
				d.wantWaiting(head, under)
				end(first.state().lease)
				d.wantAdmitted(under, 0)
			})
		})
	}
}

// The requests behind one that is refused because its task has ended go at once, also while another
// request of the task runs.
func TestAnEndedTaskHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{})
		d.SetTenants(map[string]TenantLimits{"capped": {MaxPrefill: 1}})
		task := d.task("capped", "chat", 1)
		d.start(t.Context(), Request{Tenant: "capped", Prefill: true, UnderTask: task.ID})
		head := d.start(t.Context(), Request{Tenant: "capped", Prefill: true, UnderTask: task.ID})
		behind := d.start(t.Context(), Request{Tenant: "capped"})
		d.wantWaiting(head, behind)
		if err := d.Complete(t.Context(), "capped", task.ID, 1); err != nil {
			t.Fatal(err)
		}
		d.wantRefused(head, ErrUnknownTask, 0)
		d.wantAdmitted(behind, 0)
	})
}

// The requests for a model behind one of a pool go at once when the pool is gone.
func TestAPoolThatIsGoneHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{TokensPerMinute: 60})
		d.SetPools(map[string][]string{"auto": {"chat"}})
		d.startTokens(60).release()
		head := d.start(t.Context(), Request{Pool: "auto", Tenant: "a", Tokens: 50})
		time.Sleep(10 * time.Second)
		behind := d.start(t.Context(), Request{Tenant: "b", Tokens: 5})
		d.wantWaiting(head, behind)
		d.SetPools(nil)
		d.wantRefused(head, ErrRemoved, 10*time.Second)
		d.wantAdmitted(behind, 0)
	})
}
