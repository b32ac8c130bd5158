package redis

import (
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// refilled is how long a bucket takes to be full again. What was taken longer ago than that is not owed any more.
const refilled = time.Minute

// held is a lease that this process has.
type held struct {
	claim admission.Claim
	// kept is when it was taken without asking, as long as it has not been told; else zero.
	kept time.Time
	// expires is when the lease of a task ends.
	expires time.Time
	// inStore: the store has had it, so that other gateways may have ended it.
	inStore bool
}

type kind byte

const (
	ended      kind = 'R'
	firstToken kind = 'F'
	settled    kind = 'S'
	alive      kind = 'K'
	lastLevel  kind = 'L'
)

// change is one thing that the store is to be told.
type change struct {
	kind  kind
	claim admission.Claim
	// tokens and requests that are given back.
	tokens, requests int64
	// kept is when a lease was taken that the store was never told of.
	kept    time.Time
	expires time.Time
	bucket  bucketName
	level   level
}

// owed is what of a lease taken without asking still counts. One without tokens is of before a restart: its request was counted
// then.
func (c change) owed(now time.Time) (tokens, requests int64) {
	if c.kept.IsZero() || now.Sub(c.kept) >= refilled || c.claim.Tokens <= 0 {
		return 0, 0
	}
	return c.claim.Tokens, 1
}

// Keep implements admission.Shared.
func (s *Store) Keep(c admission.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lost, c.ID)
	h := &held{claim: c, kept: time.Now()}
	if c.Task != nil {
		h.expires = h.kept.Add(c.Task.Lease)
		s.tasks[c.ID] = h
	} else {
		s.live[c.ID] = h
	}
	s.untold[c.ID] = h
	s.signal()
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
	delete(s.untold, id)
	c := change{kind: ended, claim: h.claim, tokens: tokens, kept: h.kept}
	if unused {
		c.requests = 1
	}
	s.changeLocked(c)
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
	s.changeLocked(change{kind: firstToken, claim: h.claim})
}

// Settle implements admission.Shared.
func (s *Store) Settle(model, tenant string, tokens int64) {
	if tokens == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changeLocked(change{kind: settled, claim: admission.Claim{Model: model, Tenant: tenant}, tokens: tokens})
}

func (s *Store) changeLocked(c change) {
	if len(s.changes) >= queueLimit {
		s.changes = s.changes[1:]
	}
	s.changes = append(s.changes, c)
	s.signal()
}

// batch is what was told last. It keeps its number until the answer is there, so that it counts once however often it is sent.
type batch struct {
	changes []change
	seq     int64
}

// takeChanges makes the batch of the next turn, unless the last one has had no answer.
func (s *Store) takeChanges() batch {
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
	for id, h := range s.untold {
		if len(b.changes) >= batchLimit {
			break
		}
		delete(s.untold, id)
		b.changes = append(b.changes, change{kind: alive, claim: h.claim, kept: h.kept, expires: h.expires})
		h.kept = time.Time{} // from here on it is charged
	}
	if len(b.changes) > 0 {
		s.seq++
		b.seq = s.seq
		s.batch = b
	}
	return b
}

// told is called when the batch has had its answer.
func (s *Store) told() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.batch.changes {
		if h := s.tasks[c.claim.ID]; c.kind == alive && h != nil {
			h.inStore = true
		}
	}
	s.batch = batch{}
}

// pending reports whether there is something to tell.
func (s *Store) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.batch.seq > 0 || len(s.changes) > 0 || len(s.untold) > 0
}

// renew has every lease told again, and forgets what is of no use any more.
func (s *Store) renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, h := range s.live {
		s.untold[id] = h
	}
	now := time.Now()
	for id, h := range s.tasks {
		if !now.Before(h.expires) {
			delete(s.tasks, id)
		}
	}
	for name, l := range s.levels {
		if now.Sub(l.seen) >= 2*refilled {
			delete(s.levels, name)
		}
	}
}
