// Package nowait reads and writes descriptors that never block, without a word to Go's scheduler.
//
// The functions of package syscall tell the scheduler of every call, in case it blocks. For a socket in non-blocking mode that is of no use, and it is not
// cheap: a process that is mostly idle has its monitor thread woken by the first call of each burst, which then looks around every 20 µs. A relayed event is
// such a burst. The functions here are for the callbacks of syscall.RawConn, whose descriptors are in that mode.
package nowait

import "syscall"

// Read reads into p, which must not be empty. It returns 0 and no error at the end, and syscall.EAGAIN when nothing is there. Interrupted calls are
// made again.
func Read(fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = read(fd, p); err != syscall.EINTR { //nolint:errorlint // a system call returns the number itself
			return n, err
		}
	}
}

// Write writes as much of p, which must not be empty, as fits now. It returns syscall.EAGAIN when nothing does. Interrupted calls are made again. A peer that
// has gone is syscall.EPIPE: Go's runtime ignores SIGPIPE for all descriptors but 1 and 2.
func Write(fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = write(fd, p); err != syscall.EINTR { //nolint:errorlint // as above
			return n, err
		}
	}
}
