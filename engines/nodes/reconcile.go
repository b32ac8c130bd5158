package nodes

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

// desiredModels are the models of the last Set, with a revision number for each.
type desiredModels struct {
	// from is what list and byName were made from.
	from   *[]local.Model
	list   []local.Model
	byName map[string]*revision
	// removed are the last revisions of models that are gone and whose replicas may still run.
	removed map[string]*revision
	// count is the last revision number that was given.
	count uint64
}

// revision is a model with numbers that tell whether it has changed.
type revision struct {
	local.Model
	// spec is a number that changes with everything but the number of replicas.
	spec uint64
	// slots is the number of requests that a replica works on at once; 0 means unknown.
	slots int
}

// appliedState is what was last set on a node.
type appliedState struct {
	node Node
	// info is what the node last said of itself.
	info   engines.Node
	models []modelAssignment
}

// modelAssignment is a model with its replicas on one node.
type modelAssignment struct {
	*revision
	// desired and most are the numbers of replicas on all nodes, when they were set.
	desired, most int
	// indices are the numbers of the replicas on this node, ascending.
	indices []int
}

// update takes over the models of a Set. It reports whether a model has come, gone or changed.
func (d *desiredModels) update(wanted *[]local.Model) (changed bool) {
	if d.from == wanted {
		return false
	}
	byName := make(map[string]*revision, len(*wanted))
	for _, model := range *wanted {
		next := &revision{Model: model}
		next.Launcher, next.Indices = engines.Local, nil
		if last := d.byName[next.Name]; last == nil || !reflect.DeepEqual(last.Model, next.Model) {
			if changed = true; last == nil {
				last = d.removed[next.Name]
			}
			d.count++
			next.spec = d.count
			next.slots = next.Version.SlotsOf(next.Launch)
			if last != nil && sameSpec(last.Model, next.Model) {
				next.spec = last.spec
			}
		} else {
			next.spec, next.slots = last.spec, last.slots
		}
		byName[next.Name] = next
	}
	changed = changed || len(byName) != len(d.byName)
	d.keepRemoved(byName)
	d.from, d.list, d.byName = wanted, *wanted, byName
	return changed
}

// keepRemoved keeps the revisions of the models that are not among the next ones.
func (d *desiredModels) keepRemoved(next map[string]*revision) {
	if d.removed == nil {
		d.removed = map[string]*revision{}
	}
	for name, m := range d.byName {
		if next[name] == nil {
			d.removed[name] = m
		}
	}
	maps.DeleteFunc(d.removed, func(name string, _ *revision) bool { return next[name] != nil })
}

// forgetRemoved forgets the removed models of which no replica may run any more.
func (d *desiredModels) forgetRemoved(released map[location]release) {
	used := map[string]bool{}
	for _, r := range released {
		used[r.model] = true
	}
	maps.DeleteFunc(d.removed, func(name string, _ *revision) bool { return !used[name] })
}

// sameSpec compares two models except for their numbers of replicas.
func sameSpec(a, b local.Model) bool {
	a.Desired, a.MaxReplicas = b.Desired, b.MaxReplicas
	return reflect.DeepEqual(a, b)
}

// reconcile computes a plan and applies it. Unless always is true, it does so only if the fleet has
// changed since the last plan. It reports whether it has done so.
func (c *Controller) reconcile(now time.Time, always bool) bool {
	c.mu.Lock()
	wanted := c.wanted
	c.mu.Unlock()
	if wanted == nil {
		return false
	}
	if c.desired.update(wanted) {
		c.report(c.pending) // so that the fleet also shows the draining replicas of a model that is new
	}
	nodes, members := c.listNodes(now)
	shown := c.listReplicas(members)
	if !always && slices.Equal(shown, c.shown) {
		return false
	}
	c.shown = shown
	o := &observation{
		now: now, models: c.desired.list, revisions: c.desired.byName, removed: c.desired.removed, members: members, shown: shown,
		inFlight: c.config.InFlight, bindingPaused: len(c.silent) > 0, shrinkingPaused: now.Before(c.keepUntil),
	}
	p := o.plan(c.state)
	var evict []string
	c.evicts = c.config.Evict != nil && p.needsEviction()
	if c.evicts && !o.bindingPaused {
		evict = p.evict(c.config.Idle())
	}
	c.state = p.planState
	c.desired.forgetRemoved(p.released)
	c.logPlan(p, evict)
	// The report precedes apply, so that the fleet never shows a replica as pending twice: here and
	// on the node that it is now assigned to.
	c.report(c.pendingReplicas(p))
	c.apply(nodes, p)
	if len(evict) > 0 {
		c.config.Evict(evict)
	}
	return true
}

