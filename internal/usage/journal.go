package usage

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/internal/seal"
)

// journalSuffix ends the names of journals. The name before it is the writer.
const journalSuffix = ".jsonl"

// nextSuffix ends the name of the file that becomes the journal when it is complete.
const nextSuffix = ".new"

const (
	// minCompaction is the size in bytes below which a journal is not written anew.
	minCompaction = 1 << 20
	// growth is by which factor a journal grows before it is written anew.
	growth = 4
)

// journal is the file of one writer. Each line is a row as a JSON object with a checksum. The last
// line of a row counts. The process that writes a journal holds a lock on the file. journal is not
// safe for concurrent use.
type journal struct {
	path string
	// file is nil after a failed write; the next one begins a new file.
	file *os.File
	// size is the length of the file, compacted its length when it was last written anew.
	size, compacted int64
}

// line is one row in a journal.
type line struct {
	Start  int64   `json:"start"`
	Day    bool    `json:"day"`
	Tenant string  `json:"tenant"`
	Key    string  `json:"key"`
	Model  string  `json:"model"`
	Counts []int64 `json:"counts"`
	Sum    string  `json:"sum"`
}

func appendLine(b []byte, r *row) []byte {
	open := r.appendTo(append([]byte(nil), r.head...))
	return append(append(b, seal.Add(append(open, "]}"...))...), '\n')
}

// parseLine reads a line. The row may have fewer or more counts than this version knows.
func parseLine(text []byte) (rowKey, Counts, error) {
	var l line
	if err := seal.Unmarshal(text, &l); err != nil {
		return rowKey{}, Counts{}, err
	}
	if l.Sum == "" {
		return rowKey{}, Counts{}, seal.ErrDamaged
	}
	k, counts := l.row()
	return k, counts, nil
}

func (l *line) row() (rowKey, Counts) {
	var values [fieldCount]int64
	copy(values[:], l.Counts)
	return rowKey{period{l.Start, l.Day}, Subject{l.Tenant, l.Key, l.Model}}, ofValues(values)
}

// readJournal reads the rows of a journal. damaged is the number of lines that cannot be read. A
// last line without an end was cut off by a kill; it is not damaged, and the line before it counts.
func readJournal(text []byte) (t table, damaged int) {
	t = table{}
	for part := range bytes.Lines(text) {
		k, counts, err := parseLine(part)
		switch {
		case err == nil:
			t.of(k).Counts = counts
		case isWhole(part):
			damaged++
		}
	}
	return t, damaged
}

// isWhole reports whether a line has an end and is not empty.
func isWhole(text []byte) bool { return text[len(text)-1] == '\n' && len(bytes.TrimSpace(text)) > 0 }

// errLocked means that another process writes the journal.
var errLocked = errors.New("another process writes this journal")

// openJournal locks a journal and reads it. The error is errLocked if another process writes it. A
// damaged journal is kept under another name, and its good lines count.
func openJournal(path string) (*journal, table, error) {
	j, text, err := lockJournal(path, os.O_CREATE)
	if err != nil {
		return nil, nil, err
	}
	t, damaged := readJournal(text)
	err = keepDamaged(path, damaged)
	if j.compact(t) != nil { // as on a full disk: everything was read, and lines can follow
		err = errors.Join(err, j.endLine(text))
	}
	return j, t, err
}

// lockJournal opens and locks a journal, and returns its text. flag is os.O_CREATE if a missing
// journal is made, else 0. The error is errLocked if another process writes the journal. The file
// is open for writing also where it is only read, because NFS gives the lock to no other file.
func lockJournal(path string, flag int) (*journal, []byte, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|flag, 0o600)
	if err != nil {
		return nil, nil, err
	}
	var text []byte
	if err = lock(file, path); err == nil {
		text, err = os.ReadFile(path)
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return &journal{path: path, file: file, size: int64(len(text))}, text, nil
}

// keepDamaged keeps a journal with damaged lines under another name before the journal is written
// anew. The error says so; it is nil if no line is damaged.
func keepDamaged(path string, damaged int) error {
	if damaged == 0 {
		return nil
	}
	aside := path + time.Now().UTC().Format(".damaged-20060102T150405.000Z")
	err := fmt.Errorf("%w; it is kept as %s", damagedLines(path, damaged), aside)
	if linked := os.Link(path, aside); linked != nil {
		err = errors.Join(err, linked)
	}
	return err
}

func damagedLines(path string, lines int) error {
	return fmt.Errorf("usage: journal %s: damaged lines: %d", path, lines)
}

// ageJournal makes days of old hours, and drops old days, in a journal that no process writes. It
// holds the lock of the journal meanwhile, so a process that starts continues another journal. The
// error is errLocked if a process writes the journal. remove says that a journal without rows is
// removed.
func ageJournal(path string, now int64, keep Keep, remove bool) error {
	j, text, err := lockJournal(path, 0)
	if err != nil {
		return err
	}
	defer func() { j.file.Close() }() // compact replaces the file
	t, damaged := readJournal(text)
	changed := t.age(now, keep)
	switch {
	case len(t) == 0 && damaged == 0 && remove:
		return removeJournal(path)
	case changed:
		return errors.Join(keepDamaged(path, damaged), j.compact(t))
	}
	return nil
}

// removeJournal removes a journal and what a killed process has left of a compaction. The caller
// holds the lock of the journal.
func removeJournal(path string) error {
	if err := os.Remove(path + nextSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Remove(path)
}

// endLine makes the file end with a whole line, so that the next one is not spoiled. text is the
// content of the file.
func (j *journal) endLine(text []byte) error {
	whole := bytes.LastIndexByte(text, '\n') + 1
	if whole == len(text) {
		return nil
	}
	if _, _, err := parseLine(text[whole:]); err == nil {
		return j.write([]byte("\n"))
	}
	j.size = int64(whole)
	return j.file.Truncate(j.size)
}

// lock locks a file that was opened under a path. The error is errLocked if another process has the
// lock, or has replaced the file meanwhile.
func lock(file *os.File, path string) error {
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return errLocked
		}
		return fmt.Errorf("usage: locking %s: %w", path, err)
	}
	opened, err := file.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(opened, there) {
		return errLocked
	}
	return nil
}

// compact writes the rows to a new file, which replaces the old one in one step. After an error the
// old file is still in use.
func (j *journal) compact(t table) error {
	var text []byte
	for _, r := range t.all {
		text = appendLine(text, r)
	}
	next := j.path + nextSuffix
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if _, err = file.Write(text); err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = lock(file, next)
	}
	if err == nil {
		err = os.Rename(next, j.path)
	}
	if err != nil {
		file.Close()
		os.Remove(next) //nolint:errcheck // what matters is the error before
		return err
	}
	if j.file != nil {
		j.file.Close()
	}
	j.file, j.size, j.compacted = file, int64(len(text)), int64(len(text))
	for _, r := range t.all {
		r.dirty = false
	}
	return nil
}

// isLong reports whether the journal is worth writing anew.
func (j *journal) isLong() bool { return j.size > max(minCompaction, growth*j.compacted) }

// write appends lines. After an error the file has none of them, or is not used any more.
func (j *journal) write(lines []byte) error {
	if j.file == nil {
		return fs.ErrClosed
	}
	if _, err := j.file.Write(lines); err != nil {
		if cut := j.file.Truncate(j.size); cut != nil {
			j.file.Close()
			j.file = nil
		}
		return err
	}
	j.size += int64(len(lines))
	return nil
}

// writerOf returns the writer of a journal by its path.
func writerOf(path string) string { return strings.TrimSuffix(filepath.Base(path), journalSuffix) }
