package ray

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/supervise"
)

const (
	// progressInterval is how often the log of a starting replica is read.
	progressInterval = 3 * time.Second
	// retryInterval is the pause between the probes of a replica that has failed one.
	retryInterval = time.Second
)

// watch probes the server of one job.
type watch struct {
	launcher *Launcher
	// key and job identify the replica and its job.
	key     key
	job     string
	address netip.AddrPort
	stop    context.CancelFunc
	// suspected holds at most one token; see Launcher.Suspect.
	suspected chan struct{}
	// probed: the first probe was made. Guarded by Launcher.mu.
	probed bool
	// silent is true if the replica was called silent since the last probe began; see
	// Launcher.Suspect. Guarded by Launcher.mu.
	silent bool
}

// watchLocked starts to probe the server of a running job, unless it is probed already. mu is held.
func (l *Launcher) watchLocked(ctx context.Context, r *replica, address netip.AddrPort) {
	if r.watch != nil || !address.IsValid() {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	r.Address = address
	if r.State == engines.Pending {
		r.set(engines.Starting, "")
	}
	r.watch = &watch{launcher: l, key: key{r.meta.model, r.meta.index}, job: r.job, address: address, stop: stop,
		suspected: make(chan struct{}, 1)}
	w := r.watch
	l.watching.Go(func() { w.run(ctx) })
}

// unwatchLocked ends the probes of a replica. mu is held.
func (l *Launcher) unwatchLocked(r *replica) {
	if r.watch != nil {
		r.watch.stop()
		r.watch = nil
	}
}

// run probes until ctx ends. The replica's state follows the probes.
func (w *watch) run(ctx context.Context) {
	if !w.awaitReady(ctx) {
		return
	}
	bad, healthy := 0, time.Now()
	for ctx.Err() == nil {
		pause := cmp.Or(w.model().Version.Health.Every, defaultHealthInterval)
		if bad > 0 {
			pause = min(pause, retryInterval)
		}
		suspected := w.pause(ctx, pause)
		silent := w.takeSilent()
		got, text := w.launcher.prober.Probe(ctx, w.address, w.model().Version.Health.Path)
		switch {
		case ctx.Err() != nil:
		case got == supervise.Healthy:
			bad, healthy = 0, time.Now()
			w.reportHealthy(suspected)
		case got == supervise.Busy && silent && time.Since(healthy) >= w.launcher.config.MaxBusy:
			bad = supervise.MaxBadProbes
			w.reportBad(bad, got, supervise.SilentTooLong(w.launcher.config.MaxBusy, text))
		case got == supervise.Busy && bad < supervise.MaxBadProbes && w.launcher.requestsAt(engines.ReplicaID(w.key.model, w.key.index)) > 0:
			bad = 0
			w.reportHealthy(suspected && !silent)
		case got == supervise.Untold:
		default:
			bad++
			w.reportBad(bad, got, text)
		}
	}
}

// takeSilent returns silent, and sets it to false.
func (w *watch) takeSilent() bool {
	w.launcher.mu.Lock()
	defer w.launcher.mu.Unlock()
	silent := w.silent
	w.silent = false
	return silent
}

// model returns the newest revision of the replica's model; zero if it is not wanted any more.
func (w *watch) model() desiredModel {
	w.launcher.mu.Lock()
	defer w.launcher.mu.Unlock()
	return w.launcher.models[w.key.model]
}

// awaitReady probes until the engine is ready. It returns false if ctx has ended, or if the engine
// takes longer than the model allows.
func (w *watch) awaitReady(ctx context.Context) bool {
	began, shown := time.Now(), time.Now()
	for ctx.Err() == nil {
		m := w.model()
		got, text := w.launcher.prober.Probe(ctx, w.address, m.Version.Ready.Path)
		if ctx.Err() != nil {
			return false
		}
		if got == supervise.Healthy {
			w.change(func(r *replica) {
				w.launcher.config.Log.Info("replica ready", zap.String("replica", r.ID), zap.String("job", r.job), zap.String("node", r.Node))
				r.readySince, r.served, r.collisions = time.Now(), true, 0
				r.FailedStarts, r.Failure = 0, ""
				if !r.submitted.IsZero() {
					r.LoadTime = time.Since(r.submitted)
				}
				r.show(engines.Ready, "")
			})
			return true
		}
		if limit := cmp.Or(m.StartTimeout, defaultStartTimeout); time.Since(began) >= limit && w.launcher.group.mayWrite() {
			lines := w.log(ctx, m)
			w.change(func(r *replica) {
				r.lost = time.Now()
				r.show(engines.Failed, supervise.WithLog(fmt.Sprintf("not ready after %v: %s", limit, text), lines))
			})
			notify(w.launcher.wake)
			return false
		}
		w.change(func(*replica) {})
		if time.Since(shown) >= progressInterval {
			shown = time.Now()
			if lines := w.log(ctx, m); len(lines) > 0 {
				w.change(func(r *replica) { r.show(engines.Starting, lines[len(lines)-1]) })
			}
		}
		w.pause(ctx, cmp.Or(m.Version.Ready.Every, defaultReadyInterval))
	}
	return false
}

// log returns the last lines of the log of a replica that nobody could send a prompt yet. It
// returns none for others, and if Ray does not answer.
func (w *watch) log(ctx context.Context, m desiredModel) []string {
	mayRead := false
	w.change(func(r *replica) { mayRead = !r.served })
	if !mayRead {
		return nil
	}
	log, _ := w.launcher.client.log(ctx, w.job) // the next reading may succeed
	return lastLines(m, log)
}

// reportHealthy shows that the replica serves.
func (w *watch) reportHealthy(suspected bool) {
	w.change(func(r *replica) {
		if !r.stopping.IsZero() {
			return // its job ends
		}
		r.lost = time.Time{}
		if r.State == engines.Failed {
			r.show(engines.Ready, "")
		}
	})
	if suspected {
		w.launcher.config.OnHealthy(engines.ReplicaID(w.key.model, w.key.index))
	}
}

// reportBad shows that a probe has failed. A server that refuses connections gets no requests any
// more. After MaxBadProbes the replica is lost.
func (w *watch) reportBad(bad int, got supervise.Result, text string) {
	w.change(func(r *replica) {
		if got == supervise.Refused || bad >= supervise.MaxBadProbes {
			r.show(engines.Failed, text)
		}
		if bad >= supervise.MaxBadProbes && r.lost.IsZero() {
			r.lost = time.Now()
		}
	})
	notify(w.launcher.wake) // Ray may know more
}

// show changes what the fleet shows, unless the replica drains.
func (r *replica) show(state engines.State, reason string) {
	if r.draining.IsZero() {
		r.set(state, reason)
	}
}

// change changes the replica, if it still has this job, and publishes it.
func (w *watch) change(change func(r *replica)) {
	l := w.launcher
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.replicas[w.key]
	if r == nil || r.watch != w {
		return
	}
	w.probed = true
	change(r)
	l.publishLocked()
}

// pause waits until the next probe is due: after d, or when the replica is suspected, which it
// returns.
func (w *watch) pause(ctx context.Context, d time.Duration) (suspected bool) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	case <-w.suspected:
		return true
	}
	return false
}
