package process

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
)

// takeDescriptors opens files until this process may open no more. free closes them. Tests that use
// it are not parallel.
func takeDescriptors(t *testing.T) (free func()) {
	t.Helper()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	low := before
	low.Cur = min(128, before.Max)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	var held []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		held = append(held, f)
	}
	free = func() {
		for _, f := range held {
			f.Close()
		}
		held = nil
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)
	}
	t.Cleanup(free)
	return free
}

// TestAStopWithoutDescriptorsEndsTheProcess: a stop that cannot list the processes waits until it
// can. It does not take the process for ended.
func TestAStopWithoutDescriptorsEndsTheProcess(t *testing.T) {
	p := start(t, claimedDir(t), sleeper("replica/a-0"))
	free := takeDescriptors(t)
	stopped := make(chan error, 1)
	go func() { stopped <- p.Stop(context.Background(), testTimeout) }()
	select {
	case err := <-stopped:
		t.Errorf("stopped without descriptors: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	free()
	select {
	case err := <-stopped:
		if err != nil || running(p.PID()) {
			t.Errorf("stop: %v, the process runs: %t", err, running(p.PID()))
		}
	case <-time.After(testTimeout / 2):
		_ = syscall.Kill(p.PID(), syscall.SIGKILL)
		t.Fatalf("the stop hangs: %v after a kill", <-stopped)
	}
}

// TestAStopThatCannotListProcessesFails: a stop that may wait no longer says why it has failed,
// and a later one ends the process.
func TestAStopThatCannotListProcessesFails(t *testing.T) {
	d := claimedDir(t)
	p := start(t, d, sleeper("replica/a-0"))
	free := takeDescriptors(t)
	failed := make(chan error, 1)
	go func() { failed <- p.Stop(context.Background(), 0) }()
	select {
	case err := <-failed:
		if !errors.Is(err, syscall.EMFILE) {
			t.Errorf("stop: %v", err)
		}
	case <-time.After(testTimeout / 2):
		_ = syscall.Kill(p.PID(), syscall.SIGKILL)
		t.Fatalf("the stop hangs: %v after a kill", <-failed)
	}
	free()
	if err := p.Stop(context.Background(), 0); err != nil || running(p.PID()) {
		t.Errorf("the second stop: %v, the process runs: %t", err, running(p.PID()))
	}
}

// TestWithoutDescriptorsAProcessCountsAsAlive: neither the record nor a watch takes a process for
// ended whose state cannot be read.
func TestWithoutDescriptorsAProcessCountsAsAlive(t *testing.T) {
	p := start(t, claimedDir(t), sleeper("replica/a-0"))
	free := takeDescriptors(t)
	alive := p.record.identity().alive()
	w, watched := newExitWatch(p.record.identity())
	free()
	if !alive || !watched {
		t.Fatalf("alive: %t, watched: %t", alive, watched)
	}
	_ = syscall.Kill(p.PID(), syscall.SIGKILL)
	if !w.wait() {
		t.Error("the watch did not see the end")
	}
	wait(t, p)
}

// TestWithoutDescriptorsNoProcessStartsTwice: a start that cannot read the record of the earlier
// process does not take that process for ended.
func TestWithoutDescriptorsNoProcessStartsTwice(t *testing.T) {
	d := claimedDir(t)
	start(t, d, sleeper("replica/a-0"))
	endPrevious := func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.endPreviousLocked("replica/a-0")
	}
	free := takeDescriptors(t)
	err := endPrevious()
	free()
	if !errors.Is(err, syscall.EMFILE) {
		t.Errorf("the record cannot be opened: %v", err)
	}
	if err := endPrevious(); !errors.Is(err, ErrRunning) {
		t.Errorf("the record can be opened: %v", err)
	}
}
