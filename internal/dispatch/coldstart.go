package dispatch

import (
	"cmp"
	"errors"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// errHopeless refuses the requests that wait for a model that is hopeless.
var errHopeless = errors.New("dispatch: the replicas keep failing to start, or no server can be reached")

const (
	// maxFailedStarts is how many failed starts in a row clients wait through. One may be chance.
	maxFailedStarts = 2
	// maxOutage is how long requests wait for servers of upstreams of which none can be reached. A
	// server that restarts is mostly back sooner.
	maxOutage = 30 * time.Second
	// unknownStart is how long a start is taken to last before any has been seen.
	unknownStart = 5 * time.Second
	// maxNextLook bounds the time until the next look at a start that takes longer than usual.
	maxNextLook = 30 * time.Second
	// maxStartsIn bounds the Retry-After of a start.
	maxStartsIn = 10 * time.Minute
)

// failingReplica returns the replica that is started again soonest, if all replicas of the model
// keep failing to start. Otherwise it returns nil. A replica whose weights arrive does not count as
// failing: what is left to fetch gets less with each try.
func failingReplica(m *engines.ModelSnapshot) *engines.Replica {
	var failing *engines.Replica
	for i := range m.Replicas {
		r := &m.Replicas[i]
		switch {
		case r.State == engines.Draining || r.State == engines.Stopped:
		case r.State == engines.Ready || r.FailedStarts < maxFailedStarts || r.Fetch.Rate > 0:
			return nil
		case failing == nil || r.NextStart.Before(failing.NextStart):
			failing = r
		}
	}
	return failing
}

// refuseCold refuses a request at once if no replica is ready and it is not to wait for one. It
// does not wait if the replicas keep failing to start, if no server of upstreams has been reached
// for maxOutage, or because of NoWait. The scaler learns of the request, so the start begins or
// goes on. It returns nil for every other request.
func (d *Dispatcher) refuseCold(c choice) *openai.Error {
	if !c.refusesCold() {
		return nil
	}
	for _, t := range c.members {
		t.estimator.refused.Add(1)
		d.config.Demand(t.Name)
	}
	now := time.Now()
	if fault := c.keepsFailing(c.title(), now); fault != nil {
		return fault
	}
	if c.all((*modelRoute).down) {
		return unreached(c)
	}
	return &openai.Error{Code: openai.CodeColdStartTimeout, RetryAfter: c.startsIn(now),
		Message: "No replica of " + c.name() + " is ready. One is being started."}
}

func unreached(c choice) *openai.Error {
	return openai.Errorf(openai.CodeNoReplica, "No server of %s can be reached.", c.name())
}

// refusesCold reports whether all models of the choice refuse requests at once now.
func (c choice) refusesCold() bool { return c.all((*modelRoute).refusesCold) }

// refusesCold reports whether requests for the model are refused at once now.
func (t *modelRoute) refusesCold() bool {
	return len(t.replicas) == 0 && (t.hopeless() || t.cold() && t.policy.ColdStart == NoWait)
}

// hopeless reports whether no request waits for the model: its replicas keep failing to start, or
// it is down.
func (t *modelRoute) hopeless() bool { return t.failing != nil || t.down() }

// watchOutageLocked looks at the model again when it will be down, unless old was watched for the
// same outage. old may be nil.
func (d *Dispatcher) watchOutageLocked(t, old *modelRoute) {
	if t.downSince.IsZero() || t.down() || old != nil && old.downSince.Equal(t.downSince) {
		return
	}
	time.AfterFunc(time.Until(t.downSince.Add(maxOutage)), func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.dirty[t.Name] = struct{}{}
		d.rebuildLocked()
	})
}

// down reports whether no server of upstreams has been reached for maxOutage.
func (t *modelRoute) down() bool {
	return !t.downSince.IsZero() && time.Since(t.downSince) >= maxOutage
}

