package kubernetes

import (
	"cmp"
	"slices"
	"time"
)

// deployment is a Deployment of the model with its pods, as plan needs it.
type deployment struct {
	name     string
	created  time.Time
	replicas int
	// statusReplicas is the number of pods that the Deployment's controller reports. The controller
	// may know pods that this gateway's watch has not shown yet.
	statusReplicas int
	deleting       bool
	// ordered is true for a LeaderWorkerSet. Its pods are leaders of groups. It removes the one
	// with the highest index, whatever its state is.
	ordered bool
	// roomMade is how many pods had been placed when an old pod last made room for this Deployment.
	// It is nil if none has. roomMadeBy is the name of that pod, or "" if it is unknown.
	roomMade   *int
	roomMadeBy string
	pods       []pod
}

// target is what a model shall have.
type target struct {
	// current is the name of the Deployment for the current pod template. It is empty if the model
	// is no longer wanted.
	current string
	desired int
	// makeRoom is true if a new pod has been unschedulable for makeRoomAfter although there are not
	// too many pods. An old pod must then make room.
	makeRoom bool
}

// actionKind is the kind of a write.
type actionKind string

// Kinds of actions. actionCreate creates the current Deployment and actionScale changes its
// replicas. actionDrain tells all gateways that the pod is no longer wanted, and actionUndrain
// reverts that. actionMark makes the pod the first that its ReplicaSet deletes. actionRoom records
// that an old pod makes room; its pod and replicas are deployment.roomMadeBy and roomMade.
// actionNoRoom removes this record.
const (
	actionCreate  actionKind = "create"
	actionScale   actionKind = "scale"
	actionDelete  actionKind = "delete"
	actionDrain   actionKind = "drain"
	actionUndrain actionKind = "undrain"
	actionMark    actionKind = "mark"
	actionRoom    actionKind = "room"
	actionNoRoom  actionKind = "no-room"
)

// action is one write to the API.
type action struct {
	kind       actionKind
	deployment string
	pod        string
	replicas   int
}

// plan returns the next actions that bring a model's Deployments closer to the target. It depends
// on its arguments only and is called again after every change. needsRoom is true if
// target.makeRoom would change the plan.
//
// The pods of a Deployment are drained before its replicas are lowered by the same number, so the
// ReplicaSet deletes pods that have no requests. After a change of the pod template there are two
// Deployments for a while. Together they have at most the desired number of pods, or one more while
// that number serves. Old pods are drained as new pods become ready. If a new pod cannot be
// scheduled, one old pod makes room. No further one does before a new pod is placed, so a template
// that fits on no node costs one pod. A pod that is being removed is waited for, unless it is lost.
// If the pod that made room is lost, another old pod may make room.
func plan(w target, all []deployment) (actions []action, needsRoom bool) {
	p := planner{target: w}
	for _, d := range all {
		work := &deploymentPlan{deployment: d}
		work.pods = slices.Clone(d.pods)
		if d.name == w.current {
			p.current = work
		} else {
			p.old = append(p.old, work)
		}
	}
	keep := p.drainOld()
	p.resizeCurrent(keep)
	// Actions that make room come first, because the gateway may stop before it has executed the
	// whole plan.
	for _, c := range p.old {
		actions = append(actions, c.finalActions()...)
	}
	if p.current != nil {
		actions = append(actions, p.current.finalActions()...)
	}
	return append(actions, p.actions...), p.needsRoom
}

// planner holds the state of one call of plan.
type planner struct {
	target
	current *deploymentPlan // Nil if it does not exist yet.
	old     []*deploymentPlan
	// actions holds the creation of the current Deployment.
	actions   []action
	needsRoom bool
	// forgotten is true if the pod that had made room is lost.
	forgotten bool
}

// drainOld drains pods of the old Deployments and returns how many serving ones are kept for now.
func (p *planner) drainOld() (keep int) {
	var ready, broken []*pod
	owner := map[*pod]*deploymentPlan{}
	var leaving leavingPods
	for _, c := range p.old {
		c.dropUncreated(c.stayingCount())
		for i := range c.pods {
			switch o := &c.pods[i]; {
			case o.lost: // It frees no room that a new pod could wait for.
				p.forgetRoom(o.name)
			case c.deleting || o.terminating || o.active() && o.draining != "":
				leaving.add(*o, c.isBlocked(*o))
			case !o.active():
			case o.rank == serving:
				owner[o] = c
				ready = append(ready, o)
			default:
				owner[o] = c
				broken = append(broken, o)
			}
		}
	}
	p.recordRoom(leaving)
	keep = max(0, min(p.desired-p.readyCurrent(), len(ready))-p.roomToMake(len(ready), leaving))
	slices.SortFunc(ready, compareDeletionOrder)
	for _, o := range append(broken, ready[:len(ready)-keep]...) {
		owner[o].drain(o)
	}
	return keep
}

// leavingPods counts the old pods that leave.
type leavingPods struct {
	// going is how many of them are being removed. blocked is how many wait for groups above them.
	going, blocked int
	// serving is the name of a pod that is being removed and still serves requests, or "".
	serving string
}

