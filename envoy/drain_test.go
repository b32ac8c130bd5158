package envoy

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

func stopping(ctx context.Context, e *Envoy, drainTime time.Duration) chan error {
	done := make(chan error, 1)
	go func() { done <- e.Stop(ctx, drainTime) }()
	return done
}

func gone(t *testing.T, w *world, pid int) {
	t.Helper()
	if runs(pid) {
		t.Errorf("process %d still runs", pid)
	}
	if r := w.dir.Records(); len(r) > 0 {
		t.Errorf("records are left: %+v", r)
	}
}

func TestStopLetsStreamsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, leave := w.live(t)
	pid := e.Status().PID
	url := address(t, e.Admin())
	running := stream(t, url)
	done := stopping(t.Context(), e, 6*time.Second) // a third of it with open doors
	eventually(t, func() error { return inState(e, StateDraining) })
	// Sluice refuses the newcomers; Envoy closes its door after a while, for those that come all the same.
	eventually(t, func() error {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err == nil {
			_ = c.Close()
			return errors.New("a draining Envoy accepts connections")
		}
		return nil
	})
	select {
	case err := <-done:
		t.Fatalf("Stop did not wait: %v", err)
	default:
	}
	if err := inState(e, StateDraining); err != nil {
		t.Error(err)
	}
	close(w.backend.finish)
	body, err := io.ReadAll(running)
	if err != nil || !strings.HasSuffix(string(body), "end\n") {
		t.Errorf("the stream was cut: %v after %d bytes", err, len(body))
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	gone(t, w, pid)
	if err := inState(e, StateDown); err != nil {
		t.Error(err)
	}
	if err := leave(); err != nil {
		t.Errorf("Run after Stop: %v", err)
	}
	if n := w.logs.FilterMessage("envoy ended").Len(); n != 0 {
		t.Error("a stop was taken for a crash")
	}
}

func TestStopWhenIdleIsQuick(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, _ := w.live(t)
	pid := e.Status().PID
	done := stopping(t.Context(), e, time.Hour)
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("Stop waits for nothing")
	}
	gone(t, w, pid)
}

func TestStopCutsWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, _ := w.live(t)
	pid := e.Status().PID
	running := stream(t, address(t, e.Admin()))
	if err := e.Stop(t.Context(), 300*time.Millisecond); err != nil {
		t.Error(err)
	}
	gone(t, w, pid)
	if _, err := io.ReadAll(running); err == nil {
		t.Error("a cut stream ended cleanly")
	}
}

func TestStopEndsWithItsContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, _ := w.live(t)
	pid := e.Status().PID
	stream(t, address(t, e.Admin()))
	ctx, cancel := context.WithCancel(context.Background())
	done := stopping(ctx, e, time.Hour)
	eventually(t, func() error { return inState(e, StateDraining) })
	cancel()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("Stop does not end")
	}
	gone(t, w, pid)
}

func TestStopFindsWhatNobodyRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, leave := w.live(t)
	pid := first.Status().PID
	w.die(t, leave)
	c := w.config
	c.Dir = w.dir
	e := New(c)
	if err := e.Stop(t.Context(), patience); err != nil {
		t.Error(err)
	}
	gone(t, w, pid)
	if err := e.Run(t.Context()); err != nil {
		t.Errorf("Run after Stop: %v", err)
	}
	if r := w.dir.Records(); len(r) > 0 {
		t.Error("Run after Stop has started something")
	}
	if err := e.Stop(t.Context(), patience); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
}

func TestStopSurvivesAHungEnvoy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, _ := w.live(t)
	pid := e.Status().PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	done := stopping(t.Context(), e, 200*time.Millisecond)
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("Stop hangs with a hung Envoy")
	}
	gone(t, w, pid)
}
