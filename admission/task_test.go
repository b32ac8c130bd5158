package admission

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestR10_TaskHerd: callers that wait for the same tokens get different times, which are hardly
// longer than the exact one. The first is told the exact one.
func TestR10_TaskHerd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTenantController(t, Limits{TokensPerMinute: 600, MaxConcurrent: 1}, TenantLimits{RequestsPerMinute: 1})
		d.startTokens(600)
		slots, tokens := map[time.Duration]bool{}, map[time.Duration]bool{}
		for n := range 100 {
			_, wait, err := d.Schedule(t.Context(), TaskRequest{Model: "chat"})
			if err != nil || wait < 100*time.Millisecond || wait > 250*time.Millisecond {
				t.Fatalf("%v, %v, want 100 to 250 ms for a slot", wait, err)
			}
			slots[wait] = true
			_, wait, err = d.Schedule(t.Context(), TaskRequest{Model: "chat", Tokens: 100})
			if err != nil || wait != 10*time.Second+time.Duration(n)*returnSpacing {
				t.Fatalf("%v, %v, want 10 s, and %v more for each earlier caller", wait, err, returnSpacing)
			}
			tokens[wait] = true
		}
		if len(slots) < 50 || len(tokens) < 100 {
			t.Errorf("only %d and %d different waits", len(slots), len(tokens))
		}
		d.SetLimits("chat", Limits{})
		if _, wait, err := d.Schedule(t.Context(), TaskRequest{Model: "chat", Tenant: "acme"}); wait != 0 || err != nil {
			t.Error(wait, err)
		}
		if _, wait, err := d.Schedule(t.Context(), TaskRequest{Model: "chat", Tenant: "acme"}); wait < time.Minute || err != nil {
			t.Errorf("%v, %v, want the tenant's minute", wait, err)
		}
		if got := d.Tenant("acme"); got.Running != 1 || got.Queued != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// TestTaskKeysRace: calls with the same key that wait at once get one task.
func TestTaskKeysRace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1, TokensPerMinute: 600})
		holder := d.startTokens(0)
		ids := make([]string, 3)
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				task, wait, err := d.Schedule(t.Context(), TaskRequest{Model: "chat", Key: "k", Tokens: 100, MaxWait: time.Minute})
				if err != nil || wait != 0 {
					t.Error(wait, err)
				}
				ids[i] = task.ID
			})
		}
		synctest.Wait()
		d.SetLimits("chat", Limits{MaxConcurrent: 4, TokensPerMinute: 600})
		wg.Wait()
		if ids[0] == "" || ids[0] != ids[1] || ids[1] != ids[2] {
			t.Errorf("tasks %v, want one", ids)
		}
		d.wantStats(Stats{InFlight: 2, Tokens: 500})
		holder.release()
	})
}

// TestWaitingCallGetsTaskOfItsKey: a call that waits gets the task of an earlier call with its key
// as soon as there is one. It gets that task also if it asks for another model or has another
// priority.
func TestWaitingCallGetsTaskOfItsKey(t *testing.T) {
	t.Parallel()
	for _, second := range []TaskRequest{{Model: "chat"}, {Model: "chat", Priority: Batch}, {Model: "other"}, {Pool: "pool"}} {
		synctest.Test(t, func(t *testing.T) {
			d := newTestController(t, Limits{MaxConcurrent: 1})
			d.SetLimits("other", Limits{MaxConcurrent: 1})
			d.SetPools(map[string][]string{"pool": {"other"}})
			holder, other := d.startTokens(0), d.start(t.Context(), Request{Model: "other"})
			tasks := make(chan Task, 2)
			for _, r := range []TaskRequest{{Model: "chat"}, second} {
				r.Key, r.MaxWait = "k", time.Minute
				go func() { tasks <- d.scheduleAny(r) }()
				synctest.Wait()
			}
			stranger := make(chan Task, 1)
			go func() {
				stranger <- d.scheduleAny(TaskRequest{Model: "chat", Tenant: "acme", Key: "k", MaxWait: time.Minute})
			}()
			synctest.Wait()
			holder.release()
			synctest.Wait()
			if len(tasks) != 2 || len(stranger) != 0 {
				t.Errorf("%+v: %d calls of the key have a task, and %d of another tenant's same key", second, len(tasks), len(stranger))
			}
			first, again := <-tasks, <-tasks
			if first.ID == "" || again != first {
				t.Errorf("%+v: tasks %+v and %+v, want one", second, first, again)
			}
			if err := d.Complete(t.Context(), "", first.ID, -1); err != nil {
				t.Error(err)
			}
			if task := <-stranger; task.ID == "" || task.ID == first.ID {
				t.Errorf("another tenant's task %+v", task)
			}
			other.release()
			d.wantStats(Stats{InFlight: 1, Tokens: -1})
		})
	}
}

