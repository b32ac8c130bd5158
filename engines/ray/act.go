package ray

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
)

// step is one call of Ray's API that a plan needs.
type step struct {
	what string
	job  string
	call func(ctx context.Context) error
}

// act plans for all models and makes the calls of the plans. steady is true if nothing starts or
// stops and no call has failed.
func (l *Launcher) act(ctx context.Context) (steady bool) {
	l.mu.Lock()
	steps := l.planLocked()
	steady = l.isSteadyLocked()
	l.publishLocked()
	l.mu.Unlock()
	for _, s := range steps {
		held, cancel := l.group.bound(ctx)
		err := s.call(held)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		l.noteCall(s, err)
		if err != nil {
			steady = false
			l.config.Log.Warn("call of Ray failed", zap.String("call", s.what), zap.String("job", s.job), zap.Error(err))
			continue
		}
		l.config.Log.Info("call of Ray made", zap.String("call", s.what), zap.String("job", s.job))
	}
	return steady && len(steps) == 0
}

// noteCall remembers whether Ray takes calls.
func (l *Launcher) noteCall(s step, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.refused = ""
		return
	}
	if l.refused == "" {
		l.refusedSince = time.Now()
	}
	l.refused = s.what + ": " + err.Error()
}

// planLocked plans for all models, changes the replicas accordingly, and returns the calls to make.
// mu is held.
func (l *Launcher) planLocked() []step {
	if !l.mayWriteLocked() {
		return nil
	}
	now := time.Now()
	steps := l.endStaleLocked(now)
	names := map[string]bool{}
	for name := range l.models {
		names[name] = true
	}
	for k := range l.replicas {
		names[k.model] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		m, wanted := l.models[name]
		var units []unit
		for k, r := range l.replicas {
			if k.model == name {
				steps = append(steps, l.stopLostLocked(r, now)...)
				units = append(units, l.unitLocked(k, r, m, now))
			}
		}
		slices.SortFunc(units, func(a, b unit) int { return a.index - b.index })
		want := target{spec: m.specHash, roomMade: l.roomMade[roomKey{name, m.specHash}]}
		if wanted {
			want.desired = m.Desired
		}
		for _, a := range plan(want, units) {
			steps = append(steps, l.executeLocked(m, a.kind, key{name, a.index})...)
		}
	}
	return steps
}

// unitLocked describes a replica for plan. mu is held.
func (l *Launcher) unitLocked(k key, r *replica, m desiredModel, now time.Time) unit {
	u := unit{index: k.index, spec: r.meta.spec, ready: r.State == engines.Ready, ended: r.ended, due: !now.Before(r.retryAt),
		draining: !r.draining.IsZero(), stopping: !r.stopping.IsZero(), stopAgain: now.Sub(r.stopSent) >= stopRepeat, requests: l.requestsAt(r.ID)}
	if r.restartJob != "" && r.restartJob == r.job {
		u.spec = restarted
	}
	if u.ended {
		u.spec = m.specHash
	}
	u.stuck = r.State == engines.Pending && now.Sub(r.Since) >= makeRoomAfter
	if u.draining {
		timeout := r.meta.drain
		if m.Name != "" {
			timeout = m.DrainTimeout
		}
		waited := now.Sub(r.draining)
		u.drained = waited >= cmp.Or(timeout, l.config.DrainTimeout) ||
			waited >= l.config.DrainSettle && u.requests == 0 && l.group.haveDrained(r.job, r.drainID)
	}
	return u
}

// requestsAt returns how many requests all gateways of the group have on a replica.
func (l *Launcher) requestsAt(replica string) int {
	return l.config.InFlight(replica) + l.group.requests(replica)
}

// stopRepeat is how often a job that runs on is told to stop. Ray passes a stop on without learning
// whether it has arrived.
const stopRepeat = 10 * time.Second

// endStaleLocked stops the jobs of replicas that have a newer one, and deletes them when they have
// ended. mu is held.
func (l *Launcher) endStaleLocked(now time.Time) []step {
	var steps []step
	asked := map[string]time.Time{}
	for _, j := range l.stale {
		id := j.SubmissionID
		if j.hasEnded() {
			steps = append(steps, step{"delete job", id, func(ctx context.Context) error { return l.client.remove(ctx, id) }})
			continue
		}
		if asked[id] = l.stopAsked[id]; now.Sub(asked[id]) >= stopRepeat {
			asked[id] = now
			steps = append(steps, step{"stop job", id, func(ctx context.Context) error { return l.client.stop(ctx, id) }})
		}
	}
	l.stopAsked = asked
	return steps
}

// stopLostLocked stops the job of a replica whose server is dead, though Ray says that it runs. The
// replica counts as ended when the job has had time to end. mu is held.
func (l *Launcher) stopLostLocked(r *replica, now time.Time) []step {
	switch {
	case r.lost.IsZero() || r.ended:
		return nil
	case r.stopping.IsZero():
		r.stopping, r.stopSent = now, now
		return []step{l.stopStep(r)}
	case now.Sub(r.stopping) >= stopSettle:
		l.endLocked(r, r.Reason)
	}
	return nil
}

