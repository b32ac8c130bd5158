package process

import (
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The error of a state directory that cannot be made says what to do.
func TestMakeFaultSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for errno, want := range map[unix.Errno]string{
		unix.EACCES: "may not make /var/lib/sluice: make it for this user, or name another directory in state_dir",
		unix.EROFS:  "mount the file system of /var/lib/sluice writable, or name another state_dir",
	} {
		err := makeFault("/var/lib/sluice", &fs.PathError{Op: "mkdir", Path: "/var/lib/sluice", Err: errno})
		if !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v: the error is %v, want %s", errno, err, want)
		}
	}
}
