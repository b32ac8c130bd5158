package nodes

import (
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// unchangedTimeout is when a rollout is over although no replica was replaced. The change then
// concerns something that is not in the command, and the launcher keeps the replicas.
const unchangedTimeout = 5 * time.Second

// rollout is the replacement of a model's replicas on one node after the model has changed.
type rollout struct {
	node string
	// pids are the processes of the replicas before the change, by replica id.
	pids  map[string]int
	since time.Time
}

// revisionFor returns the revision of the model that the node shall run. A node whose replicas of
// the model all serve keeps its revision until the rollout on the previous node is over. So a
// change that does not work costs the replicas of one node only. A node with replicas that do not
// serve gets the newest revision at once. The launcher on the node replaces its replicas one after
// another.
func (c *Controller) revisionFor(p *plan, m *revision, node string, last *appliedState) *revision {
	before := last.revision(m.Name)
	if before == nil || before.spec == m.spec || !p.allReady(m.Name, func(a assignment) bool { return a.node == node }) {
		return m
	}
	if r, ok := c.rollouts[m.Name]; ok && !p.isDone(m.Name, r) || !p.allReady(m.Name, func(a assignment) bool { return a.node != node }) {
		return before
	}
	r := rollout{node, map[string]int{}, p.now}
	for _, a := range p.assignments {
		if a.model == m.Name && a.node == node {
			r.pids[a.id] = p.seen[a.location].pid
		}
	}
	c.rollouts[m.Name] = r
	return m
}

// revision returns the revision of the model that was last set on the node, or nil. s may be nil.
func (s *appliedState) revision(model string) *revision {
	if s == nil {
		return nil
	}
	for _, m := range s.models {
		if m.Name == model {
			return m.revision
		}
	}
	return nil
}

// allReady reports whether all replicas of the model are ready whose assignment matches.
func (p *plan) allReady(model string, matches func(assignment) bool) bool {
	for _, a := range p.assignments {
		if a.model == model && matches(a) && p.seen[a.location].state != engines.Ready {
			return false
		}
	}
	return true
}

// isDone reports whether the rollout's node has replaced all its replicas of the model, or none
// within unchangedTimeout, and all of them are ready.
func (p *plan) isDone(model string, r rollout) bool {
	kept, replaced := 0, 0
	for _, a := range p.assignments {
		if a.model != model || a.node != r.node {
			continue
		}
		shown := p.seen[a.location]
		if shown.state != engines.Ready {
			return false
		}
		if pid, ok := r.pids[a.id]; ok && pid == shown.pid {
			kept++
		} else {
			replaced++
		}
	}
	return kept == 0 || replaced == 0 && p.now.Sub(r.since) >= unchangedTimeout
}