// scheduleAny is Schedule of a call that must get a task.
func (d testController) scheduleAny(r TaskRequest) Task {
	task, wait, err := d.Schedule(d.t.Context(), r)
	if err != nil || wait != 0 {
		d.t.Error(task, wait, err)
	}
	return task
}

// TestLateCallOfCompletedTask: a call that is admitted after the task of its key was completed
// holds nothing, and makes no second task.
func TestLateCallOfCompletedTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 2, TokensPerMinute: 600})
		late := d.startTokens(100)
		done := d.scheduleTask(TaskRequest{Key: "k", Tokens: 50})
		if err := d.Complete(t.Context(), "", done.ID, 50); err != nil {
			t.Fatal(err)
		}
		task, wait, err := d.registerTask(&task{Task: Task{ID: newTaskID(), Model: "chat", Expires: time.Now().Add(time.Hour)}, key: "k", lease: late.state().lease})
		if task.ID != "" || wait != 0 || !errors.Is(err, ErrTaskEnded) {
			t.Errorf("%+v, %v, %v, want %v", task, wait, err, ErrTaskEnded)
		}
		d.wantStats(Stats{Tokens: 550})
	})
}

func TestTasksExpireInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{})
		var tasks []Task
		for i := range 20 {
			task, _, err := d.Schedule(t.Context(), TaskRequest{Model: "chat", Lease: time.Duration(1+i*7%20) * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			tasks = append(tasks, task)
		}
		// the first to expire
		if _, err := d.Renew(t.Context(), "", tasks[0].ID, 30*time.Second); err != nil {
			t.Fatal(err)
		}
		for left := 20; left > 1; left-- {
			d.wantStats(Stats{InFlight: left, Tokens: -1})
			time.Sleep(time.Second)
			if left == 20 {
				d.wantStats(Stats{InFlight: left, Tokens: -1})
				time.Sleep(time.Second)
			}
		}
		d.wantStats(Stats{InFlight: 1, Tokens: -1})
		time.Sleep(10 * time.Second)
		d.wantStats(Stats{Tokens: -1})
		if _, err := d.Renew(t.Context(), "", tasks[0].ID, 0); err != ErrUnknownTask {
			t.Error(err)
		}
	})
}

// newJournalController is the Controller of a process that starts with a journal.
func newJournalController(t *testing.T, path string) testController {
	t.Helper()
	c := New(Config{TaskJournal: path})
	if err := c.RecoverTasks(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.taskJournal.file.Close() })
	return testController{c, t}
}

func (d testController) scheduleTask(r TaskRequest) Task {
	d.t.Helper()
	r.Model = "chat"
	task, wait, err := d.Schedule(d.t.Context(), r)
	if err != nil || wait != 0 {
		d.t.Fatal(task, wait, err)
	}
	return task
}

