package local

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
)

// exitReason says how the process ended. Before it was ready its log tells why; what it logged while it served may hold
// what clients have sent, so then only the place of the log is named.
func (r *runner) exitReason() string {
	how := r.process.ExitStatus() // from here on the process has ended for sure, if it has
	if r.limitsExceeded() {
		return fmt.Sprintf("was killed: it used more than its %s of memory", gibibytes(r.replica.Resources.Memory))
	}
	if !r.served {
		return r.process.ExitReason()
	}
	return how + "; its log is " + r.process.Record().LogFile
}

// fail takes the replica out at once, ends what is left of its process, and returns how long to wait before the next start.
func (r *runner) fail(ctx context.Context, reason string) time.Duration {
	pause := r.pause(reason)
	r.report(ctx, engines.Failed, fmt.Sprintf("%s; next start in %v", reason, pause))
	r.launcher.config.Log.Warn("replica failed", zap.String("replica", r.id), zap.String("reason", reason), zap.Duration("next_start", pause))
	r.insist(ctx, engines.Failed)
	return pause
}

// limitsExceeded tells whether the kernel has killed a process of the replica because of its limit of memory.
func (r *runner) limitsExceeded() bool { return r.cgroup != "" && outOfMemory(r.cgroup) }

// lostPort tells whether the engine ended because its port was somebody else's when it wanted it.
func (r *runner) lostPort(reason string) bool {
	ended := r.process != nil && r.process.ExitStatus() != ""
	return ended && !r.served && (saysInUse(reason) || occupied(r.replica.Address))
}

func saysInUse(reason string) bool {
	reason = strings.ToLower(reason)
	for _, words := range []string{"address already in use", "address in use", "eaddrinuse"} {
		if strings.Contains(reason, words) {
			return true
		}
	}
	return false
}

// pause is how long to wait before the next start.
func (r *runner) pause(reason string) time.Duration {
	b := r.launcher.config.BackOff
	if !r.readySince.IsZero() && time.Since(r.readySince) >= b.Reset {
		r.failures = 0
	}
	if !r.lostPort(reason) {
		r.collisions = 0
	} else if r.collisions++; r.collisions <= quickStarts {
		return 0
	}
	r.failures++
	return b.after(r.failures)
}
