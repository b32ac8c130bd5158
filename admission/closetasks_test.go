package admission

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A call that waits when another process is about to read the journal makes no task that the other
// process would not know.
func TestW6_X20_AWaitingTaskIsNotGrantedAfterTheJournalIsRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tasks")
	synctest.Test(t, func(t *testing.T) {
		before := newJournalController(t, path)
		before.SetLimits("chat", Limits{MaxConcurrent: 2})
		kept := before.scheduleTask(TaskRequest{Lease: time.Hour})
		running := before.startTokens(0)
		var late Task
		var wait time.Duration
		var calls sync.WaitGroup
		calls.Go(func() {
			var err error
			if late, wait, err = before.Schedule(t.Context(), TaskRequest{Model: "chat", MaxWait: time.Minute}); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		before.CloseTasks()
		after := newJournalController(t, path)
		after.SetLimits("chat", Limits{MaxConcurrent: 2})
		running.release()
		calls.Wait()
		if late.ID != "" || wait <= 0 {
			t.Errorf("the call that waited was told %+v, %v", late, wait)
		}
		after.wantStats(Stats{InFlight: 1, Tokens: -1})
		if err := after.Complete(t.Context(), "", kept.ID, -1); err != nil {
			t.Error(err)
		}
	})
}

// Whenever CloseTasks comes, the journal then has the tasks that callers know, and no others.
func TestW6_X20_TheJournalHasWhatCallersKnow(t *testing.T) {
	t.Parallel()
	for range 50 {
		path := filepath.Join(t.TempDir(), "tasks")
		before := newJournalController(t, path)
		before.SetLimits("chat", Limits{MaxConcurrent: 4})
		var mu sync.Mutex
		known := map[string]bool{}
		var calls sync.WaitGroup
		for range 8 {
			calls.Go(func() {
				for range 1000 {
					task, wait, err := before.Schedule(t.Context(), TaskRequest{Model: "chat", MaxWait: time.Minute})
					if err != nil {
						t.Error(err)
					}
					if task.ID == "" || wait > 0 {
						return // the tasks are closed
					}
					err = before.Complete(t.Context(), "", task.ID, -1)
					if err != nil && !errors.Is(err, ErrNotRecorded) {
						t.Error(err)
					}
					mu.Lock()
					known[task.ID] = err != nil
					mu.Unlock()
				}
			})
		}
		time.Sleep(time.Millisecond)
		before.CloseTasks()
		after := newJournalController(t, path)
		calls.Wait()
		for _, task := range after.journalEntries() {
			if !known[task.ID] {
				t.Errorf("task %s is back, although its caller does not have it", task.ID)
			}
			delete(known, task.ID)
		}
		for id, runs := range known {
			if runs {
				t.Errorf("task %s of a caller is lost", id)
			}
		}
	}
}
