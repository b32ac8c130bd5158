package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/seal"
)

// taskJournal keeps the tasks of this process over a restart. It has a line of JSON with a checksum
// for each task that was added, ended or renewed. A line is written before the caller gets its
// answer, without fsync: it survives the process, but perhaps not the machine. taskJournal.mu comes
// before Controller.mu.
type taskJournal struct {
	path string

	mu                sync.Mutex
	file              *os.File // guarded by mu
	lines             int      // guarded by mu
	linesAtCompaction int      // number of lines when the file was last compacted; guarded by mu
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
	// Ended is when a task with a key was completed; zero in the lines of older versions.
	Ended time.Time `json:",omitzero"`
}

// endOf is the line about a completed task.
func endOf(k taskKey, t endedTask) journalEntry {
	e := journalEntry{Op: opEnd, Task: Task{ID: t.id, Tenant: k.tenant}, Key: k.key}
	if k.key != "" {
		e.Ended = t.at
	}
	return e
}

// maxExtraLines is how many lines beyond twice those of the last compaction the file may have.
const maxExtraLines = 1000

// append writes one entry. The error is ErrNotRecorded.
func (j *taskJournal) append(c *Controller, e journalEntry) error {
	if j.path == "" {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil || j.lines > 2*j.linesAtCompaction+maxExtraLines {
		// A journal that only could not be made smaller still takes the line.
		if err := j.compactLocked(c, ""); err != nil && j.file == nil {
			return err
		}
	}
	if e.Op == opAdd && !c.taskExists(e.ID) {
		return nil // the task's end may have been written and compacted away already
	}
	line, err := lineOf(e)
	if err == nil {
		_, err = j.file.Write(line)
	}
	if err != nil {
		j.file.Close() // the file may end with a part of the line, which would spoil the next one
		j.file = nil
		return notRecorded(err)
	}
	j.lines++
	return nil
}

// lineOf is the line of one entry, with its checksum.
func lineOf(e journalEntry) ([]byte, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return append(seal.Add(text), '\n'), nil
}

// notRecorded makes ErrNotRecorded of what went wrong.
func notRecorded(err error) error { return fmt.Errorf("%w: %w", ErrNotRecorded, err) }

// compactLocked writes the live tasks and the remembered keys to a new file, which replaces the old
// one in one step. If aside is not empty, the old file is kept under that name. After an error the
// old file is still there, and is still open if it was. The error is ErrNotRecorded.
func (j *taskJournal) compactLocked(c *Controller, aside string) error {
	var text bytes.Buffer
	entries := c.journalEntries()
	for _, e := range entries {
		line, err := lineOf(e)
		if err != nil {
			return notRecorded(err)
		}
		text.Write(line)
	}
	next := j.path + ".new"
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return notRecorded(err)
	}
	if _, err = file.Write(text.Bytes()); err == nil && aside != "" {
		err = os.Link(j.path, aside)
	}
	if err == nil {
		err = os.Rename(next, j.path)
	}
	if err != nil {
		file.Close()
		os.Remove(next) //nolint:errcheck // what matters is the error before
		return notRecorded(err)
	}
	if j.file != nil {
		j.file.Close()
	}
	j.file, j.lines, j.linesAtCompaction = file, len(entries), len(entries)
	return nil
}

// reopenLocked goes on with the file as it is, when it could not be replaced. torn tells that its
// last line is cut off.
func (j *taskJournal) reopenLocked(torn bool) {
	file, err := os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil && torn {
		_, err = file.WriteString("\n")
	}
	if err != nil {
		return // the next entry tries to write a new file
	}
	j.file = file
}

func (c *Controller) taskExists(id string) bool {
	c.mu.Lock()
	defer c.unlockAndRun()
	return c.tasks.byID[id] != nil
}

// journalEntries returns what a new journal has: the live tasks, and the keys of those that were
// completed a short time ago.
func (c *Controller) journalEntries() []journalEntry {
	c.mu.Lock()
	defer c.unlockAndRun()
	var entries []journalEntry
	for _, t := range c.tasks.byID {
		entries = append(entries, journalEntry{Op: opAdd, Task: t.Task, Key: t.key})
	}
	now := time.Now()
	for _, k := range c.tasks.endedOrder {
		if c.tasks.hasEnded(k.tenant, k.key, now) {
			entries = append(entries, endOf(k, c.tasks.ended[k]))
		}
	}
	return entries
}

