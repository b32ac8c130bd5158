package redis

import (
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// call is one call of Acquire.
type call struct {
	claims []admission.Claim
	done   func([]admission.Verdict)
	// version is that of the limits when the call came, at its time.
	version string
	at      time.Time
	// verdicts are those of the first claims, as far as they are known.
	verdicts []admission.Verdict
	// blocked has the verdicts of models whose own limits denied a claim.
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

// finish answers the claims that have no verdict yet with the reason.
func (c *call) finish(r admission.Reason) {
	for len(c.verdicts) < len(c.claims) {
		c.verdicts = append(c.verdicts, admission.Verdict{Reason: r})
	}
	c.done(c.verdicts)
}

// skipBlocked answers claims that an earlier verdict for their model decides.
func (c *call) skipBlocked() {
	for len(c.verdicts) < len(c.claims) {
		next := &c.claims[len(c.verdicts)]
		v, ok := c.blocked[next.Model]
		if !ok || next.UnderTask != "" {
			return
		}
		c.verdicts = append(c.verdicts, v)
	}
}

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

// callPart is a run of claims of one call that one sync sends.
type callPart struct {
	call   *call
	claims []admission.Claim
}

// nextClaims returns the claims of the next sync. Its calls leave the queue, so that nobody else
// answers them meanwhile. Calls in late have waited too long, and calls in stale carry old limits;
// the caller answers both.
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
		}
		s.calls[0] = nil
		s.calls = s.calls[1:]
	}
	return parts, late, stale
}

// finishIfComplete calls done if all claims of the call have verdicts. Otherwise the next sync
// sends the rest, unless the store became unavailable meanwhile.
func (s *Store) finishIfComplete(c *call) {
	c.skipBlocked()
	s.mu.Lock()
	again := len(c.verdicts) < len(c.claims) && (s.shared || s.resuming)
	if again {
		s.calls = slices.Insert(s.calls, 0, c)
	}
	s.mu.Unlock()
	if !again {
		c.finish(admission.Unavailable)
	}
}

// failParts answers the calls of a sync that brought no verdicts. sent says that Redis may have
// granted the claims, so they must be undone.
func (s *Store) failParts(parts []callPart, reason admission.Reason, sent bool) {
	s.mu.Lock()
	for _, p := range parts {
		if !sent {
			break
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
