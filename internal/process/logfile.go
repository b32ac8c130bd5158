package process

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/internal/loglines"
	"github.com/sluice-gateway/sluice/internal/redact"
)

const (
	// maxLogBytes is the size above which a log file is rotated, and the size of the part that is
	// kept.
	maxLogBytes = 10 << 20
	// tailBytes is the size of the end of a log in which the last lines are searched.
	tailBytes = 64 << 10
	// maxTailLineBytes is the length at which a line is cut.
	maxTailLineBytes = 400
)

// openLog opens a log file for appending and returns the offset of its end. If the file is too
// large, openLog rotates it first. A log that cannot be rotated grows on.
func (d *Dir) openLog(path string) (*os.File, int64, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, 0, fmt.Errorf("make the folder of the log file: %w", err)
	}
	if _, err := d.rotate(path); err != nil {
		d.log.Warn("rotating a log file failed", textField("file", path), errorField(err))
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open the log file: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, 0, fmt.Errorf("open the log file: %w", err)
	}
	return file, info.Size(), nil
}

// rotate empties a log file that is larger than maxLogBytes and reports whether it did. The last 10
// MiB become <path>.1, and the former <path>.1 becomes <path>.2, so that a log takes little more
// than 30 MiB. The file stays the same: processes that write to it continue at its new end, because
// they opened it for appending. What they write between the copy and the truncation is lost.
//
// Where the file system has no room for the copy, <path>.2 goes first and then <path>.1. If that is
// not enough, the file is emptied without a copy.
//
// One log is rotated at a time, because a process may start anew while RotateLogs rotates its log.
func (d *Dir) rotate(path string) (bool, error) {
	d.rotateMu.Lock()
	defer d.rotateMu.Unlock()
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() <= maxLogBytes {
		// A path that is missing or no regular file does not grow.
		return false, nil
	}
	err = keepTail(path)
	for _, old := range []string{path + ".2", path + ".1"} {
		if isFull(err) && os.Remove(old) == nil {
			err = keepTail(path)
		}
	}
	if isFull(err) {
		d.log.Warn("log file emptied without a copy", textField("file", path), errorField(err))
		err = nil
	}
	if err == nil {
		err = os.Truncate(path, 0)
	}
	if err != nil {
		return false, fmt.Errorf("rotate the log file: %w", err)
	}
	return true, nil
}

// keepTail copies the end of a log file to <path>.1. The former <path>.1 becomes <path>.2.
func keepTail(path string) error {
	err := copyTail(path, path+".new", maxLogBytes)
	if err == nil {
		err = os.Rename(path+".1", path+".2")
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(path+".new", path+".1")
	}
	return err
}

// copyTail copies the last bytes of a file, at most limit, beginning with a complete line. If it
// fails, it leaves no file.
func copyTail(from, to string, limit int64) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	size, err := source.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, target.Close()); err != nil {
			_ = os.Remove(to)
		}
	}()
	begin := max(size-limit, 0)
	reader := bufio.NewReader(io.NewSectionReader(source, begin, size-begin))
	// The copy would begin in the middle of a line.
	if begin > 0 {
		if _, err := reader.ReadSlice('\n'); err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
	_, err = io.Copy(target, reader)
	return err
}

// RotateLogs rotates the logs of the running processes that are larger than 10 MiB, while the
// processes write to them. The last 10 MiB stay as <file>.1, and those before as <file>.2. Lines
// that are written at the moment of a rotation may be lost. The directory must be claimed. The
// errors of all logs are joined.
func (d *Dir) RotateLogs() error {
	d.mu.Lock()
	running := slices.Collect(maps.Values(d.watched))
	d.mu.Unlock()
	var errs []error
	for _, p := range running {
		// Rotating is slow, so d.mu is not held.
		rotated, err := d.rotate(p.record.LogFile)
		if rotated {
			err = d.setLogStart(p)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.Record().Name, err))
		}
	}
	return errors.Join(errs...)
}

// setLogStart records that the whole log belongs to this start. The record of a process that has
// ended is gone and stays so.
func (d *Dir) setLogStart(p *Process) error {
	p.logStart.Store(0)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim == nil || d.watched[p.record.Name] != p {
		return nil
	}
	p.record.LogStart = 0
	return d.writeRecord(p.record)
}

// tailOptions says which lines tail returns, and how.
type tailOptions struct {
	// from is the offset in bytes after which lines are read. lines is their greatest number.
	from  int64
	lines int
	// redactor hides secrets. It may be nil.
	redactor *redact.Redactor
}

// tail returns the last lines of a log that are not empty, without secrets. It returns none if the
// file cannot be read. A file that ends before the offset was rotated, so all of it belongs to this
// start.
func tail(path string, o tailOptions) []string {
	from := o.from
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil
	}
	if from > size {
		from = 0
	}
	begin := max(from, size-tailBytes)
	data, err := io.ReadAll(io.NewSectionReader(file, begin, max(size-begin, 0)))
	if err != nil {
		return nil
	}
	// data begins in the middle of a line.
	if begin > from {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(loglines.Printable(line)); line != "" {
			lines = append(lines, line)
		}
	}
	lines = lines[max(len(lines)-o.lines, 0):]
	for i, line := range lines {
		// The line is cut last, because half a secret would not be found.
		lines[i] = loglines.Cut(o.redactor.Text(line), maxTailLineBytes)
	}
	return lines
}

// LogFile returns the path of the log of the process with this name, to which its stdout and stderr
// are appended. A log of more than 10 MiB is rotated at the start and by RotateLogs. The file may
// not exist.
func (d *Dir) LogFile(name string) string {
	return filepath.Join(d.path, "logs", fileName(name)+".log")
}
