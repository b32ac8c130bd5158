package redis

import (
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// call is one Acquire.
type call struct {
	claims []admission.Claim
	done   func([]admission.Verdict)
	// version of the limits when it came, and when that was.
	version string
	at      time.Time
	// verdicts of the first claims, as far as they are known.
	verdicts []admission.Verdict
	// blocked are models whose own limits turned a claim away.
	blocked map[string]admission.Verdict
}

// Acquire implements admission.Shared. It never calls done before it returns.
func (s *Store) Acquire(claims []admission.Claim, done func([]admission.Verdict)) {
	c := &call{claims: claims, done: done, at: time.Now()}
	s.mu.Lock()
	ask := (s.shared || s.resuming) && len(claims) > 0
	if ask {
		c.version = s.version
		s.calls = append(s.calls, c)
	}
	s.mu.Unlock()
	if ask {
		s.wakeRun()
	} else {
		go c.finish(admission.Unavailable)
	}
}

// finish answers those claims that have no verdict yet with the reason.
func (c *call) finish(r admission.Reason) {
	for len(c.verdicts) < len(c.claims) {
		c.verdicts = append(c.verdicts, admission.Verdict{Reason: r})
	}
	c.done(c.verdicts)
}

// skip answers claims that need no asking because of a verdict before them.
func (c *call) skipBlocked() {
	for len(c.verdicts) < len(c.claims) {
		v, ok := c.blocked[c.claims[len(c.verdicts)].Model]
		if !ok {
			return
		}
		c.verdicts = append(c.verdicts, v)
	}
}

// add is the next verdict.
func (c *call) addVerdict(v admission.Verdict) {
	model := c.claims[len(c.verdicts)].Model
	c.verdicts = append(c.verdicts, v)
	if v.Reason == admission.ModelConcurrency || v.Reason == admission.ModelTokens {
		if c.blocked == nil {
			c.blocked = map[string]admission.Verdict{}
		}
		c.blocked[model] = v
	}
}

// part is a run of claims of one call that are asked in one turn.
type callPart struct {
	call   *call
	claims []admission.Claim
}

// takeClaims chooses the claims of the next turn. Calls that waited too long are unavailable, those of other limits stale; the
// caller tells them.
func (s *Store) nextClaims() (parts []callPart, late, stale []*call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := batchLimit
	oldest := time.Now().Add(-2 * s.cfg.Timeout)
	for len(s.calls) > 0 && room > 0 {
		c := s.calls[0]
		switch {
		case c.at.Before(oldest):
			late = append(late, c)
		case c.version != s.version:
			stale = append(stale, c)
		default:
			rest := c.claims[len(c.verdicts):]
			n := min(len(rest), room)
			parts = append(parts, callPart{c, rest[:n]})
			room -= n
			if n < len(rest) {
				return parts, late, stale // it stays the first
			}
		}
		s.calls[0] = nil
		s.calls = s.calls[1:]
	}
	return parts, late, stale
}

// answer tells a call whose part has verdicts, if that was its last one; otherwise what is left is asked in the next turn.
func (s *Store) finishIfComplete(c *call) {
	c.skipBlocked()
	if len(c.verdicts) < len(c.claims) {
		return
	}
	s.mu.Lock()
	if len(s.calls) > 0 && s.calls[0] == c {
		s.calls = s.calls[1:]
	}
	s.mu.Unlock()
	c.done(c.verdicts)
}

// abandon answers the calls of a turn whose claims got no verdict. The claims that were sent may have been granted.
func (s *Store) failParts(parts []callPart, reason admission.Reason, sent bool) {
	s.mu.Lock()
	for _, p := range parts {
		if len(s.calls) > 0 && s.calls[0] == p.call {
			s.calls = s.calls[1:]
		}
		if !sent {
			continue
		}
		for _, claim := range p.claims {
			if s.live[claim.ID] == nil && s.tasks[claim.ID] == nil {
				s.unanswered[claim.ID] = claim
			}
		}
	}
	s.mu.Unlock()
	for _, p := range parts {
		p.call.finish(reason)
	}
}
