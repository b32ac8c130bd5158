package admission

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestPoolOfOneThatWentElsewhere: the head of a pool's queue lacks tokens here and is admitted by
// another model. The next waiter, which has enough, is admitted here.
func TestPoolOfOneThatWentElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := testController{New(Config{}), t}
		d.SetLimits("a", Limits{TokensPerMinute: 600})
		d.SetLimits("b", Limits{MaxConcurrent: 1})
		d.SetPools(map[string][]string{"auto": {"a", "b"}})
		d.wantAdmitted(d.start(t.Context(), Request{Model: "a", Tokens: 300}), 0)
		busy := d.start(t.Context(), Request{Model: "b"})
		large, own := d.startInPool(600), d.start(t.Context(), Request{Model: "a", Tokens: 10})
		d.wantAdmitted(own, 0) // its queue shares the model with the pool's
		small := d.startInPool(10)
		d.wantWaiting(large, small)
		busy.release()
		synctest.Wait()
		d.wantAdmitted(large, 0)
		d.wantAdmitted(small, 0)
	})
}

// TestPoolOfOthersModels: a request may go to a model that no other request of its tenant may use.
func TestPoolOfOthersModels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newPoolController(t, Limits{MaxConcurrent: 1}, 1, 1)
		only := func(model string) func(string) bool { return func(m string) bool { return m == model } }
		d.wantAdmitted(d.start(t.Context(), Request{Model: "m0"}), 0)
		waiting := d.start(t.Context(), Request{Pool: "auto", Locked: LockedHooks{Allowed: only("m0")}})
		d.wantWaiting(waiting)
		d.wantAdmitted(d.start(t.Context(), Request{Pool: "auto", Locked: LockedHooks{Allowed: only("m1")}}), 0)
		d.wantWaiting(waiting)
		d.SetPools(nil)
	})
}

// TestAgeingBesideThoseWhoNeverWait: small requests that find room at once take the tokens that a
// large one of a lower band waits for, but not for ever.
func TestAgeingBesideThoseWhoNeverWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{TokensPerMinute: 600, QueueTimeout: time.Hour})
		d.startTokens(300)
		large := d.start(t.Context(), Request{Tokens: 600, Priority: Batch})
		for range 300 {
			time.Sleep(time.Second)
			go func() {
				if l, err := d.Admit(t.Context(), Request{Model: "chat", Tokens: 10, Priority: Interactive}); err == nil {
					l.Release()
				}
			}()
			synctest.Wait()
		}
		if d.Stats("chat").Queued > 200 || large.state().lease == nil {
			t.Errorf("still waiting after five minutes: %+v", d.Stats("chat"))
		}
		d.Remove("chat")
	})
}

// TestEvictionOfNobodyInVain: if bytes are short, waiters without bytes stay. If the queue is too
// long, newcomers stay.
func TestEvictionOfNobodyInVain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := testController{New(Config{MaxQueueBytes: 100}), t}
		d.SetLimits("chat", Limits{MaxConcurrent: 1})
		d.startTokens(0)
		ask := func(tenant string, bytes int) *admitCall {
			return d.start(t.Context(), Request{Tenant: tenant, Bytes: bytes})
		}
		first, large, small := ask("a", 10), ask("a", 60), ask("a", 0)
		d.wantWaiting(first, large, small)
		d.wantWaiting(ask("b", 60))
		d.wantRefused(large, &Refused{Reason: Evicted}, 0)
		d.wantWaiting(first, small)
		d.Remove("chat")
	})
}

// TestJournalAfterAFault: a line that could not be written spoils no later line.
func TestJournalAfterAFault(t *testing.T) {
	t.Parallel()
	cfg := Config{TaskJournal: filepath.Join(t.TempDir(), "tasks")}
	c := New(cfg)
	c.SetLimits("chat", Limits{})
	schedule := func() (Task, error) {
		task, _, err := c.Schedule(t.Context(), TaskRequest{Model: "chat"})
		return task, err
	}
	if _, err := schedule(); err != nil {
		t.Fatal(err)
	}
	c.taskJournal.file.Close()
	if _, err := schedule(); err == nil {
		t.Error("a task whose line was not written")
	}
	task, err := schedule()
	if err != nil {
		t.Fatal(err)
	}
	again := New(cfg)
	if err := again.RecoverTasks(); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Task(t.Context(), "", task.ID); err != nil {
		t.Error(err)
	}
}

// TestJournalOfOneThatEndedFirst: a task may end before its own line is written, and the journal
// may be compacted in between.
func TestJournalOfOneThatEndedFirst(t *testing.T) {
	t.Parallel()
	cfg := Config{TaskJournal: filepath.Join(t.TempDir(), "tasks")}
	c := New(cfg)
	if err := c.RecoverTasks(); err != nil {
		t.Fatal(err)
	}
	late := journalEntry{Op: opAdd, Task: Task{ID: "tsk_1", Model: "chat", Expires: time.Now().Add(time.Hour)}}
	if err := c.taskJournal.append(c, late); err != nil {
		t.Fatal(err)
	}
	again := New(cfg)
	if err := again.RecoverTasks(); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Task(t.Context(), "", "tsk_1"); err == nil {
		t.Error("the task is back")
	}
}

// TestPutBackIsNotTheOldest: a waiter that was denied does not hide that another has waited longer.
func TestPutBackIsNotTheOldest(t *testing.T) {
	t.Parallel()
	var q queue
	waiters := make([]*waiter, 3)
	for i := range waiters {
		a := newArrival(Request{Tenant: name("tenant", i), Tokens: 1})
		waiters[i] = &waiter{arrival: a, tenant: &tenant{name: a.Tenant}, arrived: time.Unix(int64(i), 0)}
		q.enqueue(waiters[i])
	}
	q.dequeue(waiters[1], true)
	q.requeue(waiters[1], true)
	if got := q.allWaiters(); !slices.Equal(got, waiters) {
		t.Errorf("got %v, want them as they came", got)
	}
}

// TestLimitsOfALongQueue: a change of limits looks at each waiter once.
func TestLimitsOfALongQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const waiting = 1000
		d := newTestController(t, Limits{TokensPerMinute: 600, QueueTimeout: time.Hour})
		d.startTokens(600)
		calls := make([]*admitCall, waiting)
		for i := range calls {
			calls[i] = d.startTokens(10)
		}
		d.SetLimits("chat", Limits{TokensPerMinute: 120, QueueTimeout: time.Hour}) // 12 per minute
		d.wantWaiting(calls[:710]...)
		for _, c := range calls[730:] {
			if c.state().err == nil {
				t.Fatal("waits in vain")
			}
		}
		d.Remove("chat")
	})
}

// TestScheduleRefusedForGoodCostsItsKeyNothing: a call with a key of its own names a model that can
// never serve it. The limits of the caller's key get back what they were charged.
func TestScheduleRefusedForGoodCostsItsKeyNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{TokensPerMinute: 10})
		key := KeyTenant("a/k")
		d.SetTenants(map[string]TenantLimits{key: {MaxConcurrent: 1, TokensPerMinute: 600}})
		for model, want := range map[string]error{"chat": ErrNeverFits, "nowhere": ErrUnknownModel} {
			_, _, err := d.Schedule(t.Context(), TaskRequest{Model: model, Tenant: "a", APIKey: "a/k", Key: model, Tokens: 500})
			if !errors.Is(err, want) {
				t.Errorf("%s: %v", model, err)
			}
			if s := d.Tenant(key); s.Running != 0 || s.Quota.Tokens.Remaining != 600 {
				t.Errorf("%s: %+v", model, s)
			}
		}
	})
}
