package testutil

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// SmallDisk mounts an empty file system of the size, such as 64k, on a directory until the test
// ends.
func SmallDisk(t testing.TB, dir, size string) {
	t.Helper()
	mount(t, dir, filesystem{source: "none", kind: "tmpfs", options: "size=" + size + ",mode=0700"})
}

// FillDisk writes a file that takes the last free byte of the file system of a directory. free
// removes the file.
func FillDisk(t testing.TB, dir string) (free func()) {
	t.Helper()
	filler := filepath.Join(dir, "filler")
	file, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for err == nil {
		_, err = file.Write(make([]byte, 64<<10))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the file system is not full: %v", err)
	}
	return func() {
		t.Helper()
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
	}
}

// ReadOnly makes a directory and what is below it read-only for whoever opens a file there from now
// on, until the test ends or writable is called. Open files stay writable.
func ReadOnly(t testing.TB, dir string) (writable func()) {
	t.Helper()
	writable = mount(t, dir, filesystem{source: dir, flags: unix.MS_BIND})
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	return writable
}

// filesystem is what mount mounts, in the words of mount(2).
type filesystem struct {
	source, kind string
	flags        uintptr
	options      string
}

// mount mounts a file system until the test ends or unmount is called. Where nothing can be
// mounted, it skips the test, or fails it in a run of the continuous integration.
func mount(t testing.TB, target string, f filesystem) (unmount func()) {
	t.Helper()
	if err := unix.Mount(f.source, target, f.kind, f.flags, f.options); err != nil {
		message := "nothing can be mounted here, so this state of a disk is not tested (run as root): " + err.Error()
		if inCI() {
			t.Fatal(message)
		}
		t.Skip(message)
	}
	unmount = sync.OnceFunc(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(unmount)
	return unmount
}