// nextInterval is when to reconcile again without a cause.
func (c *Controller) nextInterval() time.Duration {
	if c.localUnknown || len(c.silent) > 0 {
		return unknownNodeInterval
	}
	if c.evicts {
		return evictionInterval
	}
	return reconcileInterval
}

// listNodes lists the nodes that replicas can be set on, and what they said of themselves. A joined
// node that has not said so since the gateway started and got nothing yet is left out.
func (c *Controller) listNodes(now time.Time) (nodes []Node, members []member) {
	names, silent := map[string]bool{}, map[Node]bool{}
	c.localUnknown = false
	if c.config.Local != nil {
		info, known := c.config.Local.Node()
		if known {
			names[info.Name] = true
		} else {
			info, c.localUnknown = engines.Node{}, true
		}
		info.Lost = false
		nodes, members = append(nodes, c.config.Local), append(members, member{localNode, info, known, false})
	}
	for _, n := range c.config.Joined() {
		info, known := n.Node()
		last := c.lastApplied(n)
		if last == nil && (!known || info.Lost) {
			if !known {
				silent[n] = true
			}
			continue
		}
		if !known {
			info = last.info
			info.Lost = true
		}
		m := member{info.Name, info, true, names[info.Name] || info.Name == localNode}
		if m.nameTaken {
			m.key = unusable + info.Name
		}
		names[info.Name] = true
		nodes, members = append(nodes, n), append(members, m)
	}
	c.updateSilent(silent, now)
	return nodes, members
}

// updateSilent removes the nodes that have spoken from c.silent, and all of them after
// RejoinTimeout. The first call sets it: a node that joins later runs nothing of an earlier run of
// the gateway.
func (c *Controller) updateSilent(silent map[Node]bool, now time.Time) {
	if c.silent == nil {
		if c.silent = silent; len(silent) > 0 {
			c.keepUntil = now.Add(RejoinTimeout)
		}
	}
	maps.DeleteFunc(c.silent, func(n Node, _ bool) bool { return !silent[n] || !now.Before(c.keepUntil) })
}

// lastApplied returns what was last set on the node, or nil.
func (c *Controller) lastApplied(n Node) *appliedState {
	for _, s := range c.applied {
		if s.node == n {
			return s
		}
	}
	return nil
}

// listReplicas lists the replicas of the desired models that the fleet shows on nodes.
func (c *Controller) listReplicas(members []member) []replica {
	keys := map[string]string{"": localNode}
	for _, m := range members {
		if !m.nameTaken {
			keys[m.Name] = m.key
		}
	}
	snapshot := c.config.Fleet.Snapshot()
	var shown []replica
	for i := range c.desired.list {
		m := snapshot.Models[c.desired.list[i].Name]
		if m == nil {
			continue
		}
		for _, r := range m.Replicas {
			if _, ours := c.pending[r.ID]; r.Launcher != engines.Local || ours && r.Node == "" && r.State == engines.Pending {
				continue
			}
			key, ok := keys[r.Node]
			if !ok && !c.localUnknown {
				key = unusable + r.Node // the node is gone, but the replica's id is in use
			}
			shown = append(shown, replica{location{r.ID, key}, m.Name, engines.ReplicaIndex(m.Name, r.ID), r.State, r.Reason, r.PID, r.Resources, r.GPUs})
		}
	}
	return shown
}

