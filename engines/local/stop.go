package local

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	// firstStopRetry and longestStopRetry bound the pauses between attempts to stop a process that
	// does not end.
	firstStopRetry   = time.Second
	longestStopRetry = time.Minute
	// stopGrace is the time between SIGTERM and SIGKILL.
	stopGrace = 10 * time.Second
)

// stopSignal tells a runner to stop its replica. The table requests the stop and may cancel it; the
// runner commits it when it stops the process. If a cancellation and a commit meet, exactly one of
// them wins.
type stopSignal struct {
	mu sync.Mutex
	// next is the current request; guarded by mu
	next *stopRequest
	// committed: the process is being stopped, and the request cannot be cancelled; guarded by mu
	committed bool
}

// stopRequest is one request to stop. It exists before it is made.
type stopRequest struct {
	// requested ends when the table requests the stop, cancelled when it cancels the request.
	requested, cancelled context.Context
	send, cancel         context.CancelFunc
}

// reset prepares the next request. mu is held, or no other goroutine has s yet.
func (s *stopSignal) reset() {
	r := new(stopRequest)
	r.requested, r.send = context.WithCancel(context.Background())
	r.cancelled, r.cancel = context.WithCancel(context.Background())
	s.next = r
}

func (s *stopSignal) current() *stopRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

func (s *stopSignal) request() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next.send()
}

// cancel cancels the request. It returns false if the runner has committed it.
func (s *stopSignal) cancel() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.committed {
		return false
	}
	if s.next.requested.Err() != nil {
		s.next.cancel()
		s.reset()
	}
	return true
}

// commit makes the request final. It returns false if the request was cancelled.
func (s *stopSignal) commit(r *stopRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.committed = s.next == r
	return s.committed
}

// drainAndStop lets the replica finish its requests and stops its process. It returns false if the
// stop was cancelled before that, or if ctx has ended; then the process still runs.
func (r *runner) drainAndStop(ctx context.Context, s *stopRequest) bool {
	r.recordRestart()
	if r.process != nil && r.served {
		draining, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(s.cancelled, cancel)
		r.drain(draining, r.launcher.config.DrainSettle, cmp.Or(r.model.Load().DrainTimeout, r.launcher.config.DrainTimeout))
		stop()
		cancel()
	}
	if ctx.Err() != nil || !r.stopSignal.commit(s) || !r.stopUntilGone(ctx, engines.Draining) {
		return false
	}
	r.report(ctx, engines.Stopped, "")
	return true
}

// shutdown waits until the replica's requests are finished, at least for settle and at most for
// atMost. Then it stops the process.
func (r *runner) shutdown(ctx context.Context, settle, atMost time.Duration) error {
	if r.process != nil && r.served {
		r.drain(ctx, settle, atMost)
	}
	return r.stopProcess(ctx)
}

// drain returns when the replica has no requests, but not before settle: until then a reader of an
// older snapshot may send it a request.
func (r *runner) drain(ctx context.Context, settle, atMost time.Duration) {
	c := r.launcher.config
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	alive, cancel := whileAlive(ctx, r.process)
	defer cancel()
	wait(alive, settle)
	for c.InFlight != nil && alive.Err() == nil && c.InFlight(r.id) > 0 {
		wait(alive, drainPollInterval)
	}
}

// stopUntilGone stops the process, with as many attempts as it takes. It returns false if ctx ends
// before that. A process that hangs in a system call of a driver survives even SIGKILL and keeps
// its GPU and port, so no other replica may get them.
func (r *runner) stopUntilGone(ctx context.Context, state engines.State) bool {
	for pause := firstStopRetry; ; pause = min(2*pause, longestStopRetry) {
		err := r.stopProcess(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		r.launcher.config.Log.Error("replica stop failed, retrying", zap.String("replica", r.id), zap.Error(err))
		r.report(ctx, state, "its process cannot be stopped, retrying: "+err.Error())
		wait(ctx, pause)
	}
}

// stopProcess stops the process, if there is one, and gives its port, start lock and cgroup back.
// If that fails, the replica keeps them.
func (r *runner) stopProcess(ctx context.Context) error {
	if r.process != nil {
		err := r.launcher.stop(r.process, ctx, stopGrace)
		if err != nil && !errors.Is(err, process.ErrNotClaimed) {
			return err
		}
	}
	r.launcher.startLocks.unlock(r.id)
	if r.replica.Address.IsValid() {
		r.launcher.ports.release(r.replica.Address.Port())
	}
	if r.cgroup != "" {
		r.launcher.limits.remove(r.cgroup)
	}
	r.process, r.readySince, r.served, r.cgroup = nil, time.Time{}, false, ""
	r.replica.Address, r.replica.PID = netip.AddrPort{}, 0
	return nil
}