func (l *leavingPods) add(o pod, blocked bool) {
	switch {
	case blocked:
		l.blocked++
		return
	case o.rank == serving:
		l.serving = cmp.Or(l.serving, o.name)
	}
	l.going++
}

// recordRoom records that an old pod that has served makes room for a new one that cannot be
// scheduled. A record of more placed pods than there are is lowered.
func (p *planner) recordRoom(leaving leavingPods) {
	c := p.current
	if c == nil || c.deleting || len(p.old) == 0 {
		return
	}
	placed := c.placed()
	makes := leaving.serving != "" && c.unschedulable() && (c.roomMade == nil || *c.roomMade != placed)
	if makes {
		c.roomMadeBy = leaving.serving
	}
	switch {
	case makes || c.roomMade != nil && *c.roomMade > placed:
		c.actions = append(c.actions, action{kind: actionRoom, deployment: c.name, pod: c.roomMadeBy, replicas: placed})
		c.roomMade = &placed
	case p.forgotten:
		c.actions = append(c.actions, action{kind: actionNoRoom, deployment: c.name})
	}
}

// forgetRoom forgets that the lost pod has made room, in the API too. The pod may be gone before
// another one makes room, and then nothing tells that it was lost.
func (p *planner) forgetRoom(pod string) {
	if c := p.current; c != nil && c.roomMadeBy == pod {
		c.roomMade, c.roomMadeBy, p.forgotten = nil, "", true
	}
}

// roomToMake returns 1 if an old pod must be drained so that a new one can be scheduled, else 0. It
// returns 0 while a pod is being removed that is not lost, because that one may free enough. It
// also returns 0 if one has made room and no new pod was placed since, unless a group waits for
// those above it.
func (p *planner) roomToMake(old int, leaving leavingPods) int {
	if p.current == nil || leaving.going > 0 || old == 0 || !p.current.unschedulable() {
		return 0
	}
	if made := p.current.roomMade; made != nil && p.current.placed() <= *made && leaving.blocked == 0 {
		return 0
	}
	if p.current.stayingCount()+old > p.desired || p.makeRoom {
		return 1
	}
	p.needsRoom = true
	return 0
}

// readyCurrent returns the number of pods of the current Deployment that serve and do not drain.
func (p *planner) readyCurrent() int {
	if p.current == nil {
		return 0
	}
	return p.current.count(func(o pod) bool { return o.stays() && o.rank == serving })
}

// resizeCurrent grows or shrinks the current Deployment. keep is the number of old pods that are
// kept.
func (p *planner) resizeCurrent(keep int) {
	target := p.desired - keep
	if keep > 0 && p.readyCurrent()+keep >= p.desired {
		target++
	}
	target = min(target, p.desired)
	switch c := p.current; {
	case c == nil && target > 0 && p.target.current != "":
		p.actions = append(p.actions, action{kind: actionCreate, deployment: p.target.current, replicas: target})
	case c == nil || c.deleting:
	case c.stayingCount() < target:
		c.grow(target - c.stayingCount())
	case c.stayingCount() > p.desired:
		c.shrink(c.stayingCount() - p.desired)
	default:
		c.swapBroken()
	}
}

// deploymentPlan is a Deployment and the actions for it. Its pods are updated as actions are added.
type deploymentPlan struct {
	deployment
	delta     int // delta is the planned change of replicas.
	hasMarked bool
	actions   []action
}

func (c *deploymentPlan) count(is func(pod) bool) (n int) {
	for _, o := range c.pods {
		if is(o) {
			n++
		}
	}
	return n
}

func (c *deploymentPlan) add(v actionKind, o *pod) {
	c.actions = append(c.actions, action{kind: v, deployment: c.name, pod: o.name})
}

// active returns the number of pods that the ReplicaSet counts.
func (c *deploymentPlan) active() int { return c.count(pod.active) }

// surplus returns the number of active pods that the ReplicaSet will delete without further
// actions.
func (c *deploymentPlan) surplus() int {
	if c.ordered {
		return c.count(func(o pod) bool { return o.active() && o.index >= c.replicas })
	}
	return max(0, c.active()-c.replicas)
}

// stayingCount returns the number of pods that exist or will be created without further actions and
// do not drain.
func (c *deploymentPlan) stayingCount() int {
	draining := c.count(func(o pod) bool { return o.active() && o.draining != "" })
	return max(0, c.replicas+c.delta-max(0, draining-c.surplus()))
}

func (c *deploymentPlan) unschedulable() bool {
	return c.count(func(o pod) bool { return o.stays() && o.unschedulable }) > 0
}

// placed returns how many pods have a node. A group counts when all its pods have one.
func (c *deploymentPlan) placed() int {
	return c.count(func(o pod) bool { return o.active() && o.rank != unscheduled && !o.unschedulable })
}