func (l *Launcher) stopStep(r *replica) step {
	job := r.job
	return step{"stop job", job, func(ctx context.Context) error {
		err := l.client.stop(ctx, job)
		if err != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			if r.job == job && r.lost.IsZero() {
				r.stopping = time.Time{} // the next plan stops it again
			}
		}
		return err
	}}
}

// executeLocked changes a replica as an action says, and returns the call that the action needs. mu
// is held.
func (l *Launcher) executeLocked(m desiredModel, kind actionKind, k key) []step {
	r := l.replicas[k]
	notify(l.changed)
	switch kind {
	case actionSubmit:
		return l.submitLocked(m, k)
	case actionMakeRoom:
		l.roomMade[roomKey{k.model, m.specHash}]++
		fallthrough
	case actionDrain:
		r.drain(strconv.FormatInt(time.Now().UnixNano(), 36))
	case actionUndrain:
		r.undrain()
	case actionStop:
		r.stopSent = time.Now()
		if r.stopping.IsZero() {
			r.stopping = r.stopSent
		}
		return []step{l.stopStep(r)}
	case actionForget:
		l.forgetLocked(k, r)
		return l.removeStep(r)
	}
	return nil
}

// drain begins to drain a replica. id is what all gateways call this drain.
func (r *replica) drain(id string) {
	r.draining, r.drainID = time.Now(), id
	r.set(engines.Draining, "")
}

// undrain takes a drain back.
func (r *replica) undrain() {
	r.draining, r.drainID = time.Time{}, ""
	r.set(r.stateBeforeDrain(), "")
}

// forgetLocked removes a replica. mu is held.
func (l *Launcher) forgetLocked(k key, r *replica) {
	l.unwatchLocked(r)
	delete(l.replicas, k)
}

// stateBeforeDrain returns the state of a replica that stops draining.
func (r *replica) stateBeforeDrain() engines.State {
	switch {
	case !r.readySince.IsZero():
		return engines.Ready
	case r.watch != nil:
		return engines.Starting
	}
	return engines.Pending
}

// removeStep returns the call that deletes what Ray knows of the ended job of a replica.
func (l *Launcher) removeStep(r *replica) []step {
	if !r.listed {
		return nil
	}
	job := r.job
	return []step{{"delete job", job, func(ctx context.Context) error { return l.client.remove(ctx, job) }}}
}

// submitLocked makes the next job of a replica, which may be a new one, and returns the call that
// starts it. mu is held.
func (l *Launcher) submitLocked(m desiredModel, k key) []step {
	r := l.replicas[k]
	restarts := 0
	if r == nil {
		r = l.addLocked(k)
	} else {
		restarts = r.meta.restarts + 1
	}
	meta := metadata{install: l.config.Name, gateway: l.config.Identity, model: k.model, index: k.index, spec: m.specHash,
		restarts: restarts, drain: m.DrainTimeout}
	var err error
	var job submission
	if meta.port, err = l.freePortLocked(r.meta.port); err == nil {
		job, err = m.newJob(meta, m.driverNode(l.nodes))
	}
	if err != nil {
		r.ended = true
		l.failLocked(r, err.Error())
		return nil
	}
	l.beginLocked(r, job.SubmissionID, meta)
	l.ours[job.SubmissionID] = true
	return []step{{"submit job", job.SubmissionID, func(ctx context.Context) error {
		err := l.client.submit(ctx, job)
		var refused *answerError
		if errors.As(err, &refused) {
			l.mu.Lock()
			defer l.mu.Unlock()
			if r.job == job.SubmissionID {
				l.endLocked(r, err.Error())
				l.publishLocked()
			}
		}
		return err
	}}}
}

// driverNode returns the address of the node for the job of a replica that must spread over several
// nodes. It is the node with the most GPUs among those that the model may use. It is empty if one
// node has enough GPUs, if none has any, or if the engine cannot spread.
func (m Model) driverNode(nodes []rayNode) string {
	if m.Resources == nil || m.Version.RayVariables == nil {
		return ""
	}
	address, most := "", 0.0
	for _, n := range nodes {
		if gpus := n.Resources["GPU"]; n.isAlive() && gpus > most && (m.Cluster == "" || n.Resources[m.Cluster] > 0) {
			address, most = n.IP, gpus
		}
	}
	if m.Resources.GPU <= most {
		return ""
	}
	return address
}

// freePortLocked returns a port that no replica has. It does not return the port to avoid, which
// another program may have. mu is held.
func (l *Launcher) freePortLocked(avoid int) (int, error) {
	used := map[int]bool{avoid: true}
	for _, r := range l.replicas {
		if !r.ended {
			used[r.meta.port] = true
		}
	}
	count := l.config.Ports.Last - l.config.Ports.First + 1
	first := rand.IntN(count)
	for i := range count {
		if port := l.config.Ports.First + (first+i)%count; !used[port] {
			return port, nil
		}
	}
	return 0, fmt.Errorf("all ports of ray.ports (%d-%d) are in use by replicas", l.config.Ports.First, l.config.Ports.Last)
}

// isSteadyLocked reports whether every replica serves. mu is held.
func (l *Launcher) isSteadyLocked() bool {
	for _, r := range l.replicas {
		if r.State != engines.Ready {
			return false
		}
	}
	return true
}
