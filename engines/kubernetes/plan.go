package kubernetes

import (
	"cmp"
	"slices"
	"time"
)

// deployment is what planning knows of a Deployment of the model.
type deployment struct {
	name           string
	created        time.Time
	replicas       int
	statusReplicas int // pods by the word of the Deployment's controller, who may know of more than we
	deleting       bool
	pods           []pod
}

// wish is what a model shall have.
type target struct {
	// current is the name of the Deployment for today's template; empty when the model is wanted no longer.
	current string
	desired int
	// starved: for a while a pod has not been scheduled though as few pods as wanted are there, so that another one must make room.
	makeRoom bool
}

// verb is what is done.
type actionKind string

const (
	actionCreate  actionKind = "create" // the current Deployment, with so many replicas
	actionScale   actionKind = "scale"
	actionDelete  actionKind = "delete"
	actionDrain   actionKind = "drain"   // tell all gateways that the pod is wanted no longer
	actionUndrain actionKind = "undrain" // it is wanted after all
	actionMark    actionKind = "mark"    // make it the first that its ReplicaSet gives up
)

// action is one write to the API.
type action struct {
	kind       actionKind
	deployment string
	pod        string
	replicas   int
}

// plan says what brings a model's Deployments nearer to the wish. It is level-triggered: the same function is asked again after every change,
// and what it says depends on nothing but what is there. hungry tells that it would help if wish.starved were true.
//
// A Deployment's pods are drained one by one before its number is lowered by as many, so that the ones that its ReplicaSet gives up have no
// requests. Of a template that has changed there are two Deployments for a while, and altogether not more pods than desired, but for one where the
// desired number serve: old ones leave as new ones get ready.
func plan(w target, all []deployment) (actions []action, hungry bool) {
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
	for _, c := range p.old { // first what makes room: the rest of a plan may never be carried out
		actions = append(actions, c.finalActions()...)
	}
	if p.current != nil {
		actions = append(actions, p.current.finalActions()...)
	}
	return append(actions, p.actions...), p.needsRoom
}

type planner struct {
	target
	current   *deploymentPlan // nil: it does not exist yet
	old       []*deploymentPlan
	actions   []action // creations
	needsRoom bool
}

// retire drains the pods of olds that may go, and returns how many are kept for now.
func (p *planner) drainOld() (keep int) {
	var ready, broken []*pod
	owner := map[*pod]*deploymentPlan{}
	going := 0
	for _, c := range p.old {
		c.dropUncreated(c.stayingCount())
		for i := range c.pods {
			switch o := &c.pods[i]; {
			case c.deleting || o.terminating || o.active() && o.draining != "":
				going++
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
	keep = max(0, min(p.desired-p.readyCurrent(), len(ready))-p.roomToMake(len(ready), going))
	slices.SortFunc(ready, compareDeletionOrder)
	for _, o := range append(broken, ready[:len(ready)-keep]...) {
		owner[o].drain(o)
	}
	return keep
}

// room is 1 where an old pod must go before the new one can be scheduled. One at a time: what has been given up may already be enough.
func (p *planner) roomToMake(old, going int) int {
	if p.current == nil || going > 0 || old == 0 || !p.current.unschedulable() {
		return 0
	}
	if p.current.stayingCount()+old > p.desired || p.makeRoom {
		return 1
	}
	p.needsRoom = true
	return 0
}

// ready is how many pods of today's template serve and stay.
func (p *planner) readyCurrent() int {
	if p.current == nil {
		return 0
	}
	return p.current.count(func(o pod) bool { return o.stays() && o.rank == serving })
}

// follow makes today's Deployment as large as it may be beside so many old pods.
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

// change is a Deployment and what is to be done to it. Its pods are changed as actions are noted.
type deploymentPlan struct {
	deployment
	delta     int // of replicas
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

// active are the pods that the ReplicaSet counts.
func (c *deploymentPlan) active() int { return c.count(pod.active) }

// surplus are active pods that the ReplicaSet has been told to give up.
func (c *deploymentPlan) surplus() int { return max(0, c.active()-c.replicas) }

// stay is how many pods there are, or will be without doing anything, that are not being drained.
func (c *deploymentPlan) stayingCount() int {
	draining := c.count(func(o pod) bool { return o.active() && o.draining != "" })
	return max(0, c.replicas+c.delta-max(0, draining-c.surplus()))
}

func (c *deploymentPlan) unschedulable() bool {
	return c.count(func(o pod) bool { return o.stays() && o.unschedulable }) > 0
}

// grow takes back pods that are being drained, then asks for further ones.
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

// recallable tells whether the pod can still be kept: its ReplicaSet has not been told to give it up.
func (c *deploymentPlan) canUndrain(o pod) bool {
	return o.active() && o.draining != "" && (!o.marked || c.surplus() == 0)
}

// shrink gives up what does not exist yet, then pods.
func (c *deploymentPlan) shrink(excess int) {
	excess -= c.dropUncreated(excess)
	victims := c.stayingPods()
	for _, o := range victims[:min(excess, len(victims))] {
		c.drain(o)
	}
}

// dropMissing lowers the number by at most so many pods that have not been made yet.
func (c *deploymentPlan) dropUncreated(most int) int {
	if c.deleting {
		return 0
	}
	missing := max(0, min(c.replicas+c.delta-max(c.active(), c.statusReplicas), most))
	c.delta -= missing
	return missing
}

// staying lists the pods that stay, those to be given up first at the front.
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

// swap drains a pod that broke in place of a better one that is being drained: its ReplicaSet would give up the broken one anyway.
func (c *deploymentPlan) swapBroken() {
	staying := c.stayingPods()
	if len(staying) == 0 {
		return
	}
	for i := range c.pods {
		if o := &c.pods[i]; c.canUndrain(*o) && o.rank > staying[0].rank {
			c.undrain(o)
			c.drain(staying[0])
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

// finish lowers the number by the pods that are drained, and lists all actions. Pods are first marked as the ones to go and given up in a later
// turn, when the mark has been seen.
func (c *deploymentPlan) finalActions() []action {
	if c.deleting {
		return nil
	}
	unseen := false // by the controllers
	for i := range c.pods {
		o := &c.pods[i]
		if o.active() && o.drained && o.draining != "" && !o.marked {
			c.add(actionMark, o)
			c.hasMarked = true
		}
		unseen = unseen || o.active() && o.markUnsettled
	}
	leaving := c.count(func(o pod) bool { return o.active() && o.marked && o.drained }) // who was done may have come back with requests
	if lower := leaving - c.surplus(); lower > 0 && !c.hasMarked && !unseen && c.markedGoFirst() {
		c.delta -= lower
	}
	switch replicas := c.replicas + c.delta; {
	case replicas <= 0 && leaving == c.active() && !c.hasMarked:
		return append(c.actions, action{kind: actionDelete, deployment: c.name})
	case replicas > 0 && c.delta != 0:
		return append(c.actions, action{kind: actionScale, deployment: c.name, replicas: replicas})
	}
	return c.actions
}

// chosen tells whether the ReplicaSet would give up the leaving pods before all others.
func (c *deploymentPlan) markedGoFirst() bool {
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

// compareVictims orders pods by how well they can be missed: not ready, then with the fewest requests, then the newest.
func compareDeletionOrder(a, b *pod) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.requests, b.requests), b.created.Compare(a.created), cmp.Compare(a.name, b.name))
}
