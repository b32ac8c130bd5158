package redis

import (
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// refilled is how long a bucket takes to be full again. What was taken longer ago than that is not owed any more.
const refillTime = time.Minute

// held is a lease that this process has.
type heldLease struct {
	claim admission.Claim
	// kept is when it was taken without asking, as long as it has not been told; else zero.
	grantedAloneAt time.Time
	// expires is when the lease of a task ends.
	expires time.Time
	// inStore: the store has had it, so that other gateways may have ended it.
	inStore bool
}

type changeKind byte

const (
	leaseEnded       changeKind = 'R'
	firstToken       changeKind = 'F'
	bucketsCorrected changeKind = 'S'
	leaseAlive       changeKind = 'K'
	bucketLevel      changeKind = 'L'
)

// change is one thing that the store is to be told.
type change struct {
	kind  changeKind
	claim admission.Claim
	// tokens and requests that are given back.
	tokens, requests int64
	// kept is when a lease was taken that the store was never told of.
	grantedAloneAt time.Time
	expires        time.Time
	bucket         bucketName
	level          level
}

// owed is what of a lease taken without asking still counts. One without tokens is of before a restart: its request was counted
// then.
func (c change) owed(now time.Time) (tokens, requests int64) {
	if c.grantedAloneAt.IsZero() || now.Sub(c.grantedAloneAt) >= refillTime || c.claim.Tokens <= 0 {
		return 0, 0
	}
	return c.claim.Tokens, 1
}

// Keep implements admission.Shared.
func (s *Store) ReportLease(c admission.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unanswered, c.ID)
	h := &heldLease{claim: c, grantedAloneAt: time.Now()}
	if c.Task != nil {
		h.expires = h.grantedAloneAt.Add(c.Task.Lease)
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

// Settle implements admission.Shared.
func (s *Store) Correct(model, tenant string, tokens int64) {
	if tokens == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addChangeLocked(change{kind: bucketsCorrected, claim: admission.Claim{Model: model, Tenant: tenant}, tokens: tokens})
}

func (s *Store) addChangeLocked(c change) {
	if len(s.changes) >= queueLimit {
		s.changes = s.changes[1:]
	}
	s.changes = append(s.changes, c)
	s.wakeRun()
}

// batch is what was told last. It keeps its number until the answer is there, so that it counts once however often it is sent.
type batch struct {
	changes []change
	seq     int64
}

// takeChanges makes the batch of the next turn, unless the last one has had no answer.
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
		b.changes = append(b.changes, change{kind: leaseAlive, claim: h.claim, grantedAloneAt: h.grantedAloneAt, expires: h.expires})
		h.grantedAloneAt = time.Time{} // from here on it is charged
	}
	if len(b.changes) > 0 {
		s.batchSeq++
		b.seq = s.batchSeq
		s.batch = b
	}
	return b
}

// told is called when the batch has had its answer.
func (s *Store) confirmBatch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.batch.changes {
		if h := s.tasks[c.claim.ID]; c.kind == leaseAlive && h != nil {
			h.inStore = true
		}
	}
	s.batch = batch{}
}

// pending reports whether there is something to tell.
func (s *Store) hasChanges() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.batch.seq > 0 || len(s.changes) > 0 || len(s.unreported) > 0
}

// renew has every lease told again, and forgets what is of no use any more.
func (s *Store) renewLeases() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, h := range s.live {
		s.unreported[id] = h
	}
	now := time.Now()
	for id, h := range s.tasks {
		if !now.Before(h.expires) {
			delete(s.tasks, id)
		}
	}
	for name, l := range s.levels {
		if now.Sub(l.seen) >= 2*refillTime {
			delete(s.levels, name)
		}
	}
}
