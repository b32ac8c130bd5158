package nodes

import (
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// unchangedFor is after what time replicas that have not left are taken to have no reason to: what has changed of their model is not
// in their command.
const unchangedFor = 5 * time.Second

// turn is a host that replaces its replicas of a model.
type turn struct {
	host string
	// pids of its replicas before, by id.
	pids  map[string]int
	since time.Time
}

// editionFor is what the model's replicas on the host are to be: the newest, but that a host whose replicas all serve keeps them until its
// turn comes, so that a model which changes is replaced host by host. The host itself replaces one after another.
func (c *Controller) editionFor(p *plan, e *edition, host string, last *told) *edition {
	before := last.edition(e.Name)
	if before == nil || before.spec == e.spec || !p.serves(e.Name, func(s seat) bool { return s.host == host }) {
		return e
	}
	if t, ok := c.turns[e.Name]; ok && !p.isOver(e.Name, t) || !p.serves(e.Name, func(s seat) bool { return s.host != host }) {
		return before
	}
	t := turn{host, map[string]int{}, p.now}
	for _, s := range p.seats {
		if s.model == e.Name && s.host == host {
			t.pids[s.id] = p.seen[s.spot].pid
		}
	}
	c.turns[e.Name] = t
	return e
}

// edition is what the host was told of the model; nil: nothing.
func (t *told) edition(model string) *edition {
	if t != nil {
		for _, o := range t.wish {
			if o.Name == model {
				return o.edition
			}
		}
	}
	return nil
}

// serves tells whether those of the model's replicas are all ready.
func (p *plan) serves(model string, those func(seat) bool) bool {
	for _, s := range p.seats {
		if s.model == model && those(s) && p.seen[s.spot].state != engines.Ready {
			return false
		}
	}
	return true
}

// isOver tells whether the host has replaced its replicas, or needs not.
func (p *plan) isOver(model string, t turn) bool {
	old, others := 0, 0
	for _, s := range p.seats {
		if s.model != model || s.host != t.host {
			continue
		}
		r := p.seen[s.spot]
		if r.state != engines.Ready {
			return false
		}
		if pid, ok := t.pids[s.id]; ok && pid == r.pid {
			old++
		} else {
			others++
		}
	}
	return old == 0 || others == 0 && p.now.Sub(t.since) >= unchangedFor
}
