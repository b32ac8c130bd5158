package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// errLocked: somebody else has the lock.
var errLocked = errors.New("locked")

// lockFile is a file that one process at a time locks and writes its name into. The locks are open file description locks
// (fcntl(2)): the kernel drops them when the holder dies, a stopped holder keeps them, and unlike flock's they can be asked for without
// being taken, so that a guard that looks never stands in the way of a gateway that claims.
//
// It keeps a bare descriptor: an os.File would drop the lock when the garbage collector finds it unused.
type lockFile struct {
	fd   int
	path string
}

// holder is what a lock file says of who has the lock.
type holder struct {
	identity
	// Role is roleGateway or roleGuard.
	Role string `json:"role"`
}

const (
	roleGateway = "gateway"
	roleGuard   = "guard"
)

func openLock(path string) (*lockFile, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &lockFile{fd: fd, path: path}, nil
}

// take locks the file and writes who has it. It fails with errLocked when somebody else has.
func (l *lockFile) take(role string) error {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	err := unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_SETLK, &lock)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return errLocked
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", l.path, err)
	}
	self, err := identify(os.Getpid())
	if err != nil {
		return err
	}
	data, err := json.Marshal(holder{self, role})
	if err != nil {
		return err
	}
	if err := unix.Ftruncate(l.fd, 0); err != nil {
		return fmt.Errorf("write %s: %w", l.path, err)
	}
	if _, err := unix.Pwrite(l.fd, data, 0); err != nil {
		return fmt.Errorf("write %s: %w", l.path, err)
	}
	return nil
}

// held tells whether somebody else has the lock, without touching it.
func (l *lockFile) held() (bool, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	if err := unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("ask for the lock of %s: %w", l.path, err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// holder reads who has the lock, and is empty when that is not to be seen: between the lock and the name the file is empty,
// or names somebody who is gone.
func (l *lockFile) holder() holder {
	data := make([]byte, 4096)
	n, err := unix.Pread(l.fd, data, 0)
	var h holder
	if err != nil || json.Unmarshal(data[:n], &h) != nil || !h.alive() {
		return holder{}
	}
	return h
}

// free gives the lock back, if it was taken, but keeps the file open.
func (l *lockFile) free() {
	_ = unix.Ftruncate(l.fd, 0)
	lock := unix.Flock_t{Type: unix.F_UNLCK, Whence: io.SeekStart}
	_ = unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_SETLK, &lock)
}

// close forgets the file and with it the lock.
func (l *lockFile) close() { _ = unix.Close(l.fd) }
