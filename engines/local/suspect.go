package local

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// suspectPause is the minimum pause between two probes that were brought forward. Requests may fail
// by the thousand, and an engine that fails for a moment must not use up supervise.MaxBadProbes in
// that moment.
const suspectPause = time.Second

// Suspect brings the next probe of the replica forward. Call it after a request has failed in a way
// that may be the replica's fault. silent says that the replica has left several requests in a row
// without an answer. Calls within a second count as one. Suspect never blocks. It does nothing if
// the replica is unknown or not ready.
func (l *Launcher) Suspect(replicaID string, silent bool) {
	if known, ok := l.suspected.Load(replicaID); ok {
		r := known.(*runner)
		if silent {
			r.silent.Store(true)
		}
		r.suspect()
	}
}

// runRegistered runs a runner so that Suspect finds it.
func (l *Launcher) runRegistered(r *runner, run func()) {
	l.suspected.Store(r.id, r)
	defer l.suspected.CompareAndDelete(r.id, r)
	run()
}

// suspect brings the next probe forward.
func (r *runner) suspect() { notify(r.suspected) }

// notify puts a token into the channel, unless there is one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// reportHealthy calls OnHealthy for a suspected replica that is healthy.
func (r *runner) reportHealthy(suspected bool) {
	if !suspected {
		return
	}
	r.launcher.config.Log.Info("suspected replica found healthy", zap.String("replica", r.id))
	if r.launcher.config.OnHealthy != nil {
		r.launcher.config.OnHealthy(r.id)
	}
}

// awaitProbe returns when the next probe is due: after the engine's interval, or when the replica
// is suspected, which it returns.
func (r *runner) awaitProbe(alive context.Context) (suspected bool) {
	every := r.model.Load().healthInterval()
	select {
	case <-alive.Done():
	case <-time.After(every):
	case <-r.suspected:
		wait(alive, time.Until(r.suspectedAt.Add(min(suspectPause, every))))
		r.suspectedAt = time.Now()
		select {
		case <-r.suspected: // the next probe serves this suspicion too
		default:
		}
		return true
	}
	return false
}