// TestJournal: after a kill tasks hold their leases again, except those that had ended or have
// expired since.
func TestJournal(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tasks")
	synctest.Test(t, func(t *testing.T) {
		before := newJournalController(t, path)
		before.SetLimits("chat", Limits{MaxConcurrent: 5})
		keyed := before.scheduleTask(TaskRequest{Tenant: "acme", Key: "k", Lease: time.Hour, Tokens: 7, Lifetime: 2 * time.Hour})
		renewed := before.scheduleTask(TaskRequest{Lease: time.Minute})
		short := before.scheduleTask(TaskRequest{Lease: time.Minute})
		ended := before.scheduleTask(TaskRequest{Lease: time.Hour})
		if _, err := before.Renew(t.Context(), "", renewed.ID, time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := before.Complete(t.Context(), "", ended.ID, -1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if stat, err := os.Stat(path); err != nil || stat.Mode() != 0o600 {
			t.Errorf("%v, %v, want mode 0600", stat.Mode(), err)
		}
		// The process dies in the middle of a line.
		file, _ := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		file.WriteString(`{"op":"end","ID":"` + keyed.ID)
		file.Close()

		after := testController{New(Config{TaskJournal: path}), t}
		if err := after.RecoverTasks(); err == nil {
			t.Error("a line that is cut off was ignored without a word")
		}
		after.SetLimits("chat", Limits{MaxConcurrent: 2})
		after.wantStats(Stats{InFlight: 2, Tokens: -1})
		if got := after.Tenant("acme").Running; got != 1 {
			t.Errorf("%d running of the tenant, want 1", got)
		}
		if again := after.scheduleTask(TaskRequest{Tenant: "acme", Key: "k"}); again.ID != keyed.ID || again.Tokens != 7 || !again.Expires.Equal(keyed.Expires) {
			t.Errorf("the key finds %+v, want %+v", again, keyed)
		}
		if long, err := after.Renew(t.Context(), "acme", keyed.ID, 5*time.Hour); err != nil || !long.Expires.Equal(keyed.Until) {
			t.Errorf("renewed until %v (%v), its lifetime of before the restart ends at %v", long.Expires, err, keyed.Until)
		}
		if err := after.Complete(t.Context(), "acme", keyed.ID, 7); err != nil {
			t.Error(err)
		}
		for _, gone := range []Task{short, ended, keyed} {
			if _, err := after.Task(t.Context(), gone.Tenant, gone.ID); err != ErrUnknownTask {
				t.Errorf("%s: %v", gone.ID, err)
			}
		}
		time.Sleep(time.Hour)
		after.wantStats(Stats{Tokens: -1})

		last := newJournalController(t, path)
		last.SetLimits("chat", Limits{})
		last.wantStats(Stats{Tokens: -1})
	})
}

func TestJournalIsCompacted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tasks")
	d := newJournalController(t, path)
	d.SetLimits("chat", Limits{})
	kept := d.scheduleTask(TaskRequest{})
	for range 2000 {
		if err := d.Complete(t.Context(), "", d.scheduleTask(TaskRequest{}).ID, -1); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if lines := strings.Count(string(text), "\n"); err != nil || lines > 1100 || !strings.Contains(string(text), kept.ID) {
		t.Errorf("%d lines, %v", lines, err)
	}
	if files, _ := filepath.Glob(path + "*"); len(files) != 1 {
		t.Errorf("files left: %v", files)
	}
}

// TestJournalKeepsKeysOfCompletedTasks: the call of a completed task is not admitted again after a
// restart, also if the journal was written anew meanwhile. After 15 minutes the key is forgotten.
func TestJournalKeepsKeysOfCompletedTasks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tasks")
	synctest.Test(t, func(t *testing.T) {
		c := newJournalController(t, path)
		ask := TaskRequest{Model: "chat", Tenant: "acme", Key: "k"}
		c.SetLimits("chat", Limits{})
		if err := c.Complete(t.Context(), "acme", c.scheduleTask(ask).ID, -1); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			time.Sleep(4 * time.Minute)
			c = newJournalController(t, path)
			c.SetLimits("chat", Limits{})
			if again, _, err := c.Schedule(t.Context(), ask); !errors.Is(err, ErrTaskEnded) {
				t.Errorf("the key of a completed task: %q, %v", again.ID, err)
			}
		}
		time.Sleep(4 * time.Minute)
		c = newJournalController(t, path)
		c.SetLimits("chat", Limits{})
		if text, err := os.ReadFile(path); err != nil || len(text) > 0 {
			t.Errorf("%s, %v, want nothing in the journal", text, err)
		}
		if err := c.Complete(t.Context(), "acme", c.scheduleTask(ask).ID, -1); err != nil {
			t.Error(err)
		}
	})
}