// downSince returns when the last server failed, if all replicas of the model are servers of
// upstreams that have failed. Otherwise it returns the zero time.
func downSince(m *engines.ModelSnapshot) time.Time {
	var since time.Time
	for i := range m.Replicas {
		r := &m.Replicas[i]
		if m.Launcher != engines.Upstream || r.State != engines.Failed {
			return time.Time{}
		}
		if r.Since.After(since) {
			since = r.Since
		}
	}
	return since
}

// keepsFailing returns the error of a model or pool whose replicas all keep failing to start. It
// returns nil if there is no such replica.
func (c choice) keepsFailing(title string, now time.Time) *openai.Error {
	var failing *engines.Replica
	for _, t := range c.members {
		if t.failing != nil && (failing == nil || t.failing.NextStart.Before(failing.NextStart)) {
			failing = t.failing
		}
	}
	if failing == nil {
		return nil
	}
	text := title + " cannot be started: " + failing.Failure.Meaning() + "."
	wait := failing.NextStart.Sub(now)
	if wait <= 0 { // the start goes on, or nobody knows when the next one is
		wait = c.startsIn(now)
	} else {
		text += " The next start is in " + wait.Round(time.Second).String() + "."
	}
	return &openai.Error{Code: openai.CodeReplicaFailed, Message: text, RetryAfter: max(wait, time.Second)}
}

// explainHopeless returns the error of a request that no longer waits because its model is
// hopeless. By the newest routing table a replica may have become ready since, or the model may be
// gone.
func (d *Dispatcher) explainHopeless(c choice) *openai.Error {
	newest := d.table.Load().refresh(c)
	if fault := newest.keepsFailing(c.title(), time.Now()); fault != nil {
		return fault
	}
	if newest.any((*modelRoute).down) {
		return unreached(c)
	}
	return openai.Errorf(openai.CodeNoReplica, "No replica of %s was ready.", c.name())
}

// startsIn returns after which time a replica may be ready; see modelRoute.startsIn. For a pool it
// is the soonest of its models.
func (c choice) startsIn(now time.Time) time.Duration {
	soonest := maxStartsIn
	for _, t := range c.members {
		if t.mayServe {
			soonest = min(soonest, t.startsIn(now))
		}
	}
	return max(soonest, time.Second)
}

// startsIn returns what is left of the usual time of a start, and of the fetch of its weights. A
// start that takes longer, or the first one, is looked at again after as long as it has taken so
// far.
func (t *modelRoute) startsIn(now time.Time) time.Duration {
	usual := time.Duration(t.estimator.loadTime.Load())
	soonest := time.Duration(0)
	for i := range t.source.Replicas {
		r := &t.source.Replicas[i]
		if r.State != engines.Starting {
			continue
		}
		elapsed := now.Sub(r.Since)
		left := usual - elapsed
		switch {
		case r.Fetch.Rate > 0: // the start begins when the weights are there
			left = fetchEnds(r.Fetch) + usual
		case left <= 0:
			left = min(elapsed, maxNextLook)
		}
		if soonest == 0 || left < soonest {
			soonest = left
		}
	}
	return cmp.Or(soonest, usual, unknownStart)
}

// fetchEnds returns how long a fetch still takes at its rate, at most maxStartsIn.
func fetchEnds(f engines.Fetch) time.Duration {
	seconds := float64(f.Total-f.Done) / float64(f.Rate)
	return time.Duration(min(seconds, maxStartsIn.Seconds()) * float64(time.Second))
}

// learnLoadTime learns the time of a start from the replica that became ready last.
func (e *estimator) learnLoadTime(m *engines.ModelSnapshot) {
	var last *engines.Replica
	for i := range m.Replicas {
		if r := &m.Replicas[i]; r.State == engines.Ready && r.LoadTime > 0 && (last == nil || r.Since.After(last.Since)) {
			last = r
		}
	}
	if last != nil {
		e.loadTime.Store(int64(last.LoadTime))
	}
}
