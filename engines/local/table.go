package local

import (
	"cmp"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
)

// table holds one entry for every replica that is desired or has not stopped yet. One goroutine at
// a time owns it.
type table struct {
	fleet   *engines.Fleet
	log     *zap.Logger
	entries map[string]*entry // by replica id
	// node is the last reading of the inventory; nil until there is one.
	node *reading
	// host is the name of this node until the inventory says it.
	host string
}

// entry is one replica from its creation until it has stopped.
type entry struct {
	runner *runner
	// fingerprint identifies the command and environment that the replica was started with.
	fingerprint string
	// created is when the replica was first wanted.
	created time.Time
	// replica is what the fleet shows.
	replica engines.Replica
	// allocated: the replica holds its resources, or needs none.
	allocated bool
	// started: the runner's goroutine runs.
	started bool
	// draining: the replica gets no new requests and will stop. stopRequested: its runner knows.
	draining, stopRequested bool
	// wasReady: the replica was ready when it began to drain, so that draining may be cancelled.
	wasReady bool
}

// desiredModel is a model of the last Set.
type desiredModel struct {
	Model
	fingerprint string
}

// event is a runner's report on its replica. A replica whose State is Stopped is gone.
type event struct {
	runner  *runner
	replica engines.Replica
}

func newTable(c Config) *table {
	return &table{fleet: c.Fleet, log: c.Log, entries: map[string]*entry{}, host: cmp.Or(c.Name, hostName())}
}

// add creates the entry of a runner that has not started.
func (t *table) add(r *runner, fingerprint string) *entry {
	s := &entry{runner: r, fingerprint: fingerprint, created: time.Now(), replica: r.replica}
	s.replica.Since = s.created
	t.entries[r.replica.ID] = s
	return s
}

// apply takes over a runner's report.
func (t *table) apply(e event) {
	s, ok := t.entries[e.replica.ID]
	if !ok || s.runner != e.runner {
		return
	}
	if e.replica.State == engines.Stopped {
		delete(t.entries, e.replica.ID)
		t.log.Info("replica stopped", zap.String("replica", e.replica.ID))
		return
	}
	if s.draining {
		if e.replica.State == engines.Draining { // its process cannot be stopped
			s.replica.Reason = e.replica.Reason
		}
		return // the runner sent any other report before it got the signal
	}
	next := e.replica
	next.Since = s.replica.Since
	if next.State != s.replica.State {
		next.Since = time.Now()
		t.logChange(next)
	}
	s.replica = next
}

// logChange logs a change of state. It does not log a failure: the runner does so, because it knows
// the reason only some time after it has reported the failure.
func (t *table) logChange(r engines.Replica) {
	if r.State != engines.Failed {
		t.log.Info("replica state changed", zap.String("replica", r.ID), zap.String("state", string(r.State)), zap.Int("pid", r.PID))
	}
}

// reconcile compares the table with the desired models. It creates missing entries by create,
// unless create is nil, and drains those that are not desired.
func (t *table) reconcile(wanted []desiredModel, create func(m Model, index int) *runner) {
	keep := map[*entry]bool{}
	for _, m := range wanted {
		indices := m.Numbers()
		entries := make([]*entry, len(indices))
		for i, index := range indices {
			s, ok := t.entries[engines.ReplicaID(m.Name, index)]
			if !ok && create != nil {
				s = t.add(create(m.Model, index), m.fingerprint)
			}
			if s != nil {
				t.cancelDrain(s, m.fingerprint)
				s.runner.setModel(&m.Model)
				entries[i], keep[s] = s, true
			}
		}
		t.replaceOutdated(entries, m.fingerprint)
		t.replaceLost(entries)
	}
	for _, s := range t.entries {
		if !keep[s] {
			t.drain(s, "its model needs fewer replicas here")
		}
	}
}

// replaceOutdated drains replicas of an earlier command; the next reconcile creates their
// successors. A replica that serves is drained only while all others of its model serve too. So a
// command that does not work costs one replica, not all.
func (t *table) replaceOutdated(entries []*entry, fingerprint string) {
	serving := 0
	for _, s := range entries {
		if s != nil && !s.draining && s.replica.State == engines.Ready {
			serving++
		}
	}
	for _, s := range entries {
		if s == nil || s.draining || s.fingerprint == fingerprint {
			continue
		}
		if s.replica.State != engines.Ready || serving == len(entries) {
			why := "replaced: its command has changed"
			if s.fingerprint == "" { // see runner.recordRestart
				why = beingRestarted
			}
			t.drain(s, why)
			serving = 0
		}
	}
}

// replaceLost drains replicas that have failed and could not start again because one of their
// devices is missing. A replica that still serves without the device goes on.
func (t *table) replaceLost(entries []*entry) {
	for _, s := range entries {
		if s == nil || s.replica.State != engines.Failed {
			continue
		}
		if lost := t.missingDevices(s.replica); lost != "" {
			t.drain(s, lost)
		}
	}
}

// drain takes a replica out of the fleet's rotation. Its runner stops it when it has no requests.
func (t *table) drain(s *entry, why string) {
	if s.draining {
		return
	}
	s.draining, s.wasReady = true, s.replica.State == engines.Ready
	s.replica.State, s.replica.Reason, s.replica.Since = engines.Draining, why, time.Now()
	t.logChange(s.replica)
}

// cancelDrain lets a draining replica serve on if it is what is desired now and was ready. The
// runner then reports its state; until then the replica gets no requests. Once the runner has begun
// to stop the process, draining cannot be cancelled; a successor is created after the process has
// ended.
func (t *table) cancelDrain(s *entry, fingerprint string) {
	if !s.draining || !s.wasReady || s.fingerprint != fingerprint || !s.runner.stopSignal.cancel() {
		return
	}
	s.draining, s.stopRequested = false, false
	s.replica.Reason = "wanted again"
	t.log.Info("replica draining cancelled", zap.String("replica", s.replica.ID))
}

// signalRunners starts the runners that are new and have their resources, and signals those that
// must stop.
func (t *table) signalRunners(start func(*runner)) {
	for _, s := range t.entries {
		if s.draining && !s.stopRequested {
			s.stopRequested = true
			s.runner.stopSignal.request()
		}
		if !s.started && (s.allocated || s.draining) {
			s.started = true
			start(s.runner)
		}
	}
}

// drainAll drains every replica and returns the runners.
func (t *table) drainAll() []*runner {
	var runners []*runner
	for _, s := range t.entries {
		t.drain(s, "the gateway stops")
		runners = append(runners, s.runner)
	}
	return runners
}

// publish reports all entries to the fleet.
func (t *table) publish(wanted []desiredModel) {
	part := engines.Part{}
	for _, m := range wanted {
		part.Models = append(part.Models, m.Model.Model)
	}
	for _, s := range t.entries {
		part.Replicas = append(part.Replicas, t.report(s))
	}
	slices.SortFunc(part.Replicas, func(a, b engines.Replica) int { return cmp.Compare(a.ID, b.ID) })
	t.fleet.Set(source, part)
}

func (t *table) clear() { clear(t.entries) }