// grow undrains pods, and then adds new ones, until there are lack more.
func (c *deploymentPlan) grow(lack int) {
	var back []*pod
	for i := range c.pods {
		if o := &c.pods[i]; c.canUndrain(*o) {
			back = append(back, o)
		}
	}
	slices.SortFunc(back, func(a, b *pod) int { return compareDeletionOrder(b, a) })
	for _, o := range back[:min(lack, len(back))] {
		c.undrain(o)
		lack--
	}
	c.delta += lack
}

// canUndrain reports whether the pod drains and the ReplicaSet has not been told to delete it.
func (c *deploymentPlan) canUndrain(o pod) bool {
	return o.active() && o.draining != "" && (!o.marked || c.surplus() == 0)
}

// shrink removes excess pods: first those that do not exist yet, then existing ones by draining.
func (c *deploymentPlan) shrink(excess int) {
	if c.ordered {
		c.shrinkOrdered(excess)
		return
	}
	excess -= c.dropUncreated(excess)
	staying := c.stayingPods()
	for _, o := range staying[:min(excess, len(staying))] {
		c.drain(o)
	}
}

// dropUncreated lowers the replicas by at most `most` pods that have not been created yet. It
// returns by how many.
func (c *deploymentPlan) dropUncreated(most int) int {
	if c.deleting {
		return 0
	}
	missing := max(0, min(c.replicas+c.delta-max(c.active(), c.statusReplicas), most))
	if c.ordered {
		missing = min(missing, c.uncreatedOnTop())
	}
	c.delta -= missing
	return missing
}

// stayingPods returns the pods that do not drain, in the order in which to drain them.
func (c *deploymentPlan) stayingPods() []*pod {
	var list []*pod
	for i := range c.pods {
		if c.pods[i].stays() {
			list = append(list, &c.pods[i])
		}
	}
	slices.SortFunc(list, compareDeletionOrder)
	return list
}

// swapBroken drains a broken pod and undrains a better one in its place. The ReplicaSet would
// delete the broken one first anyway.
func (c *deploymentPlan) swapBroken() {
	if c.ordered {
		c.swapOrdered()
		return
	}
	staying := c.stayingPods()
	if len(staying) == 0 {
		return
	}
	for i := range c.pods {
		if o := &c.pods[i]; c.canUndrain(*o) && o.rank > staying[0].rank {
			c.drain(staying[0]) // first, so that a leader that dies in between leaves no pod too many
			c.undrain(o)
			return
		}
	}
}

func (c *deploymentPlan) drain(o *pod) {
	c.add(actionDrain, o)
	o.draining = "now"
}

func (c *deploymentPlan) undrain(o *pod) {
	c.add(actionUndrain, o)
	o.draining, o.drained, o.marked = "", false, false
}

// finalActions marks the drained pods, scales the Deployment down by those that were marked before,
// and returns all actions. A marked pod is deleted in a later plan, when the controllers have seen
// the mark.
func (c *deploymentPlan) finalActions() []action {
	if c.deleting {
		return nil
	}
	// The controllers may not have seen a mark yet.
	unseen := false
	for i := range c.pods {
		o := &c.pods[i]
		if o.active() && o.drained && o.draining != "" && !o.marked {
			c.add(actionMark, o)
			c.hasMarked = true
		}
		unseen = unseen || o.active() && o.markUnsettled
	}
	// A drained pod may have got requests again.
	markedCount := c.count(func(o pod) bool { return o.active() && o.marked && o.drained })
	if lower := c.removable(markedCount); lower > 0 && !c.hasMarked && !unseen && c.markedGoFirst() {
		c.delta -= lower
	}
	switch replicas := c.replicas + c.delta; {
	case replicas <= 0 && markedCount == c.active() && !c.hasMarked:
		return append(c.actions, action{kind: actionDelete, deployment: c.name})
	case replicas > 0 && c.delta != 0:
		return append(c.actions, action{kind: actionScale, deployment: c.name, replicas: replicas})
	}
	return c.actions
}

// removable returns by how many replicas the Deployment may be scaled down, if so many pods are
// marked and drained.
func (c *deploymentPlan) removable(markedCount int) int {
	if c.ordered {
		return c.markedOnTop()
	}
	return markedCount - c.surplus()
}

// markedGoFirst reports whether the ReplicaSet would delete the marked pods before all others.
func (c *deploymentPlan) markedGoFirst() bool {
	if c.ordered {
		return true // only those on top are counted
	}
	lowest, highest := serving, unscheduled
	for _, o := range c.pods {
		switch {
		case !o.active():
		case o.marked:
			highest = max(highest, o.rank)
		default:
			lowest = min(lowest, o.rank)
		}
	}
	return highest <= lowest
}

// compareDeletionOrder orders pods by how soon to drain them: first those that are not ready, then
// those with the fewest requests, then the newest. Leaders of groups are ordered by their index.
func compareDeletionOrder(a, b *pod) int {
	return cmp.Or(cmp.Compare(b.index, a.index), cmp.Compare(a.rank, b.rank), cmp.Compare(a.requests, b.requests),
		b.created.Compare(a.created), cmp.Compare(a.name, b.name))
}
