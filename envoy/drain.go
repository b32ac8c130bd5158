package envoy

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	// stopGrace is the time between SIGTERM, on which Envoy ends at once, and SIGKILL.
	stopGrace = 5 * time.Second
	// maxAcceptWhileDraining is the longest time for which a draining Envoy with requests in flight
	// still accepts connections. In this time a load balancer in front of Envoy sees the failing
	// health check.
	maxAcceptWhileDraining = 5 * time.Second
	// drainPoll is the interval at which a draining Envoy is asked for its requests in flight.
	drainPoll = 25 * time.Millisecond
	// logTime is how long an Envoy without requests is still left running. Envoy sends its access
	// log every 100 ms, and the last entries would be lost: what the last requests have cost.
	logTime = 300 * time.Millisecond
)

// Stop drains and ends the Envoy and its predecessors, and makes Run return. If Run has not
// adopted the Envoys of the state directory yet, Stop ends those.
//
// Envoy fails its health checks and asks its clients to close their connections. It accepts no new
// connections after a third of drainTime, at most 5 s, or once it is idle. Stop waits until Envoy
// has no request in flight, at most for drainTime, and then ends the process. When ctx ends, Stop
// ends the process at once.
func (e *Envoy) Stop(ctx context.Context, drainTime time.Duration) error {
	all := e.markStopped()
	if len(all) == 0 {
		return nil
	}
	e.updateStatus(func(s *Status) { s.State, s.Reason = StateDraining, "Sluice is stopping" })
	errs := make([]error, len(all))
	var stopping sync.WaitGroup
	for i, p := range all {
		stopping.Go(func() {
			e.log.Info("Envoy drains", zap.Int("pid", p.PID()), zap.Duration("drain", drainTime))
			drainRequests(ctx, p, adminOf(p.Record()), drainTime)
			if errs[i] = p.Stop(ctx, stopGrace); errs[i] == nil {
				e.log.Info("Envoy stopped", zap.Int("pid", p.PID()))
			}
		})
	}
	stopping.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	e.updateStatus(func(s *Status) { s.State, s.PID, s.Reason = StateDown, 0, "stopped" })
	return nil
}

// markStopped prevents further starts and returns the processes to stop.
func (e *Envoy) markStopped() []*process.Process {
	e.processMu.Lock()
	defer e.processMu.Unlock()
	if !e.isStopped() {
		close(e.stopped)
	}
	all := e.predecessors()
	if e.proc != nil {
		return append(all, e.proc)
	}
	if p, ok := e.cfg.Dir.Adopt(RecordName); ok {
		all = append(all, p)
	}
	return all
}

// drainRequests drains an Envoy. It returns when Envoy has no request in flight, when Envoy has
// ended, when drainTime is over, or when ctx has ended.
func drainRequests(ctx context.Context, p *process.Process, a Admin, drainTime time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	ctx, cancelRunning := whileRunning(ctx, p)
	defer cancelRunning()
	// An error means that Envoy is gone or does not answer. Then drainTime bounds the wait.
	_, _ = a.Post(ctx, "/healthcheck/fail")
	_, _ = a.Post(ctx, "/drain_listeners?graceful&skip_exit")
	accepting, cancelAccepting := context.WithTimeout(ctx, min(drainTime/3, maxAcceptWhileDraining))
	defer cancelAccepting()
	waitUntilIdle(accepting, a)
	_, _ = a.Post(ctx, "/drain_listeners")
	waitUntilIdle(ctx, a)
	pause(ctx, logTime)
}

// waitUntilIdle returns when no request is in flight or ctx has ended.
func waitUntilIdle(ctx context.Context, a Admin) {
	for ctx.Err() == nil {
		if n, err := a.InFlight(ctx); err == nil && n == 0 {
			return
		}
		pause(ctx, drainPoll)
	}
}