// RecoverTasks reads the journal. Tasks of before a restart that have neither ended nor expired
// hold their leases again, also of models without limits yet. The keys of completed tasks are
// remembered. Call it once, before all other methods. Without Config.TaskJournal it does nothing.
//
// The Controller works after an error too. The error says what could not be read or written. The
// tasks of all good lines hold their leases. A damaged journal is kept beside the new one, under
// its name with .damaged-TIME.
func (c *Controller) RecoverTasks() error {
	j := &c.taskJournal
	if j.path == "" {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	text, fault := os.ReadFile(j.path)
	if errors.Is(fault, fs.ErrNotExist) {
		return j.compactLocked(c, "")
	}
	live, ended, bad := readJournal(text)
	for _, e := range live {
		c.restoreTask(e)
	}
	for _, e := range ended {
		c.restoreEnd(e)
	}
	if len(bad) > 0 {
		fault = fmt.Errorf("damaged lines: %d, the first is line %d", len(bad), bad[0])
	}
	aside := ""
	if fault != nil {
		aside = j.path + time.Now().UTC().Format(".damaged-20060102T150405.000Z")
	}
	err := j.compactLocked(c, aside)
	if err != nil {
		j.reopenLocked(len(text) > 0 && text[len(text)-1] != '\n')
	}
	switch {
	case fault == nil:
		return err
	case err != nil:
		return fmt.Errorf("admission: task journal %s: %w; %w", j.path, fault, err)
	}
	return fmt.Errorf("admission: task journal %s: %w; tasks that hold their leases again: %d; the damaged file is kept as %s",
		j.path, fault, len(live), aside)
}

// readJournal returns the live tasks at the end of a journal, the ends of its lines with a key, and
// the numbers of the damaged lines, from 1. The lines of one task may come in any order, because a
// task may end while its first line waits to be written.
func readJournal(text []byte) (live, ended []journalEntry, bad []int) {
	gone := map[string]bool{}
	expires := map[string]time.Time{}
	added := map[string]journalEntry{}
	var order []string
	number := 0
	for line := range bytes.Lines(text) {
		number++
		var e journalEntry
		if seal.Unmarshal(line, &e) != nil || e.ID == "" {
			if len(bytes.TrimSpace(line)) > 0 {
				bad = append(bad, number)
			}
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
			gone[e.ID] = true
			if e.Key != "" {
				ended = append(ended, e)
			}
		default:
			bad = append(bad, number)
		}
	}
	for _, id := range order {
		e := added[id]
		if at, ok := expires[id]; ok {
			e.Expires = at
		}
		if !gone[id] {
			live = append(live, e)
		}
	}
	return live, ended, bad
}

// steady returns a time that was read from a file as one that a later step of the machine's clock
// does not move.
func steady(t, now time.Time) time.Time { return now.Add(t.Sub(now)) }

// restoreEnd remembers the key of a task that was completed.
func (c *Controller) restoreEnd(e journalEntry) {
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	e.Ended = steady(e.Ended, now)
	if e.Ended.After(now) { // the clock has gone back
		e.Ended = now
	}
	c.tasks.rememberEnd(taskKey{e.Tenant, e.Key}, e.ID, e.Ended)
}

// restoreTask gives a task its lease again.
func (c *Controller) restoreTask(e journalEntry) {
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	if !now.Before(e.Expires) || c.tasks.byID[e.ID] != nil {
		return
	}
	if e.Until.IsZero() { // a version wrote it that did not bound the lifetime of tasks
		e.Until = now.Add(defaultTaskLifetime)
	}
	e.Expires, e.Until = steady(e.Expires, now), steady(e.Until, now)
	l := c.recoverLease(c.findOrCreateGate(e.Model), RecoveredRequest{Tenant: e.Tenant, ID: e.ID, Tokens: int(e.Tokens)}, now)
	l.task, l.account = true, &account{estimate: int64(l.tokens), lease: l}
	l.tenant.tasks++
	t := &task{Task: e.Task, key: e.Key, lease: l}
	c.tasks.add(t)
	c.setExpiryTimer()
	if c.shared != nil {
		claim := c.claimForLease(l, &TaskClaim{Key: e.Key, Lease: e.Expires.Sub(now), Lifetime: e.Until.Sub(now)}, l.tokens)
		claim.Recovered = true
		c.shared.ReportLease(claim)
	}
}
