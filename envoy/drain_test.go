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

// stopInBackground calls Stop and returns the channel that gets its result.
func stopInBackground(ctx context.Context, e *Envoy, drainTime time.Duration) chan error {
	done := make(chan error, 1)
	go func() { done <- e.Stop(ctx, drainTime) }()
	return done
}

// finish has the backend end its streams, and checks that this one comes to its end.
func (b *testbed) finish(t *testing.T, running io.Reader) {
	t.Helper()
	close(b.backend.finish)
	body, err := io.ReadAll(running)
	if err != nil || !strings.HasSuffix(string(body), "end\n") {
		t.Errorf("the stream was cut: %v after %d bytes", err, len(body))
	}
}

// expectEnded checks that neither the process nor a record is left.
func expectEnded(t *testing.T, b *testbed, pid int) {
	t.Helper()
	if runs(pid) {
		t.Errorf("process %d still runs", pid)
	}
	if r := b.dir.Records(); len(r) > 0 {
		t.Errorf("the directory still has records: %+v", r)
	}
}

func TestStopLetsStreamsEnd(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	e, stop := b.live(t)
	pid := e.Status().PID
	url := address(t, e.Admin())
	running := stream(t, url)
	// Envoy accepts connections for a third of the drain time.
	done := stopInBackground(t.Context(), e, 6*time.Second)
	eventually(t, func() error { return inState(e, StateDraining) })
	// Sluice refuses new requests. Later, Envoy also refuses new connections.
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
	b.finish(t, running)
	if err := <-done; err != nil {
		t.Error(err)
	}
	expectEnded(t, b, pid)
	if err := inState(e, StateDown); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Errorf("Run after Stop: %v", err)
	}
	if n := b.logs.FilterMessage("Envoy ended").Len(); n != 0 {
		t.Error("a stop was taken for a crash")
	}
}

func TestStopWhenIdleIsQuick(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	e, _ := b.live(t)
	pid := e.Status().PID
	done := stopInBackground(t.Context(), e, time.Hour)
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testTimeout):
		t.Fatal("Stop waits for nothing")
	}
	expectEnded(t, b, pid)
}

func TestStopCutsRequestsAfterTheDrainTime(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	e, _ := b.live(t)
	pid := e.Status().PID
	running := stream(t, address(t, e.Admin()))
	if err := e.Stop(t.Context(), 300*time.Millisecond); err != nil {
		t.Error(err)
	}
	expectEnded(t, b, pid)
	if _, err := io.ReadAll(running); err == nil {
		t.Error("a cut stream ended cleanly")
	}
}

func TestStopEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	e, _ := b.live(t)
	pid := e.Status().PID
	stream(t, address(t, e.Admin()))
	ctx, cancel := context.WithCancel(context.Background())
	done := stopInBackground(ctx, e, time.Hour)
	eventually(t, func() error { return inState(e, StateDraining) })
	cancel()
	select {
	case <-done:
	case <-time.After(testTimeout):
		t.Fatal("Stop does not end")
	}
	expectEnded(t, b, pid)
}

func TestStopFindsAnEnvoyThatNobodyRuns(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	first, stop := b.live(t)
	pid := first.Status().PID
	b.restart(t, stop)
	c := b.config
	c.Dir = b.dir
	e := New(c)
	if err := e.Stop(t.Context(), testTimeout); err != nil {
		t.Error(err)
	}
	expectEnded(t, b, pid)
	if err := e.Run(t.Context()); err != nil {
		t.Errorf("Run after Stop: %v", err)
	}
	if r := b.dir.Records(); len(r) > 0 {
		t.Error("Run after Stop has started something")
	}
	if err := e.Stop(t.Context(), testTimeout); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
}

// Stop may come while Run still starts. Run then leaves the Envoy to it, which drains.
func TestStopBeforeTheAdoptionCutsNothing(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	first, stop := b.live(t)
	pid := first.Status().PID
	running := stream(t, address(t, first.Admin()))
	b.restart(t, stop)
	c := b.config
	c.Dir, c.PredecessorTimeout = b.dir, func() time.Duration { return time.Millisecond }
	e := New(c)
	done := stopInBackground(t.Context(), e, testTimeout)
	eventually(t, func() error {
		state, err := e.Admin().ServerState(t.Context())
		if err == nil && state != serverDraining {
			err = errors.New(state)
		}
		return err
	})
	if err := e.Run(t.Context()); err != nil {
		t.Errorf("Run after Stop: %v", err)
	}
	b.finish(t, running)
	if err := <-done; err != nil {
		t.Error(err)
	}
	expectEnded(t, b, pid)
}

func TestStopSurvivesAHungEnvoy(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	e, _ := b.live(t)
	pid := e.Status().PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	done := stopInBackground(t.Context(), e, 200*time.Millisecond)
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testTimeout):
		t.Fatal("Stop hangs with a hung Envoy")
	}
	expectEnded(t, b, pid)
}
