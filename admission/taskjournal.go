package admission

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// taskJournal keeps the tasks of this process over a restart. It has a line of JSON for each task
// that was added, ended or renewed. A line is written before the caller gets its answer, without
// fsync: it survives the process, but perhaps not the machine. taskJournal.mu comes before
// Controller.mu.
type taskJournal struct {
	path string

	mu                sync.Mutex
	file              *os.File // guarded by mu
	lines             int      // guarded by mu
	tasksAtCompaction int      // number of tasks when the file was last compacted; guarded by mu
}

type journalOp string

const (
	opAdd   journalOp = "add"
	opEnd   journalOp = "end"
	opRenew journalOp = "renew"
)

// journalEntry is one line of the file.
type journalEntry struct {
	Op journalOp `json:"op"`
	Task
	Key string `json:",omitempty"`
}

// maxExtraLines is the number of lines beyond twice the tasks after which the file is compacted.
const maxExtraLines = 1000

// append writes one entry.
func (j *taskJournal) append(c *Controller, e journalEntry) error {
	if j.path == "" {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil || j.lines > 2*j.tasksAtCompaction+maxExtraLines {
		if err := j.compactLocked(c); err != nil {
			return err
		}
	}
	if e.Op == opAdd && !c.taskExists(e.ID) {
		return nil // the task's end may have been written and compacted away already
	}
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("admission: task journal: %w", err)
	}
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		j.file.Close() // the file may end with a part of the line, which would spoil the next one
		j.file = nil
		return fmt.Errorf("admission: task journal: %w", err)
	}
	j.lines++
	return nil
}

// compactLocked writes the live tasks to a new file, which replaces the old one.
func (j *taskJournal) compactLocked(c *Controller) error {
	var text bytes.Buffer
	live := c.allTasks()
	for _, t := range live {
		line, err := json.Marshal(journalEntry{Op: opAdd, Task: t.Task, Key: t.key})
		if err != nil {
			return fmt.Errorf("admission: task journal: %w", err)
		}
		text.Write(append(line, '\n'))
	}
	file, err := os.CreateTemp(filepath.Dir(j.path), filepath.Base(j.path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("admission: task journal: %w", err)
	}
	if _, err = file.Write(text.Bytes()); err == nil {
		err = os.Rename(file.Name(), j.path)
	}
	if err != nil {
		file.Close()
		os.Remove(file.Name()) //nolint:errcheck // what matters is the error before
		return fmt.Errorf("admission: task journal: %w", err)
	}
	if j.file != nil {
		j.file.Close()
	}
	j.file, j.lines, j.tasksAtCompaction = file, len(live), len(live)
	return nil
}

// taskExists reports whether the task has not ended.
func (c *Controller) taskExists(id string) bool {
	c.mu.Lock()
	defer c.unlockAndRun()
	return c.tasks.byID[id] != nil
}

func (c *Controller) allTasks() []task {
	c.mu.Lock()
	defer c.unlockAndRun()
	live := make([]task, 0, len(c.tasks.byID))
	for _, t := range c.tasks.byID {
		live = append(live, *t)
	}
	return live
}

// RecoverTasks reads the journal: tasks of before a restart that have neither ended nor expired
// hold their leases again, also of models without limits yet. Call it once, before all other
// methods. Without Config.TaskJournal it does nothing.
func (c *Controller) RecoverTasks() error {
	if c.taskJournal.path == "" {
		return nil
	}
	c.taskJournal.mu.Lock()
	defer c.taskJournal.mu.Unlock()
	text, err := os.ReadFile(c.taskJournal.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("admission: task journal: %w", err)
	}
	for _, e := range readJournal(text) {
		c.restoreTask(e)
	}
	return c.taskJournal.compactLocked(c)
}

// readJournal returns the live tasks at the end of a journal. It ignores a line that is cut off.
// The lines of one task may come in any order, because a task may end while its first line waits to
// be written.
func readJournal(text []byte) []journalEntry {
	ended := map[string]bool{}
	expires := map[string]time.Time{}
	added := map[string]journalEntry{}
	var order []string
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for lines.Scan() {
		var e journalEntry
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		switch e.Op {
		case opAdd:
			if _, ok := added[e.ID]; !ok {
				order = append(order, e.ID)
			}
			added[e.ID] = e
		case opRenew:
			expires[e.ID] = e.Expires
		case opEnd:
			ended[e.ID] = true
		}
	}
	var live []journalEntry
	for _, id := range order {
		e := added[id]
		if at, ok := expires[id]; ok {
			e.Expires = at
		}
		if !ended[id] {
			live = append(live, e)
		}
	}
	return live
}

// restoreTask gives a task its lease again.
func (c *Controller) restoreTask(e journalEntry) {
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	if !now.Before(e.Expires) || c.tasks.byID[e.ID] != nil {
		return
	}
	l := c.recoverLease(c.findOrCreateGate(e.Model), RecoveredRequest{Tenant: e.Tenant, ID: e.ID, Tokens: int(e.Tokens)}, now)
	l.task = true
	l.tenant.tasks++
	t := &task{Task: e.Task, key: e.Key, lease: l}
	c.tasks.add(t)
	c.setExpiryTimer()
	if c.shared != nil {
		c.shared.ReportLease(c.claimForLease(l, &TaskClaim{Key: e.Key, Lease: e.Expires.Sub(now)}, 0))
	}
}
