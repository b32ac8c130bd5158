package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// errLocked means that another process has the lock.
var errLocked = errors.New("locked")

// lockFile is a file that one process at a time locks. The holder writes its identity into the
// file. The locks are open file description locks (fcntl(2)). The kernel drops them when the holder
// dies, and a stopped holder keeps them. Unlike the locks of flock, they can be tested without
// being acquired, so a guard that tests the claim never blocks a gateway that claims.
//
// fd is a bare descriptor: an unused os.File would drop the lock when the garbage collector closes
// it.
type lockFile struct {
	fd   int
	path string
}

// lockHolder is the content of a lock file.
type lockHolder struct {
	identity
	// Role is roleGateway or roleGuard.
	Role string `json:"role"`
}

const (
	roleGateway = "gateway"
	roleGuard   = "guard"
)

// openLock opens a lock file, and creates it if it does not exist. It does not lock the file.
func openLock(path string) (*lockFile, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, writeFault(filepath.Dir(path), fmt.Errorf("open %s: %w", path, err))
	}
	return &lockFile{fd: fd, path: path}, nil
}

// acquire locks the file and writes the holder. It fails with errLocked if another process has the
// lock.
func (l *lockFile) acquire(role string) error {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	err := unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_SETLK, &lock)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return errLocked
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", l.path, err)
	}
	// The lock counts, and the holder is only information: on a full or read-only file system the
	// lock is held without it.
	if self, err := identify(os.Getpid()); err == nil {
		l.writeHolder(lockHolder{self, role})
	}
	return nil
}

// holderSize is the size of a lock file with a holder in bytes. The content is written in place and
// padded to this size, so that a full disk does not keep a new holder from writing it.
const holderSize = 256

func (l *lockFile) writeHolder(h lockHolder) {
	data, err := json.Marshal(h)
	if err != nil {
		return
	}
	_, _ = unix.Pwrite(l.fd, append(data, bytes.Repeat([]byte{' '}, max(holderSize-len(data), 0))...), 0)
}

// heldByOther reports whether another process has the lock, without acquiring it.
func (l *lockFile) heldByOther() (bool, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	if err := unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("ask for the lock of %s: %w", l.path, err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// readHolder returns the process that has the lock. It returns the zero value if the file is still
// empty or names a process that is gone.
func (l *lockFile) readHolder() lockHolder {
	data := make([]byte, 4096)
	n, err := unix.Pread(l.fd, data, 0)
	var h lockHolder
	if err != nil || json.Unmarshal(data[:n], &h) != nil || !h.alive() {
		return lockHolder{}
	}
	return h
}

// holderOf returns the process that has the lock of the file at path, as readHolder does, and
// whether one has it. A file that cannot be opened or asked is held by nobody.
func holderOf(path string) (h lockHolder, held bool) {
	lock, err := openLock(path)
	if err != nil {
		return lockHolder{}, false
	}
	defer lock.close()
	if held, err := lock.heldByOther(); !held || err != nil {
		return lockHolder{}, false
	}
	return lock.readHolder(), true
}

// release releases the lock, if it was acquired, and keeps the file open.
func (l *lockFile) release() {
	l.writeHolder(lockHolder{})
	lock := unix.Flock_t{Type: unix.F_UNLCK, Whence: io.SeekStart}
	_ = unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_SETLK, &lock)
}

// close closes the file, which also releases the lock.
func (l *lockFile) close() { _ = unix.Close(l.fd) }
