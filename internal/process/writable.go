package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// probeSize is the size in bytes of the file that CheckWritable writes: one block of most file
// systems.
const probeSize = 4096

// ErrRemoved means that the directory or its files were removed while this process had claimed it.
var ErrRemoved = errors.New("the files of the directory were removed or replaced")

// checkKept returns ErrRemoved if the file of the claim is not at its path any more. It returns nil
// if this process has not claimed the directory.
func (d *Dir) checkKept() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim == nil {
		return nil
	}
	var held, there unix.Stat_t
	if err := unix.Fstat(d.claim.fd, &held); err != nil {
		return err
	}
	err := unix.Stat(d.claim.path, &there)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (there.Dev != held.Dev || there.Ino != held.Ino) {
		return ErrRemoved
	}
	return nil // what keeps the file from being seen keeps others from being written
}

// CheckWritable tries whether files can be written in the directory: it writes a small file and
// removes it. The error says what is wrong, with the free bytes, and what to do. The error is
// ErrRemoved if files could be written, and would not be those of this process. Any number of
// goroutines may call it, one after the other.
func (d *Dir) CheckWritable() error {
	if err := d.checkKept(); err != nil {
		return err
	}
	return d.TryWrite()
}

// TryWrite is CheckWritable without ErrRemoved. It takes no lock, so it waits for the disk alone.
func (d *Dir) TryWrite() error {
	path := filepath.Join(d.path, "writable.probe")
	err := os.WriteFile(path, make([]byte, probeSize), 0o600)
	if errRemove := os.Remove(path); err == nil && !errors.Is(errRemove, fs.ErrNotExist) {
		err = errRemove
	}
	return writeFault(d.path, err)
}

// writeFault adds to the error of a write in the state directory what the operator can do. A nil
// error stays nil.
func writeFault(dir string, err error) error {
	switch {
	case err == nil:
		return nil
	case isFull(err):
		return fmt.Errorf("%w: %s; free space there", err, freeSpace(dir))
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: mount the file system of %s writable, or name another state_dir", err, dir)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: user %d needs the right to write in %s", err, os.Geteuid(), dir)
	}
	return err
}

// makeFault adds to the error of making the state directory what the operator can do.
func makeFault(dir string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: user %d may not make %s: make it for this user, or name another directory in state_dir", err, os.Geteuid(), dir)
	}
	return writeFault(dir, err)
}

// isFull reports whether a write found no room on its file system.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// freeSpace describes how full the file system of dir is.
func freeSpace(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "the file system of " + dir + " is full"
	}
	block := uint64(st.Bsize) //nolint:gosec // never negative
	return fmt.Sprintf("the file system of %s has %d of %d bytes and %d of %d files free",
		dir, st.Bavail*block, st.Blocks*block, st.Ffree, st.Files)
}

// CheckPrivate returns an error if another user may change the directory. The records in it say
// which processes Sluice ends, and with whose sockets Envoy talks.
func CheckPrivate(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if int(st.Uid) != os.Geteuid() {
		name := strconv.Itoa(int(st.Uid))
		as := "#" + name
		if owner, err := user.LookupId(name); err == nil {
			name, as = owner.Username, owner.Username
		}
		return fmt.Errorf("%s belongs to user %s, and this runs as user %d: run it as that user (`sudo -u '%s'`), or name a directory in state_dir "+
			"that does not exist yet; if no gateway of that user is left, `chown -R %d %s`", path, name, os.Geteuid(), as, os.Geteuid(), path)
	}
	if mode := fs.FileMode(st.Mode).Perm(); mode&0o022 != 0 {
		return fmt.Errorf("%s has mode %04o, so other users can make Sluice end processes: `chmod 700 %s`, or name a new directory in state_dir",
			path, mode, path)
	}
	return nil
}
