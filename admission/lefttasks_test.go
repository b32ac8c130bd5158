package admission

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// TestTheLeaseOfATaskEndsByItself: nobody asks for a task whose caller is gone. A waiter gets its
// lease all the same.
func TestTheLeaseOfATaskEndsByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1})
		d.scheduleTask(TaskRequest{Lease: 10 * time.Second})
		waiting := d.startTokens(1)
		d.wantWaiting(waiting)
		time.Sleep(10 * time.Second)
		d.wantAdmitted(waiting, 10*time.Second)
		waiting.release()
	})
}

// TestKeysOfCompletedTasksAreBounded: of more keys than are remembered, the latest are. None is
// remembered for longer than its time.
func TestKeysOfCompletedTasksAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	key := func(n int) taskKey { return taskKey{"acme", strconv.Itoa(n)} }
	ts := newTasks()
	ts.rememberEnd(taskKey{"acme", ""}, "without a key", now)
	for n := range maxEndedKeys + 10 {
		ts.rememberEnd(key(n), "id", now)
	}
	ts.rememberEnd(key(11), "again", now)
	if len(ts.ended) != maxEndedKeys-1 && len(ts.ended) != maxEndedKeys || len(ts.endedOrder) != len(ts.ended) {
		t.Errorf("%d keys are remembered, in an order of %d", len(ts.ended), len(ts.endedOrder))
	}
	if ts.hasEnded("acme", "0", now) || !ts.hasEnded("acme", "11", now) || !ts.hasEnded("acme", "100000", now) || ts.hasEnded("acme", "", now) {
		t.Error("other keys are remembered than the latest")
	}
	if ts.hasEnded("acme", "100000", now.Add(endedKeyMemory)) {
		t.Error("a key is remembered for too long")
	}
	ts.rememberEnd(key(0), "id", now.Add(endedKeyMemory))
	if len(ts.ended) != 1 || len(ts.endedOrder) != 1 {
		t.Errorf("%d keys are remembered after their time, in an order of %d", len(ts.ended), len(ts.endedOrder))
	}
}

// TestAKeyOfALaterTimeIsForgotten: the journal has a task that was completed at a time which has
// not come yet, because the clock has gone back. Its key is remembered from now on.
func TestAKeyOfALaterTimeIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{})
		d.restoreEnd(journalEntry{Op: opEnd, Task: Task{ID: "tsk_1", Tenant: "acme"}, Key: "k", Ended: time.Now().Add(24 * time.Hour)})
		ask := TaskRequest{Model: "chat", Tenant: "acme", Key: "k"}
		if _, _, err := d.Schedule(t.Context(), ask); !errors.Is(err, ErrTaskEnded) {
			t.Errorf("%v, want that the task has ended", err)
		}
		time.Sleep(endedKeyMemory)
		if _, _, err := d.Schedule(t.Context(), ask); err != nil {
			t.Error(err)
		}
	})
}

// TestThoseBehindACallOfAKeyAreAdmitted: a call that gets the task of an earlier one leaves its
// queue. Who waited behind it for its tokens is admitted at once.
func TestThoseBehindACallOfAKeyAreAdmitted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1})
		d.SetLimits("other", Limits{TokensPerMinute: 600})
		holder, spent := d.startTokens(0), d.start(t.Context(), Request{Model: "other", Tokens: 500})
		tasks := make(chan Task, 2)
		for _, r := range []TaskRequest{{Model: "chat"}, {Model: "other", Tokens: 550}} {
			r.Key, r.MaxWait = "k", time.Hour
			go func() { tasks <- d.scheduleAny(r) }()
			synctest.Wait()
		}
		behind := d.start(t.Context(), Request{Model: "other", Tokens: 90})
		d.wantWaiting(behind)
		holder.release()
		d.wantAdmitted(behind, 0)
		if first, again := <-tasks, <-tasks; first.ID == "" || first != again {
			t.Errorf("tasks %+v and %+v, want one", first, again)
		}
		spent.release()
		behind.release()
	})
}

// TestW6_ARecoveredRequestCountsAsItsTask: a request of a task that runs from before a restart
// holds no lease beside that of the task, also of a key with limits. It uses up the charge of the
// task.
func TestW6_ARecoveredRequestCountsAsItsTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 9, TokensPerMinute: 1000})
		key := KeyTenant("acme/k")
		d.SetTenants(map[string]TenantLimits{"acme": {MaxConcurrent: 9}, key: {MaxConcurrent: 9, TokensPerMinute: 1000}})
		counts := func(when string, running int, tokens int64) {
			t.Helper()
			d.wantStats(Stats{InFlight: running, Tokens: float64(tokens)})
			own, ofKey := d.Tenant("acme"), d.Tenant(key)
			if own.Running != running || ofKey.Running != running || ofKey.Quota.Tokens.Remaining != tokens {
				t.Errorf("%s: the tenant has %d running; its key has %d and %d tokens left, want %d and %d", when,
					own.Running, ofKey.Running, ofKey.Quota.Tokens.Remaining, running, tokens)
			}
		}
		task := d.scheduleTask(TaskRequest{Tenant: "acme", APIKey: "acme/k", Tokens: 100, Lease: time.Hour})
		counts("a task", 1, 900)
		request := RecoveredRequest{Model: "chat", Tenant: "acme", APIKey: "acme/k", UnderTask: task.ID}
		l := d.RecoverRequest(request)
		counts("with its request", 1, 900)
		if err := d.Complete(t.Context(), "acme", task.ID, 40); err != nil {
			t.Fatal(err)
		}
		counts("its request runs on", 1, 960)
		l.Correct(90)
		counts("its request has cost more than declared", 1, 910)
		l.Release()
		counts("all has ended", 0, 910)
		late := d.RecoverRequest(request)
		counts("a request whose task has ended", 1, 910)
		late.Release()
		counts("its end", 0, 910)
	})
}
