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
	"unicode"
)

const (
	// largestLog is how far a log file may grow before it is rotated, and how much of it is kept then, in bytes.
	largestLog = 10 << 20
	// tailBytes is how much of a log's end is looked at for its last lines.
	tailBytes = 64 << 10
	// tailLine is where a line is cut, in bytes.
	tailLine = 400
)

// openLog opens a log file to append to it, and tells where its end is. One that has grown too large is rotated first.
func (d *Dir) openLog(path string) (*os.File, int64, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, 0, fmt.Errorf("make the folder of the log file: %w", err)
	}
	if _, err := d.rotate(path); err != nil {
		return nil, 0, err
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

// rotate empties a log file that has grown too large, and reports whether it did. The last 10 MiB of it become <path>.1, and what was
// that becomes <path>.2, so that a log takes little more than 30 MiB. The file stays the same one: whoever writes to it goes on, at its
// new end, because it is open for appending. What is written between the copy and the truncation is lost.
//
// One log is rotated at a time: a process may start anew while RotateLogs is at its log.
func (d *Dir) rotate(path string) (bool, error) {
	d.rotating.Lock()
	defer d.rotating.Unlock()
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() <= largestLog {
		return false, nil // what is not there, or is no file, does not grow
	}
	err = copyEnd(path, path+".new", largestLog)
	if err == nil {
		err = os.Rename(path+".1", path+".2")
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(path+".new", path+".1")
	}
	if err == nil {
		err = os.Truncate(path, 0)
	}
	if err != nil {
		return false, fmt.Errorf("rotate the log file: %w", err)
	}
	return true, nil
}

// copyEnd copies the last bytes of a file, at most so many, from the beginning of a line on. A copy that fails leaves nothing.
func copyEnd(from, to string, most int64) (err error) {
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
	begin := max(size-most, 0)
	reader := bufio.NewReader(io.NewSectionReader(source, begin, size-begin))
	if begin > 0 { // in the middle of a line
		if _, err := reader.ReadSlice('\n'); err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
	_, err = io.Copy(target, reader)
	return err
}

// RotateLogs looks at the logs of the processes that run and rotates those above 10 MiB: a log is emptied while its process goes on
// writing to it. The last 10 MiB stay as <file>.1, those of the time before as <file>.2. Lines that are written in the moment
// of a rotation may be lost. It needs the claim, and returns what could not be done.
func (d *Dir) RotateLogs() error {
	d.mu.Lock()
	running := slices.Collect(maps.Values(d.watched))
	d.mu.Unlock()
	var errs []error
	for _, p := range running {
		rotated, err := d.rotate(p.record.LogFile) // without the lock: this is the slow part
		if rotated {
			err = d.setLogStart(p)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.record.Name, err))
		}
	}
	return errors.Join(errs...)
}

// setLogStart notes that all of the log is this start's. A process that has ended meanwhile has no record to change.
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

// tail returns the last n lines that are not empty, from the given offset on. What cannot be read has no lines. A file that ends before
// the offset was rotated: then it is all of this start.
func tail(path string, from int64, n int) []string {
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
	if begin > from { // it begins in the middle of a line
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		if line = readable(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(len(lines)-n, 0):]
}

// readable makes a line fit to be shown: progress bars and colours come with control characters.
func readable(line string) string {
	line = strings.TrimRight(line, "\r\n")
	if i := strings.LastIndexByte(line, '\r'); i >= 0 {
		line = line[i+1:] // what a terminal would show in the end
	}
	line = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(line, "\uFFFD"))
	if len(line) > tailLine {
		line = strings.ToValidUTF8(line[:tailLine], "") + "…"
	}
	return strings.TrimSpace(line)
}
