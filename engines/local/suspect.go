package local

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// doubtPause is the least pause between two probes that were brought forward: requests may fail by the thousand, and an engine that
// stumbles for a moment must not run through its strikes in that moment.
const doubtPause = time.Second

// Suspect tells that a request to the replica has failed in a way that may be the replica's fault: its health is asked for at once, and
// not only when the next probe is due. Further doubts within a second count as one. It never blocks; a replica that is not known, or
// does not serve, is left alone.
func (l *Launcher) Suspect(replicaID string) {
	if doubted, ok := l.doubted.Load(replicaID); ok {
		poke(doubted.(chan struct{}))
	}
}

// watch runs a runner so that Suspect finds it.
func (l *Launcher) watch(r *runner, run func()) {
	l.doubted.Store(r.id, r.doubted)
	defer l.doubted.CompareAndDelete(r.id, r.doubted)
	run()
}

func (r *runner) doubt() { poke(r.doubted) }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// clear tells whoever wants to know that a replica that was doubted is well.
func (r *runner) clear(doubted bool) {
	if !doubted {
		return
	}
	r.launcher.config.Log.Info("replica is well, a request that failed notwithstanding", zap.String("replica", r.id))
	if r.launcher.config.Well != nil {
		r.launcher.config.Well(r.id)
	}
}

// awaitProbe returns when the next probe is due: after the engine's usual pause, or when somebody doubts, which it tells.
func (r *runner) awaitProbe(alive context.Context) (doubted bool) {
	every := r.model.Load().healthEvery()
	timer := time.NewTimer(every)
	defer timer.Stop()
	select {
	case <-alive.Done():
	case <-timer.C:
	case <-r.doubted:
		wait(alive, time.Until(r.doubtedAt.Add(min(doubtPause, every))))
		r.doubtedAt = time.Now()
		select {
		case <-r.doubted: // the probe that comes now answers this one too
		default:
		}
		return true
	}
	return false
}
