package limits

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockRetry is the pause between attempts to lock the file. A change holds the lock for one small
// write.
const lockRetry = 5 * time.Millisecond

// File returns a Backend in a JSON file. The file is replaced in one step, so a crash leaves the
// old one or the new one. Several processes may use the same file. A file that cannot be read is an
// error and stays. A file that Save did not write is an error once: it is renamed to its name with
// .bad, and the next Load finds none.
func File(path string) Backend { return &fileBackend{path} }

type fileBackend struct{ path string }

// content is the content of the file.
type content struct {
	Limits Records `json:"limits"`
}

func (f *fileBackend) Load(ctx context.Context) (Records, string, error) {
	records, version, err := f.read()
	if errors.Is(err, errFaulty) {
		return nil, "", f.moveAside(ctx)
	}
	return records, version, err
}

var errFaulty = errors.New("faulty")

// read needs no lock, because the file is replaced in one step.
func (f *fileBackend) read() (Records, string, error) {
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return Records{}, "", nil
	}
	if err != nil {
		return nil, "", err // the error names the file
	}
	var c content
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return nil, "", fmt.Errorf("%s is %w: %w", f.path, errFaulty, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) || c.Limits == nil {
		return nil, "", fmt.Errorf("%s is %w: it is not one object with limits", f.path, errFaulty)
	}
	sum := sha256.Sum256(data)
	return c.Limits, hex.EncodeToString(sum[:8]), nil
}

// moveAside renames a faulty file and returns an error that says so. Another process may have done
// it meanwhile.
func (f *fileBackend) moveAside(ctx context.Context) error {
	unlock, err := f.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_, _, fault := f.read()
	if !errors.Is(fault, errFaulty) {
		return fault
	}
	aside := f.path + ".bad"
	for i := 1; ; i++ {
		if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
			break
		}
		aside = fmt.Sprintf("%s.bad.%d", f.path, i)
	}
	if err := os.Rename(f.path, aside); err != nil {
		return errors.Join(fault, err)
	}
	return fmt.Errorf("%w; it was renamed to %s", fault, aside)
}

func (f *fileBackend) Save(ctx context.Context, changed Records, version string) (bool, error) {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return false, err
	}
	unlock, err := f.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	records, now, err := f.read()
	if err != nil || now != version {
		return false, err
	}
	records.apply(changed)
	data, err := json.MarshalIndent(content{records}, "", "  ")
	if err != nil {
		return false, err
	}
	if err := f.replace(append(data, '\n')); err != nil {
		return false, err
	}
	return true, nil
}

// HasLost implements Backend. The versions of the file have no order.
func (f *fileBackend) HasLost(version, _ string) bool { return version == "" }

// replace writes the file anew. The caller holds the lock of the file.
func (f *fileBackend) replace(data []byte) error {
	temporary := f.path + ".tmp"
	// left by a crash
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	t, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer t.Close()
	if _, err := t.Write(data); err != nil {
		return err
	}
	if err := t.Sync(); err != nil {
		return err
	}
	if err := os.Rename(temporary, f.path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// lock keeps other processes, and other Files of this process, from changing the file.
func (f *fileBackend) lock(ctx context.Context) (func(), error) {
	l, err := os.OpenFile(f.path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(l.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { l.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			l.Close()
			return nil, &fs.PathError{Op: "lock", Path: l.Name(), Err: err}
		}
		select {
		case <-time.After(lockRetry):
		case <-ctx.Done():
			l.Close()
			return nil, fmt.Errorf("lock %s: %w", l.Name(), ctx.Err())
		}
	}
}
