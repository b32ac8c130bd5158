package local

import (
	"cmp"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
)

// table is what exists: one slot for every replica that is wanted or has not left yet. One goroutine at a time owns it.
type table struct {
	fleet *engines.Fleet
	log   *zap.Logger
	slots map[string]*slot // by replica id
	// node is what this host has; nil until it is known.
	node *reading
	// host is the name of this host until the inventory tells it.
	host string
}

// slot is the place of one replica, from its creation until it has left.
type slot struct {
	runner *runner
	// fingerprint tells what the replica was started as.
	fingerprint string
	// replica is what the fleet is told.
	replica engines.Replica
	// placed: the replica has what it needs of the host, or needs nothing.
	placed bool
	// begun: the runner's goroutine runs.
	begun bool
	// leaving: the replica gets no more requests and ends; told: its runner knows.
	leaving, told bool
	// served: it was ready when it was to leave, and may be recalled.
	served bool
}

// wish is a model that is wanted.
type wish struct {
	Model
	fingerprint string
}

// event is what a runner tells of its replica. A replica that says Stopped has left.
type event struct {
	runner  *runner
	replica engines.Replica
}

func newTable(c Config) *table {
	return &table{fleet: c.Fleet, log: c.Log, slots: map[string]*slot{}, host: cmp.Or(c.Name, hostName())}
}

// add makes a slot for a runner that has not begun.
func (t *table) add(r *runner, fingerprint string) *slot {
	s := &slot{runner: r, fingerprint: fingerprint, replica: r.replica}
	s.replica.Since = time.Now()
	t.slots[r.replica.ID] = s
	return s
}

// apply takes in what a runner tells.
func (t *table) apply(e event) {
	s, ok := t.slots[e.replica.ID]
	if !ok || s.runner != e.runner {
		return
	}
	if e.replica.State == engines.Stopped {
		delete(t.slots, e.replica.ID)
		t.log.Info("replica has left", zap.String("replica", e.replica.ID))
		return
	}
	if s.leaving {
		if e.replica.State == engines.Draining { // it cannot be ended
			s.replica.Reason = e.replica.Reason
		}
		return // anything else was under way before the runner knew
	}
	next := e.replica
	next.Since = s.replica.Since
	if next.State != s.replica.State {
		next.Since = time.Now()
		t.logChange(next)
	}
	s.replica = next
}

// logChange leaves a failure to the runner, which knows its reason a little later than it tells that there is one.
func (t *table) logChange(r engines.Replica) {
	if r.State != engines.Failed {
		t.log.Info("replica", zap.String("replica", r.ID), zap.String("state", string(r.State)), zap.Int("pid", r.PID))
	}
}

// reconcile compares the table with what is wanted. It creates slots by create, unless that is nil, and marks those that leave.
func (t *table) reconcile(wanted []wish, create func(m Model, index int) *runner) {
	stay := map[*slot]bool{}
	for _, m := range wanted {
		indices := m.Numbers()
		slots := make([]*slot, len(indices))
		for i, index := range indices {
			s, ok := t.slots[ReplicaID(m.Name, index)]
			if !ok && create != nil {
				s = t.add(create(m.Model, index), m.fingerprint)
			}
			if s != nil {
				t.recall(s, m.fingerprint)
				s.runner.heed(&m.Model)
				slots[i], stay[s] = s, true
			}
		}
		t.replaceOutdated(slots, m.fingerprint)
		t.replaceLost(slots)
	}
	for _, s := range t.slots {
		if !stay[s] {
			t.leave(s, "no longer wanted")
		}
	}
}

// replaceOutdated lets replicas of an earlier command leave; the next reconcile puts new ones in their places. One that serves
// leaves only while all others of its model serve too. So a command that does not work costs one replica, not all.
func (t *table) replaceOutdated(slots []*slot, fingerprint string) {
	serving := 0
	for _, s := range slots {
		if s != nil && !s.leaving && s.replica.State == engines.Ready {
			serving++
		}
	}
	for _, s := range slots {
		if s == nil || s.leaving || s.fingerprint == fingerprint {
			continue
		}
		if s.replica.State != engines.Ready || serving == len(slots) {
			t.leave(s, "replaced: its command has changed")
			serving = 0
		}
	}
}

// replaceLost lets replicas leave that have failed and could not start again, because a device of theirs is gone. One that
// still serves in spite of it may.
func (t *table) replaceLost(slots []*slot) {
	for _, s := range slots {
		if s == nil || s.replica.State != engines.Failed {
			continue
		}
		if lost := t.lost(s.replica); lost != "" {
			t.leave(s, lost)
		}
	}
}

func (t *table) leave(s *slot, why string) {
	if s.leaving {
		return
	}
	s.leaving, s.served = true, s.replica.State == engines.Ready
	s.replica.State, s.replica.Reason, s.replica.Since = engines.Draining, why, time.Now()
	t.logChange(s.replica)
}

// recall lets a replica that leaves stay, if it is what is wanted and still serves what it has. Its runner then says what it is: until
// then it gets no requests. A runner that has told its process to end is not to be stopped; another replica comes when it is gone.
func (t *table) recall(s *slot, fingerprint string) {
	if !s.leaving || !s.served || s.fingerprint != fingerprint || !s.runner.notice.recall() {
		return
	}
	s.leaving, s.told = false, false
	s.replica.Reason = "wanted again"
	t.log.Info("replica is wanted again", zap.String("replica", s.replica.ID))
}

// carryOut begins the runners that are new and have a place, and tells those that leave.
func (t *table) carryOut(begin func(*runner)) {
	for _, s := range t.slots {
		if s.leaving && !s.told {
			s.told = true
			s.runner.notice.leave()
		}
		if !s.begun && (s.placed || s.leaving) {
			s.begun = true
			begin(s.runner)
		}
	}
}

// allLeave marks every replica and returns their runners.
func (t *table) allLeave() []*runner {
	var runners []*runner
	for _, s := range t.slots {
		t.leave(s, "the gateway stops")
		runners = append(runners, s.runner)
	}
	return runners
}

// publish reports to the fleet.
func (t *table) publish(wanted []wish) {
	part := engines.Part{}
	for _, m := range wanted {
		part.Models = append(part.Models, m.Model.Model)
	}
	for _, s := range t.slots {
		part.Replicas = append(part.Replicas, t.report(s))
	}
	slices.SortFunc(part.Replicas, func(a, b engines.Replica) int { return cmp.Compare(a.ID, b.ID) })
	t.fleet.Set(source, part)
}

func (t *table) clear() { clear(t.slots) }
