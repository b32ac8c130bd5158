package testutil

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTime returns how much time of a processor f takes on its goroutine. Unlike the time on
// the clock, it does not grow while other goroutines and processes run.
func ProcessorTime(t testing.TB, f func()) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime(t)
	f()
	return threadTime(t) - began
}

// threadTime returns how long this thread has run on processors.
func threadTime(t testing.TB) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}
