package http1

import (
	"errors"
	"syscall"
)

// The functions of this file read and write descriptors in non-blocking mode without notice to Go's
// scheduler.
//
// The functions of package syscall notify the scheduler of every call, in case the call blocks. A
// socket in non-blocking mode never blocks, and the notice is not cheap. In a process that is
// mostly idle, the first call of each burst wakes the runtime's monitor thread, which then polls
// every 20 µs. A relayed event is such a burst.
//
// On a descriptor in blocking mode these functions would block a thread that the scheduler believes
// to run. checkNonblocking is called once for each connection, before the first of them.

// errBlocking says that a descriptor is in blocking mode.
var errBlocking = errors.New("http1: descriptor is in blocking mode, expected non-blocking")

// checkNonblocking returns errBlocking unless the descriptor is in non-blocking mode. The
// descriptors of package net always are, unless somebody has called File on the connection.
func checkNonblocking(raw syscall.RawConn) error {
	var blocking bool
	var failed error
	err := raw.Control(func(fd uintptr) {
		flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFL, 0)
		if errno != 0 {
			failed = errno
		}
		blocking = flags&syscall.O_NONBLOCK == 0
	})
	if err = errors.Join(err, failed); err == nil && blocking {
		err = errBlocking
	}
	return err
}

// readNonblock reads into p, which must not be empty. It returns 0 and no error at the end of the
// stream, and syscall.EAGAIN when there is nothing to read now. It repeats interrupted calls.
func readNonblock(fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = readOnce(fd, p); err != syscall.EINTR { //nolint:errorlint // a system call returns the number itself
			return n, err
		}
	}
}

// writeNonblock writes as much of p, which must not be empty, as the socket takes now. It returns
// syscall.EAGAIN when the socket takes nothing, and syscall.EPIPE when the peer has closed: Go's
// runtime ignores SIGPIPE for all descriptors but 1 and 2. It repeats interrupted calls.
func writeNonblock(fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = writeOnce(fd, p); err != syscall.EINTR { //nolint:errorlint // as above
			return n, err
		}
	}
}
