package redis

import (
	"maps"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// refillTime is the time in which a bucket fills. What was charged longer ago is no longer owed.
const refillTime = time.Minute

// doubtedFor is how long a call that ends a task may be repeated after it got no answer. The store
// knows an ended task for a minute at least (common.lua, forget).
const doubtedFor = time.Minute

// heldLease is a lease of this process.
type heldLease struct {
	claim admission.Claim
	// grantedAloneAt is when the lease was granted without the store, until it is reported; zero
	// otherwise.
	grantedAloneAt time.Time
	// expires is when the lease of a task expires, until when the task ends at the latest.
	expires, until time.Time
	// inStore says that the store has the task, so that other gateways may have ended it.
	inStore bool
}

type changeKind byte

const (
	leaseEnded       changeKind = 'R'
	firstToken       changeKind = 'F'
	slotMoved        changeKind = 'M'
	bucketsCorrected changeKind = 'S'
	leaseAlive       changeKind = 'K'
	bucketLevel      changeKind = 'L'
)

// change is one thing to report to the store. The letter of its kind selects a function in
// sync.lua.
type change struct {
	kind  changeKind
	claim admission.Claim
	// from is the replica that the slot has left.
	from string
	// tokens and requests are given back; negative numbers are charged.
	tokens, requests int64
	// grantedAloneAt is set for a lease that the store never knew.
	grantedAloneAt time.Time
	expires, until time.Time
	bucket         bucketName
	level          level
}

// owed returns what the store must still charge for a lease that was granted without it. A lease
// that was recovered, or has no tokens, is of before a restart: its request was charged then.
func (c change) owed(now time.Time) (tokens, requests int64) {
	if c.grantedAloneAt.IsZero() || c.claim.Recovered || now.Sub(c.grantedAloneAt) >= refillTime || c.claim.Tokens <= 0 {
		return 0, 0
	}
	return c.claim.Tokens, 1
}

// ReportLease implements admission.Shared.
func (s *Store) ReportLease(c admission.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unanswered, c.ID)
	h := &heldLease{claim: c, grantedAloneAt: time.Now()}
	if c.Task != nil {
		h.expires, h.until = h.grantedAloneAt.Add(c.Task.Lease), h.grantedAloneAt.Add(c.Task.Lifetime)
		s.tasks[c.ID] = h
	} else {
		s.live[c.ID] = h
	}
	s.unreported[c.ID] = h
	s.wakeRun()
}

// Release implements admission.Shared.
func (s *Store) Release(id string, tokens int64, unused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked(id, tokens, unused)
}

func (s *Store) releaseLocked(id string, tokens int64, unused bool) {
	h := s.live[id]
	if h == nil {
		h = s.tasks[id]
	}
	if h == nil {
		return
	}
	delete(s.live, id)
	delete(s.tasks, id)
	delete(s.unreported, id)
	c := change{kind: leaseEnded, claim: h.claim, tokens: tokens, grantedAloneAt: h.grantedAloneAt}
	if unused {
		c.requests = 1
	}
	s.addChangeLocked(c)
}

// MoveSlot implements admission.Shared.
func (s *Store) MoveSlot(id, replica string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.live[id]
	if h == nil {
		return
	}
	from := h.claim.Replica
	h.claim.Replica = replica
	s.addChangeLocked(change{kind: slotMoved, claim: h.claim, from: from})
}

// FirstToken implements admission.Shared.
func (s *Store) FirstToken(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.live[id]
	if h == nil || !h.claim.Prefill {
		return
	}
	h.claim.Prefill = false
	s.addChangeLocked(change{kind: firstToken, claim: h.claim})
}

// Correct implements admission.Shared.
func (s *Store) Correct(model, tenant, underTask string, tokens int64) {
	if tokens == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addChangeLocked(change{kind: bucketsCorrected, claim: admission.Claim{Model: model, Tenant: tenant, UnderTask: underTask}, tokens: tokens})
}

func (s *Store) addChangeLocked(c change) {
	if len(s.changes) >= queueLimit {
		s.changes = s.changes[1:]
	}
	s.changes = append(s.changes, c)
	s.wakeRun()
}

// batch is the changes of one sync. It keeps its number until it has an answer, so the store
// applies it once however often it is sent. seq 0 means that there is none.
type batch struct {
	changes []change
	seq     int64
}

// nextBatch makes the batch of the next sync, or returns the last one again if it has no answer.
func (s *Store) nextBatch() batch {
	if s.batch.seq > 0 {
		return s.batch
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.changes), batchLimit)
	b := batch{changes: s.changes[:n:n]}
	s.changes = s.changes[n:]
	if len(s.changes) == 0 {
		s.changes = nil
	}
	for id, h := range s.unreported {
		if len(b.changes) >= batchLimit {
			break
		}
		delete(s.unreported, id)
		b.changes = append(b.changes, change{kind: leaseAlive, claim: h.claim, grantedAloneAt: h.grantedAloneAt, expires: h.expires, until: h.until})
		h.grantedAloneAt = time.Time{} // from here on the store charges it
	}
	if len(b.changes) > 0 {
		s.batchSeq++
		b.seq = s.batchSeq
		s.batch = b
	}
	return b
}

type endedLease struct {
	id, model, tenant, replica, underTask string
	prefill, task                         bool
	at                                    time.Time
}

// rememberEndLocked records that a lease has ended in the store.
func (s *Store) rememberEndLocked(c admission.Claim) {
	s.ended = append(s.ended, endedLease{c.ID, c.Model, c.Tenant, c.Replica, c.UnderTask, c.Prefill, c.Task != nil, time.Now()})
}

// change ends the lease once more, at a store that may have it again. It charges nothing.
func (e endedLease) change() change {
	c := admission.Claim{ID: e.id, Model: e.model, Tenant: e.tenant, Replica: e.replica, UnderTask: e.underTask, Prefill: e.prefill}
	if e.task {
		c.Task = new(admission.TaskClaim)
	}
	return change{kind: leaseEnded, claim: c}
}

// confirmBatch is called when the batch has its answer.
func (s *Store) confirmBatch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.batch.changes {
		if c.kind == leaseEnded && (c.claim.Task == nil || c.requests == 0) { // a call may make a task again that was taken back
			s.rememberEndLocked(c.claim)
		}
		if h := s.tasks[c.claim.ID]; c.kind == leaseAlive && h != nil {
			h.inStore = true
		}
	}
	s.ended = s.ended[max(len(s.ended)-endedLimit, 0):]
	s.batch = batch{}
}

// hasChanges reports whether there is anything to report.
func (s *Store) hasChanges() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.batch.seq > 0 || len(s.changes) > 0 || len(s.unreported) > 0
}

// renewLeases marks all leases for the next report. It forgets expired tasks, old levels, ended
// leases that no snapshot can have any more, and doubts of which the store knows nothing any more.
func (s *Store) renewLeases() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.unreported, s.live)
	now := time.Now()
	for id, h := range s.tasks {
		if !now.Before(h.expires) {
			delete(s.tasks, id)
		}
	}
	expired, _ := slices.BinarySearchFunc(s.ended, now.Add(-s.cfg.Lease), func(e endedLease, t time.Time) int { return e.at.Compare(t) })
	s.ended = slices.Delete(s.ended, 0, expired)
	maps.DeleteFunc(s.doubted, func(_ ownedTask, since time.Time) bool { return now.Sub(since) > doubtedFor })
	for name, l := range s.levels {
		if l.at(now) >= l.size {
			delete(s.levels, name)
		}
	}
}
