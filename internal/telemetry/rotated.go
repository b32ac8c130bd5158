package telemetry

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// rotatedCheck is how often a rotated file looks whether it is still the one at its path.
const rotatedCheck = time.Second

// rotated is a log file with a greatest size. It is for one goroutine at a time. Several processes
// may write the same path, as during a restart, and another program may move the file away: both
// are seen within rotatedCheck.
type rotated struct {
	path     string
	maxSize  int64
	maxFiles int

	file    *os.File
	size    int64
	checked time.Time
	// partial says that the file ends with a part of a line of this process, as on a full disk.
	partial bool
}

// openRotated opens a log file, or makes it. It keeps maxFiles files beside it: path.1 is the
// newest. With a maxSize of 0 it never renames a file.
func openRotated(path string, maxSize int64, maxFiles int) (*rotated, error) {
	r := &rotated{path: path, maxSize: maxSize, maxFiles: maxFiles}
	return r, r.open()
}

// open opens the file at the path anew.
func (r *rotated) open() error {
	file, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("access log: %w", err)
	}
	st, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	if r.file != nil {
		_ = r.file.Close() // its lines are written
	}
	r.file, r.size, r.checked, r.partial = file, st.Size(), time.Now(), false
	return nil
}

// Write implements io.Writer for whole lines. After a line that was written in part it ends that
// line first. It does not cut the part off, because another process may have written behind it.
func (r *rotated) Write(lines []byte) (int, error) {
	if time.Since(r.checked) >= rotatedCheck {
		if err := r.follow(); err != nil {
			return 0, err
		}
	}
	if r.maxSize > 0 && r.size > 0 && r.size+int64(len(lines)) > r.maxSize {
		if err := r.rotate(); err != nil {
			return 0, err
		}
	}
	if r.partial {
		if _, err := r.append([]byte{'\n'}); err != nil {
			return 0, err
		}
	}
	return r.append(lines)
}

// append writes to the end of the file.
func (r *rotated) append(b []byte) (int, error) {
	n, err := r.file.Write(b)
	r.size += int64(n)
	if n > 0 {
		r.partial = b[n-1] != '\n'
	}
	return n, err
}

// follow opens the path anew if another file is there, or none.
func (r *rotated) follow() error {
	r.checked = time.Now()
	own, err := r.file.Stat()
	if err != nil {
		return err
	}
	r.size = own.Size() // another process may write too
	if at, err := os.Stat(r.path); err != nil || !os.SameFile(own, at) {
		return r.open()
	}
	return nil
}

// rotate renames the file and those before it, and begins a new one. If another process has just
// done so, it only opens the new file.
func (r *rotated) rotate() error {
	own, err := r.file.Stat()
	if at, errAt := os.Stat(r.path); err == nil && errAt == nil && os.SameFile(own, at) {
		if err = r.rename(); err != nil {
			return err
		}
	}
	return r.open()
}

// rename makes path.1 of path, path.2 of path.1, and so on. The oldest goes.
func (r *rotated) rename() error {
	if r.maxFiles == 0 {
		return os.Remove(r.path)
	}
	name := func(i int) string { return fmt.Sprintf("%s.%d", r.path, i) }
	for i := r.maxFiles - 1; i > 0; i-- {
		if err := os.Rename(name(i), name(i+1)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.Rename(r.path, name(1))
}

// Close closes the file.
func (r *rotated) Close() error { return r.file.Close() }