func TestJournalReplay(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text, want string
		bad              []int
	}{
		{"nothing", "", "", nil},
		{"torn", `{"op":"add","ID":"a"}` + "\n" + `{"op":"end","ID":"a"`, "a", []int{2}},
		{"no journal", "hello\x00\n\n[]\n1\n", "", []int{1, 3, 4}},
		{"no id", `{"op":"add"}`, "", []int{1}},
		{"unknown operation", `{"op":"adf","ID":"a"}`, "", []int{1}},
		{"end before add", `{"op":"end","ID":"a"}` + "\n" + `{"op":"add","ID":"a"}`, "", nil},
		{"added twice", `{"op":"add","ID":"a"}` + "\n" + `{"op":"add","ID":"b"}` + "\n" + `{"op":"add","ID":"a"}` + "\n", "a b", nil},
		{"renewed, never added", `{"op":"renew","ID":"a"}` + "\n", "", nil},
	}
	for _, tt := range tests {
		var ids []string
		live, _, bad := readJournal([]byte(tt.text))
		for _, e := range live {
			ids = append(ids, e.ID)
		}
		if got := strings.Join(ids, " "); got != tt.want || !slices.Equal(bad, tt.bad) {
			t.Errorf("%s: %q with damaged lines %v, want %q with %v", tt.name, got, bad, tt.want, tt.bad)
		}
	}
}

// TestJournalFails: a task that could not be written to the journal is not admitted, and nothing is
// charged.
func TestJournalFails(t *testing.T) {
	t.Parallel()
	d := testController{New(Config{TaskJournal: filepath.Join(t.TempDir(), "no such folder", "tasks")}), t}
	if err := d.RecoverTasks(); err == nil {
		t.Error("no error without a folder")
	}
	d.SetLimits("chat", Limits{TokensPerMinute: 60_000_000})
	if task, wait, err := d.Schedule(t.Context(), TaskRequest{Model: "chat", Tokens: 60_000_000}); err == nil || task.ID != "" {
		t.Error(task, wait, err)
	}
	if got := d.Stats("chat"); got.InFlight != 0 || got.Tokens != 60_000_000 {
		t.Errorf("%+v", got)
	}
}

func TestScheduleErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{TokensPerMinute: 60, MaxConcurrent: 1})
		d.startTokens(0)
		want := func(r TaskRequest, want error) {
			t.Helper()
			if task, wait, err := d.Schedule(t.Context(), r); !errors.Is(err, want) || wait != 0 || task != (Task{}) {
				t.Errorf("%+v, %v, %v, want %v", task, wait, err, want)
			}
		}
		want(TaskRequest{Model: "nobody"}, ErrUnknownModel)
		want(TaskRequest{Pool: "nobody"}, ErrUnknownModel)
		want(TaskRequest{Model: "chat", Tokens: 61}, ErrNeverFits)
		time.AfterFunc(time.Second, func() { d.Remove("chat") })
		want(TaskRequest{Model: "chat", MaxWait: time.Minute}, ErrRemoved)
		if id := newTaskID(); len(id) != 30 || id == newTaskID() {
			t.Error(fmt.Sprint("id ", id))
		}
	})
}
