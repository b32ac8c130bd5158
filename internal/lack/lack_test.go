package lack

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
)

// TestB6_AcceptsThatAreTriedAgain: no lack of this machine, and no client that has left, ends a
// server.
func TestB6_AcceptsThatAreTriedAgain(t *testing.T) {
	t.Parallel()
	for fault, want := range map[syscall.Errno]bool{
		syscall.EMFILE: true, syscall.ENFILE: true, syscall.ENOBUFS: true, syscall.ENOMEM: true,
		syscall.ECONNABORTED: true, syscall.EINVAL: false, syscall.EBADF: false,
	} {
		err := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", fault)}
		if got := IsTemporary(err); got != want {
			t.Errorf("%v: tried again %t, want %t", err, got, want)
		}
	}
	for _, err := range []error{nil, net.ErrClosed, errors.New("other")} {
		if IsTemporary(err) {
			t.Errorf("%v is tried again", err)
		}
	}
}
