package process

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// exitWatch waits for the end of a process that need not be a child. It costs a file descriptor and
// a parked goroutine but no thread: the runtime's poller notices when a pidfd becomes readable
// (pidfd_open(2)).
type exitWatch struct {
	process identity
	// pidfd is nil if the kernel or a seccomp filter refuses pidfds.
	pidfd  *os.File
	closed chan struct{}
	once   sync.Once
}

// exitPollInterval is how often the process is checked if there is no pidfd.
const exitPollInterval = 100 * time.Millisecond

// newExitWatch opens a watch. It returns false if the process is gone. A dead child that has not
// been reaped is not gone; its watch ends at once. Where nobody knows whether the process is gone,
// the watch polls.
func newExitWatch(process identity) (*exitWatch, bool) {
	w := &exitWatch{process: process, closed: make(chan struct{})}
	fd, err := unix.PidfdOpen(process.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, false
	}
	if err == nil && unix.SetNonblock(fd, true) == nil {
		w.pidfd = os.NewFile(uintptr(fd), "pidfd")
	}
	// The pid is checked only now: as long as the pidfd is open, no other process can get this pid.
	s, ok, err := lookUp(process.PID)
	switch {
	case err != nil && w.pidfd != nil:
		_ = w.pidfd.Close()
		w.pidfd = nil
	case err == nil && (!ok || s.start != process.StartTime):
		w.close()
		return nil, false
	}
	return w, true
}

// wait blocks until the process has ended and then returns true. It returns false if the watch was
// closed before. Call it once.
func (w *exitWatch) wait() bool {
	defer w.close()
	if w.pidfd == nil {
		return w.poll()
	}
	conn, err := w.pidfd.SyscallConn()
	if err != nil {
		return false
	}
	err = conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
	})
	return err == nil || w.poll()
}

// poll does the work of wait without a pidfd.
func (w *exitWatch) poll() bool {
	tick := time.NewTicker(exitPollInterval)
	defer tick.Stop()
	for {
		select {
		case <-w.closed:
			return false
		default:
		}
		if !w.process.alive() {
			return true
		}
		select {
		case <-tick.C:
		case <-w.closed:
		}
	}
}

// close ends the watch. It may be called several times, and concurrently with wait.
func (w *exitWatch) close() {
	w.once.Do(func() {
		close(w.closed)
		if w.pidfd != nil {
			_ = w.pidfd.Close()
		}
	})
}
