package local

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/supervise"
)

// exitReason says how the process ended. Before it was ready, the end of its log tells why. What it
// logged while it served may hold requests of clients, so exitReason then names only the log file.
func (r *runner) exitReason() string {
	how := r.process.ExitStatus() // read first: it tells whether the process has ended
	if r.cgroup != "" && outOfMemory(r.cgroup) {
		return fmt.Sprintf("was killed: it used more than its %s of memory", gibibytes(r.replica.Resources.Memory))
	}
	if !r.served {
		return r.process.ExitReason()
	}
	return how + "; its log is " + r.process.Record().LogFile
}

// fail reports the failure, stops what is left of the process, and returns how long to wait before
// the next start.
func (r *runner) fail(ctx context.Context, reason string) time.Duration {
	pause := r.pause(reason)
	r.replica.Failure, r.replica.NextStart = engines.ClassifyFailure(reason), time.Now().Add(pause)
	if r.readySince.IsZero() && pause > 0 { // without a pause only the port was lost
		r.replica.FailedStarts++
	}
	r.report(ctx, engines.Failed, fmt.Sprintf("%s; next start after a pause of %v", reason, pause))
	r.launcher.config.Log.Warn("replica failed", zap.String("replica", r.id), zap.String("reason", reason), zap.Duration("next_start", pause))
	r.stopUntilGone(ctx, engines.Failed)
	return pause
}

// lostPort reports whether the engine ended because another program had taken its port.
func (r *runner) lostPort(reason string) bool {
	ended := r.process != nil && r.process.ExitStatus() != ""
	return ended && !r.served && (supervise.SaysInUse(reason) || occupied(r.replica.Address))
}

// pause returns how long to wait before the next start.
func (r *runner) pause(reason string) time.Duration {
	b := r.launcher.config.BackOff
	if !r.readySince.IsZero() && time.Since(r.readySince) >= b.Reset {
		r.failures = 0
	}
	if !r.lostPort(reason) {
		r.collisions = 0
	} else if r.collisions++; r.collisions <= maxPortRetries {
		return 0
	}
	r.failures++
	return b.After(r.failures)
}