// pendingReplicas returns the pending replicas of a plan as the fleet shows them, and stores the
// reasons.
func (c *Controller) pendingReplicas(p *plan) map[string]engines.Replica {
	pending := make(map[string]engines.Replica, len(p.pending))
	reasons := map[string]string{}
	for _, r := range p.pending {
		since := p.now
		if before, ok := c.pending[r.id]; ok {
			since = before.Since
		}
		pending[r.id] = engines.Replica{
			ID: r.id, Model: r.model.Name, State: engines.Pending, Launcher: engines.Local, Reason: r.reason, Since: since, Slots: r.model.slots,
		}
		reasons[r.model.Name] = r.reason
	}
	c.mu.Lock()
	c.reasons = reasons
	c.mu.Unlock()
	return pending
}

// report tells the fleet the desired models and the pending replicas.
func (c *Controller) report(pending map[string]engines.Replica) {
	c.pending = pending
	part := engines.Part{}
	for i := range c.desired.list {
		part.Models = append(part.Models, c.desired.byName[c.desired.list[i].Name].Model.Model)
	}
	for _, r := range pending {
		part.Replicas = append(part.Replicas, r)
	}
	slices.SortFunc(part.Replicas, func(a, b engines.Replica) int { return cmp.Compare(a.ID, b.ID) })
	c.config.Fleet.Set(source, part)
}

// apply sets the assignments on each node for which something has changed.
func (c *Controller) apply(nodes []Node, p *plan) {
	indices := map[string]map[string][]int{} // by node and model
	for _, a := range p.assignments {
		if indices[a.node] == nil {
			indices[a.node] = map[string][]int{}
		}
		indices[a.node][a.model] = append(indices[a.node][a.model], a.index)
	}
	current := map[string]bool{}
	for i, n := range nodes {
		key := p.members[i].key
		current[key] = true
		last := c.applied[key]
		if last != nil && last.node != n {
			last = nil
		}
		models := c.modelsFor(p, key, last, indices[key])
		if last != nil && slices.EqualFunc(last.models, models, modelAssignment.equal) {
			last.info = p.members[i].Node
			continue
		}
		c.applied[key] = &appliedState{n, p.members[i].Node, models}
		n.Set(localModels(models))
	}
	maps.DeleteFunc(c.applied, func(key string, _ *appliedState) bool { return !current[key] })
	maps.DeleteFunc(c.rollouts, func(model string, _ rollout) bool { return c.desired.byName[model] == nil })
}

func (m modelAssignment) equal(o modelAssignment) bool {
	return m.Name == o.Name && m.spec == o.spec && m.desired == o.desired && m.most == o.most && slices.Equal(m.indices, o.indices)
}

// modelsFor lists the models of which the node shall run replicas. The node gets no other model,
// because the environment of a model may hold secrets.
func (c *Controller) modelsFor(p *plan, node string, last *appliedState, indices map[string][]int) (models []modelAssignment) {
	for i := range c.desired.list {
		m := c.desired.byName[c.desired.list[i].Name]
		if own := indices[m.Name]; len(own) > 0 {
			models = append(models, modelAssignment{c.revisionFor(p, m, node, last), m.Desired, m.MaxReplicas, slices.Sorted(slices.Values(own))})
		}
	}
	return models
}

// localModels returns the models as Node.Set takes them.
func localModels(models []modelAssignment) []local.Model {
	list := make([]local.Model, len(models))
	for i, m := range models {
		list[i] = m.Model
		list[i].Desired, list[i].MaxReplicas, list[i].Indices = m.desired, m.most, slices.Clone(m.indices)
	}
	return list
}

func (c *Controller) logPlan(p *plan, evict []string) {
	for _, change := range p.changes {
		fields := []zap.Field{zap.String("replica", change.id), zap.String("node", p.nodeName(change.node))}
		if change.reason != "" {
			fields = append(fields, zap.String("reason", change.reason))
		}
		c.config.Log.Info(change.message, fields...)
	}
	for _, r := range p.pending {
		if before, ok := c.pending[r.id]; !ok || before.Reason != r.reason {
			c.config.Log.Info("replica left pending", zap.String("replica", r.id), zap.String("reason", r.reason))
		}
	}
	if len(evict) > 0 {
		c.config.Log.Info("eviction of idle replicas requested", zap.String("models", strings.Join(evict, ", ")))
	}
}
