package supervise

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

func TestBackOffAfter(t *testing.T) {
	t.Parallel()
	b := BackOff{}.WithDefaults()
	for failures, want := range map[int]time.Duration{
		1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 9: 256 * time.Second, 10: 300 * time.Second, 1000: 300 * time.Second,
	} {
		if got := b.After(failures); got != want {
			t.Errorf("after %d failures = %v, want %v", failures, got, want)
		}
	}
	if got := (BackOff{First: time.Hour, Max: time.Minute}).After(1); got != time.Minute {
		t.Errorf("the longest pause is exceeded: %v", got)
	}
}

func TestUnknownFaultIsUnhealthy(t *testing.T) {
	t.Parallel()
	if got := classify(&net.OpError{Err: errors.New("reset")}); got != Unhealthy {
		t.Errorf("an unknown fault is %v", got)
	}
}

// What this machine lacks is no fault of the engine.
func TestX1_AProbeThatCannotBeMade(t *testing.T) {
	t.Parallel()
	for _, lack := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if got := classify(&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", lack)}); got != Untold {
			t.Errorf("%v is %v", lack, got)
		}
	}
}
