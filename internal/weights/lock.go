package weights

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockInterval is how often a fetch that waits for another tries to get the lock.
const lockInterval = 100 * time.Millisecond

// lock acquires the lock of a blob: flock(2) on a file, as huggingface_hub does. The kernel
// releases it when the process dies. While another process or another fetch of this one holds the
// lock, lock calls waiting now and then.
func lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && sameFile(f, path) {
			return func() { _ = f.Close() }, nil
		}
		_ = f.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		waiting()
		if err := sleep(ctx, lockInterval); err != nil {
			return nil, err
		}
	}
}

// sameFile reports whether the open file is the one at the path. Programs that clean the cache
// remove lock files.
func sameFile(f *os.File, path string) bool {
	opened, err := f.Stat()
	named, errNamed := os.Stat(path)
	return err == nil && errNamed == nil && os.SameFile(opened, named)
}

// sleep pauses. It returns the error of ctx if ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
