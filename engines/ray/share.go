package ray

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
)

// share exchanges records with the other gateways until ctx ends: ten times in the time of a lease,
// and earlier if something has changed.
func (l *Launcher) share(ctx context.Context) {
	for ctx.Err() == nil {
		wait(ctx, l.config.Lease/50, nil)
		wait(ctx, l.config.Lease/10-l.config.Lease/50, l.changed)
		l.exchange(ctx)
	}
}

// wait waits for d, for a token, or until ctx ends.
func wait(ctx context.Context, d time.Duration, token <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	case <-token:
	}
}

// exchange tells the other gateways what this one has, and follows the writer.
func (l *Launcher) exchange(ctx context.Context) {
	term, writer, fault := l.group.heldTerm(), l.group.writerName(l.config.Identity), l.group.fault()
	waiting, err := l.group.exchange(ctx, l.record())
	if ctx.Err() != nil {
		return
	}
	if now := l.group.writerName(l.config.Identity); now != writer && now != "" {
		l.config.Log.Info("gateway writes the jobs on Ray", zap.String("writer", now), zap.String("installation", l.config.Name))
	}
	if fault == "" && l.group.fault() != "" {
		l.config.Log.Warn("Redis does not answer, this gateway starts and stops no job on Ray", zap.Error(err))
	}
	l.mu.Lock()
	if l.followLocked() {
		l.publishLocked()
	}
	behind := l.isBehindLocked()
	l.mu.Unlock()
	if behind || l.group.heldTerm() != term {
		notify(l.wake)
	}
	for _, model := range waiting {
		l.config.OnDemand(model)
	}
}

// record returns what this gateway tells the others.
func (l *Launcher) record() record {
	writes := l.group.mayWrite()
	r := record{Gateway: l.config.Identity, Models: map[string]engines.Load{}, Requests: map[string]int{}, Jobs: map[string]string{}}
	l.mu.Lock()
	models := l.order
	for _, replica := range l.replicas {
		if n := l.config.InFlight(replica.ID); n > 0 {
			r.Requests[replica.ID] = n
		}
		if replica.job != "" && writes {
			r.Jobs[replica.job] = replica.drainID
		}
	}
	r.Drained = l.drainedLocked()
	l.mu.Unlock()
	for _, model := range models {
		if load := l.config.Load(model); load != (engines.Load{}) {
			r.Models[model] = load
		}
	}
	return r
}

// drainedLocked returns the drain ids, by job, of what the writer drains and this gateway is done
// with. A job that is not known here was never used, and will be known as one that drains. mu is
// held.
func (l *Launcher) drainedLocked() map[string]string {
	drained := map[string]string{}
	for job, id := range l.group.writersJobs() {
		if id != "" {
			drained[job] = id
		}
	}
	for _, r := range l.replicas {
		done := r.drainID == drained[r.job] && time.Since(r.draining) >= l.config.DrainSettle && l.config.InFlight(r.ID) == 0
		if !done {
			delete(drained, r.job)
		}
	}
	return drained
}

// followLocked begins and ends the draining of replicas as the writer does. A job that the writer
// does not list stays as it is: it ends, or it is new. followLocked reports whether something has
// changed. mu is held.
func (l *Launcher) followLocked() (changed bool) {
	jobs := l.group.writersJobs()
	for _, r := range l.replicas {
		id, listed := jobs[r.job]
		if !listed || id == r.drainID {
			continue
		}
		changed = true
		if id == "" {
			r.undrain()
		} else {
			r.drain(id)
		}
	}
	return changed
}

// isBehindLocked reports whether the writer has a job that this gateway has not read yet. mu is
// held.
func (l *Launcher) isBehindLocked() bool {
	known := map[string]bool{}
	for _, r := range l.replicas {
		known[r.job] = true
	}
	for job := range l.group.writersJobs() {
		if !known[job] {
			return true
		}
	}
	return false
}

// leave leaves the group when the launcher ends.
func (l *Launcher) leave() {
	if l.group == nil {
		return
	}
	last := l.record()
	last.Models = nil // a successor reports the load again
	l.group.leave(last)
}

// OthersLoad returns the load that the other live gateways of the group report for the model.
func (l *Launcher) OthersLoad(model string) engines.Load { return l.group.load(model) }

// OthersRefused returns Load.Refused of each of the other live gateways of the group for the model.
func (l *Launcher) OthersRefused(model string) map[string]uint64 { return l.group.refused(model) }

// PublishLoad tells the writer soon what load this gateway has, because a request waits. It does
// not block.
func (l *Launcher) PublishLoad() {
	if l.group != nil {
		notify(l.changed)
	}
}
