package admission

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// journalOf writes a journal with three tasks and returns its content and the tasks.
func journalOf(t testing.TB) (text []byte, tasks []Task) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tasks.jsonl")
	c := New(Config{TaskJournal: path})
	if err := c.RecoverTasks(); err != nil {
		t.Fatal(err)
	}
	c.SetLimits("chat", Limits{})
	for range 3 {
		task, _, err := c.Schedule(context.Background(), TaskRequest{Model: "chat", Tenant: "acme", Tokens: 7, Lease: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		tasks = append(tasks, task)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c.taskJournal.file.Close()
	return text, tasks
}

// recovered starts a Controller with a journal of this content. It returns the files of the folder
// by name.
func recovered(t testing.TB, content []byte) (c *Controller, files map[string]string, fault error) {
	t.Helper()
	folder := t.TempDir()
	path := filepath.Join(folder, "tasks.jsonl")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	c = New(Config{TaskJournal: path})
	fault = c.RecoverTasks()
	c.taskJournal.file.Close()
	names, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	for _, entry := range names {
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[entry.Name()] = string(text)
	}
	return c, files, fault
}

// known counts the tasks that hold their leases. Each must be as it was.
func known(t testing.TB, c *Controller, tasks []Task) int {
	t.Helper()
	n := 0
	c.SetLimits("chat", Limits{})
	for _, task := range tasks {
		got, err := c.Task(context.Background(), task.Tenant, task.ID)
		if err != nil {
			continue
		}
		if n++; got.Model != task.Model || got.Tokens != task.Tokens || !got.Expires.Round(0).Equal(task.Expires.Round(0)) {
			t.Errorf("task %+v came back as %+v", task, got)
		}
	}
	if all := c.Stats("chat").InFlight; all != n {
		t.Errorf("%d leases of %d tasks", all, n)
	}
	return n
}

// A damaged journal is kept, the error says so, and the tasks of all good lines hold their leases.
func TestX13_DamagedJournalIsKept(t *testing.T) {
	t.Parallel()
	text, tasks := journalOf(t)
	lines := strings.SplitAfter(string(text), "\n")
	damaged := lines[0] + "\x00\x00\x00\n" + lines[2]
	c, files, fault := recovered(t, []byte(damaged))
	if n := known(t, c, tasks); n != 2 {
		t.Errorf("%d tasks are back, want those of the two good lines", n)
	}
	if fault == nil || !strings.Contains(fault.Error(), "damaged lines: 1, the first is line 2") {
		t.Errorf("error %v does not say what is damaged", fault)
	}
	kept := ""
	for name, content := range files {
		if strings.HasPrefix(name, "tasks.jsonl.damaged-") && content == damaged {
			kept = name
		}
	}
	if kept == "" || !strings.Contains(fault.Error(), kept) {
		t.Errorf("the damaged file was not kept, or %v does not name it: %v", fault, files)
	}
	again, _, fault := recovered(t, []byte(files["tasks.jsonl"]))
	if n := known(t, again, tasks); n != 2 || fault != nil {
		t.Errorf("after the next start %d tasks are back: %v", n, fault)
	}
}

// Whatever byte is damaged and wherever the journal is cut, at most one task is lost, none is
// changed, and a loss is told.
func TestX13_JournalDamagedAtEveryByte(t *testing.T) {
	t.Parallel()
	text, tasks := journalOf(t)
	for i := range text {
		damaged := append([]byte{}, text...)
		damaged[i] ^= 1 << (i % 8)
		c, _, fault := recovered(t, damaged)
		if n := known(t, c, tasks); n < 2 && damaged[i] != '\n' && text[i] != '\n' || n < 3 && fault == nil {
			t.Errorf("byte %d: %d tasks are back, error %v", i, n, fault)
		}
		c, _, fault = recovered(t, text[:i])
		whole := strings.Count(string(text[:i]), "\n")
		if n := known(t, c, tasks); n < whole || n > whole+1 || n == whole && i > 0 && text[i-1] != '\n' && fault == nil {
			t.Errorf("cut at byte %d: %d tasks are back of %d whole lines, error %v", i, n, whole, fault)
		}
	}
}

func FuzzTaskJournal(f *testing.F) {
	text, _ := journalOf(f)
	f.Add(text)
	f.Add([]byte(`{"op":"add","ID":"a","Model":"chat","Tokens":-1,"Expires":"9999-01-01T00:00:00Z"}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		c, _, _ := recovered(t, content)
		if _, _, err := c.Schedule(t.Context(), TaskRequest{Model: "chat"}); err != nil && !errors.Is(err, ErrUnknownModel) && !errors.Is(err, ErrNotRecorded) {
			t.Errorf("Schedule after the start: %v", err)
		}
	})
}

// On a full disk tasks hold their leases over a start, a new task is refused with ErrNotRecorded,
// and is recorded as soon as there is room.
func TestX5_JournalOnAFullDisk(t *testing.T) {
	folder := t.TempDir()
	testutil.SmallDisk(t, folder, "64k")
	path := filepath.Join(folder, "tasks.jsonl")
	text, tasks := journalOf(t)
	if err := os.WriteFile(path, append(text, strings.Repeat("\n", 4096-len(text))...), 0o600); err != nil {
		t.Fatal(err)
	}
	free := testutil.FillDisk(t, folder)
	c := New(Config{TaskJournal: path})
	c.SetLimits("chat", Limits{})
	if err := c.RecoverTasks(); !errors.Is(err, ErrNotRecorded) {
		t.Errorf("RecoverTasks = %v", err)
	}
	if n := known(t, c, tasks); n != 3 {
		t.Errorf("%d tasks are back", n)
	}
	if _, _, err := c.Schedule(t.Context(), TaskRequest{Model: "chat"}); !errors.Is(err, ErrNotRecorded) {
		t.Errorf("Schedule = %v", err)
	}
	if task, err := c.Renew(t.Context(), "acme", tasks[0].ID, 2*time.Hour); !errors.Is(err, ErrNotRecorded) || task.Expires.Before(tasks[0].Expires) {
		t.Errorf("Renew = %+v, %v", task, err)
	}
	if n := c.Stats("chat").InFlight; n != 3 {
		t.Errorf("%d leases after a refused task, want 3", n)
	}
	free()
	task, _, err := c.Schedule(t.Context(), TaskRequest{Model: "chat", Tenant: "acme", Lease: time.Hour})
	if err != nil {
		t.Fatalf("with room again: %v", err)
	}
	c.taskJournal.file.Close()
	again := New(Config{TaskJournal: path})
	if err := again.RecoverTasks(); err != nil {
		t.Error(err)
	}
	if _, err := again.Task(t.Context(), "acme", task.ID); err != nil {
		t.Error(err)
	}
	again.taskJournal.file.Close()
}

// A step of the machine's clock after a restart ends no task. The times read from the journal are
// on the clock that nobody sets, as those of new tasks are.
func TestX13_RecoveredTasksOutliveAStepOfTheClock(t *testing.T) {
	content, tasks := journalOf(t)
	c, _, err := recovered(t, content)
	if err != nil {
		t.Fatal(err)
	}
	for _, before := range tasks {
		for _, at := range []time.Time{c.tasks.byID[before.ID].Expires, c.tasks.byID[before.ID].Until} {
			if !strings.Contains(at.String(), " m=") { // it has no reading of the steady clock
				t.Errorf("task %s: %s follows the clock of the machine", before.ID, at)
			}
		}
		if d := c.tasks.byID[before.ID].Expires.Sub(before.Expires).Abs(); d > time.Second {
			t.Errorf("task %s: expires %s later than before", before.ID, d)
		}
	}
}
