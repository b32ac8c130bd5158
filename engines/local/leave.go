package local

import (
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
	// insistFirst and insistMost bound the pauses between attempts to end a process that does not end.
	insistFirst = time.Second
	insistMost  = time.Minute
)

// notice is what a replica was told of its stay. The table tells it to leave and may recall it; the runner has the last word, when it
// ends the process: of a recall and an end that meet, exactly one happens.
type notice struct {
	mu sync.Mutex
	// now is the term that runs; guarded by mu
	now *term
	// ending: the process was told to end, and nothing recalls it; guarded by mu
	ending bool
}

// term is the time from a replica's beginning, or its recall, to its next recall.
type term struct {
	// left ends when the replica is told to leave, recalled when it may stay after all.
	left, recalled        context.Context
	tellLeave, tellRecall context.CancelFunc
}

// begin starts a term.
func (n *notice) begin() {
	t := new(term)
	t.left, t.tellLeave = context.WithCancel(context.Background())
	t.recalled, t.tellRecall = context.WithCancel(context.Background())
	n.now = t
}

func (n *notice) current() *term {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

// leave tells the replica to leave.
func (n *notice) leave() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now.tellLeave()
}

// recall lets it stay, and reports whether it came in time.
func (n *notice) recall() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ending {
		return false
	}
	if n.now.left.Err() != nil {
		n.now.tellRecall()
		n.begin()
	}
	return true
}

// end is the runner's last word in a term: from now on nothing recalls the replica. It reports false when it was recalled.
func (n *notice) end(t *term) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ending = n.now == t
	return n.ending
}

// depart finishes a replica's requests and ends its process. It reports false when the replica was recalled before that, or when ctx has
// ended: then the process still runs.
func (r *runner) depart(ctx context.Context, t *term) bool {
	if r.process != nil && r.served {
		draining, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(t.recalled, cancel)
		r.drain(draining, orStandard(r.model.Load().DrainTimeout, r.launcher.config.DrainTimeout))
		stop()
		cancel()
	}
	if ctx.Err() != nil || !r.notice.end(t) || !r.insist(ctx, engines.Draining) {
		return false
	}
	r.report(ctx, engines.Stopped, "")
	return true
}

// leave waits until the replica's requests are done, if it has ever had any, but no longer than atMost, and ends the process.
func (r *runner) leave(ctx context.Context, atMost time.Duration) error {
	if r.process != nil && r.served {
		r.drain(ctx, atMost)
	}
	return r.end(ctx)
}

// drain returns when the replica has no requests, at the earliest after DrainSettle: until then somebody may still send it
// one on the strength of an older snapshot.
func (r *runner) drain(ctx context.Context, atMost time.Duration) {
	c := r.launcher.config
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	alive, cancel := whileAlive(ctx, r.process)
	defer cancel()
	wait(alive, c.DrainSettle)
	for c.InFlight != nil && alive.Err() == nil && c.InFlight(r.id) > 0 {
		wait(alive, drainLook)
	}
}

// insist ends the process, however often it takes, and reports false when ctx ends before that. A process that even SIGKILL does not
// end, in a system call of a driver that hangs, has its GPU and its port still: nobody else may get them.
func (r *runner) insist(ctx context.Context, state engines.State) bool {
	for pause := insistFirst; ; pause = min(2*pause, insistMost) {
		err := r.end(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		r.launcher.config.Log.Error("replica cannot be ended; it is tried again", zap.String("replica", r.id), zap.Error(err))
		r.report(ctx, state, "it cannot be ended, which is tried again and again: "+err.Error())
		wait(ctx, pause)
	}
}

// end ends the process, if there is one, and gives its port, its turn to start and its cgroup back. When that fails, it has them still.
func (r *runner) end(ctx context.Context) error {
	if r.process != nil {
		err := r.launcher.stop(r.process, ctx, r.launcher.config.StopGrace)
		if err != nil && !errors.Is(err, process.ErrNotClaimed) {
			return err
		}
	}
	r.launcher.turns.done(r.id)
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
