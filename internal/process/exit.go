package process

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// exitWatch waits for the end of a process that need not be our child. It costs a file descriptor and a parked goroutine,
// no thread: the runtime's poller knows when a pidfd becomes readable (pidfd_open(2)).
type exitWatch struct {
	process identity
	pidfd   *os.File // nil where the kernel or a seccomp filter refuses pidfds
	closed  chan struct{}
	once    sync.Once
}

// pollExit is how often we look where there are no pidfds.
const pollExit = 100 * time.Millisecond

// watchExit starts to watch. It reports false when the process is gone already; a dead child that we have not reaped is
// not gone, its watch ends at once.
func watchExit(process identity) (*exitWatch, bool) {
	w := &exitWatch{process: process, closed: make(chan struct{})}
	fd, err := unix.PidfdOpen(process.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, false
	}
	if err == nil && unix.SetNonblock(fd, true) == nil {
		w.pidfd = os.NewFile(uintptr(fd), "pidfd")
	}
	// Only now, with the process held by the pidfd, is it sure whose it is.
	if s, ok := readStat(process.PID); !ok || s.start != process.StartTime {
		w.close()
		return nil, false
	}
	return w, true
}

// wait blocks until the process has ended and then reports true; false means that the watch was closed before. It is called once.
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

func (w *exitWatch) poll() bool {
	tick := time.NewTicker(pollExit)
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

// close ends the watch. It may be called more than once and at the same time as wait.
func (w *exitWatch) close() {
	w.once.Do(func() {
		close(w.closed)
		if w.pidfd != nil {
			_ = w.pidfd.Close()
		}
	})
}
