package envoy

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	// stopGrace is between SIGTERM, on which Envoy ends at once, and SIGKILL.
	stopGrace = 5 * time.Second
	// maxOpenWhileDraining is how long a draining Envoy with requests in flight still accepts connections: the time in which a
	// load balancer in front sees the failing health check.
	maxOpenWhileDraining = 5 * time.Second
	drainPoll            = 25 * time.Millisecond
)

// Stop ends the Envoy, also one that Run has not got to yet, and makes Run return. Envoy fails its health checks, asks its clients to
// close their connections, and accepts no new ones after a third of the drain time, at most 5 s, or once it is idle. Stop waits
// until it has no request in flight, at most for the drain time, then ends the process. When ctx ends, it does so at once.
func (e *Envoy) Stop(ctx context.Context, drainTime time.Duration) error {
	p := e.takeForStop()
	if p == nil {
		return nil
	}
	e.change(func(s *Status) { s.State, s.Reason = StateDraining, "Sluice stops" })
	e.log.Info("envoy drains", zap.Int("pid", p.PID()), zap.Duration("drain", drainTime))
	drain(ctx, p, Admin{Socket: p.Record().Meta[metaAdmin]}, drainTime)
	if err := p.Stop(ctx, stopGrace); err != nil {
		return err
	}
	e.log.Info("envoy stopped", zap.Int("pid", p.PID()))
	e.change(func(s *Status) { s.State, s.PID, s.Reason = StateDown, 0, "stopped" })
	return nil
}

// takeForStop sees to it that nothing is started any more, and returns what there is to stop.
func (e *Envoy) takeForStop() *process.Process {
	e.life.Lock()
	defer e.life.Unlock()
	if !e.isStopped() {
		close(e.stopped)
	}
	if e.proc != nil {
		return e.proc
	}
	p, _ := e.cfg.Dir.Adopt(RecordName)
	return p
}

// drain returns when Envoy has no request in flight, when it has ended, or when the time is over or ctx has ended.
func drain(ctx context.Context, p *process.Process, a Admin, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	go func() {
		select {
		case <-p.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	// Errors mean that Envoy is gone or does not answer; then the time decides.
	_, _ = a.Post(ctx, "/healthcheck/fail")
	_, _ = a.Post(ctx, "/drain_listeners?graceful&skip_exit")
	open, shut := context.WithTimeout(ctx, min(patience/3, maxOpenWhileDraining))
	defer shut()
	untilIdle(open, a)
	_, _ = a.Post(ctx, "/drain_listeners")
	untilIdle(ctx, a)
}

// untilIdle returns when nothing is in flight or ctx has ended.
func untilIdle(ctx context.Context, a Admin) {
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for ctx.Err() == nil {
		if n, err := a.InFlight(ctx); err == nil && n == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}
