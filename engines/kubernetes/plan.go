package kubernetes

import (
	"cmp"
	"slices"
	"time"
)

// deployment is what planning knows of a Deployment of the model.
type deployment struct {
	name     string
	created  time.Time
	replicas int
	made     int // pods by the word of the Deployment's controller, who may know of more than we
	deleting bool
	pods     []pod
}

// wish is what a model shall have.
type wish struct {
	// current is the name of the Deployment for today's template; empty when the model is wanted no longer.
	current string
	desired int
	// starved: for a while a pod has not been scheduled though as few pods as wanted are there, so that another one must make room.
	starved bool
}

// verb is what is done.
type verb string

const (
	create verb = "create" // the current Deployment, with so many replicas
	scale  verb = "scale"
	remove verb = "delete"
	drain  verb = "drain"  // tell all gateways that the pod is wanted no longer
	recall verb = "recall" // it is wanted after all
	leave  verb = "leave"  // make it the first that its ReplicaSet gives up
)

// action is one write to the API.
type action struct {
	verb       verb
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
func plan(w wish, all []deployment) (actions []action, hungry bool) {
	p := planner{wish: w}
	for _, d := range all {
		work := &change{deployment: d}
		work.pods = slices.Clone(d.pods)
		if d.name == w.current {
			p.current = work
		} else {
			p.olds = append(p.olds, work)
		}
	}
	keep := p.retire()
	p.follow(keep)
	for _, c := range p.olds { // first what makes room: the rest of a plan may never be carried out
		actions = append(actions, c.finish()...)
	}
	if p.current != nil {
		actions = append(actions, p.current.finish()...)
	}
	return append(actions, p.actions...), p.hungry
}

type planner struct {
	wish
	current *change // nil: it does not exist yet
	olds    []*change
	actions []action // creations
	hungry  bool
}

// retire drains the pods of olds that may go, and returns how many are kept for now.
func (p *planner) retire() (keep int) {
	var ready, broken []*pod
	owner := map[*pod]*change{}
	going := 0
	for _, c := range p.olds {
		c.dropMissing(c.stay())
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
	keep = max(0, min(p.desired-p.ready(), len(ready))-p.room(len(ready), going))
	slices.SortFunc(ready, compareVictims)
	for _, o := range append(broken, ready[:len(ready)-keep]...) {
		owner[o].drain(o)
	}
	return keep
}

// room is 1 where an old pod must go before the new one can be scheduled. One at a time: what has been given up may already be enough.
func (p *planner) room(old, going int) int {
	if p.current == nil || going > 0 || old == 0 || !p.current.unschedulable() {
		return 0
	}
	if p.current.stay()+old > p.desired || p.starved {
		return 1
	}
	p.hungry = true
	return 0
}

// ready is how many pods of today's template serve and stay.
func (p *planner) ready() int {
	if p.current == nil {
		return 0
	}
	return p.current.count(func(o pod) bool { return o.stays() && o.rank == serving })
}

// follow makes today's Deployment as large as it may be beside so many old pods.
func (p *planner) follow(keep int) {
	target := p.desired - keep
	if keep > 0 && p.ready()+keep >= p.desired {
		target++
	}
	target = min(target, p.desired)
	switch c := p.current; {
	case c == nil && target > 0 && p.wish.current != "":
		p.actions = append(p.actions, action{verb: create, deployment: p.wish.current, replicas: target})
	case c == nil || c.deleting:
	case c.stay() < target:
		c.grow(target - c.stay())
	case c.stay() > p.desired:
		c.shrink(c.stay() - p.desired)
	default:
		c.swap()
	}
}

// change is a Deployment and what is to be done to it. Its pods are changed as actions are noted.
type change struct {
	deployment
	delta   int // of replicas
	marked  bool
	actions []action
}

func (c *change) count(is func(pod) bool) (n int) {
	for _, o := range c.pods {
		if is(o) {
			n++
		}
	}
	return n
}

func (c *change) note(v verb, o *pod) {
	c.actions = append(c.actions, action{verb: v, deployment: c.name, pod: o.name})
}

// active are the pods that the ReplicaSet counts.
func (c *change) active() int { return c.count(pod.active) }

// surplus are active pods that the ReplicaSet has been told to give up.
func (c *change) surplus() int { return max(0, c.active()-c.replicas) }

// stay is how many pods there are, or will be without doing anything, that are not being drained.
func (c *change) stay() int {
	draining := c.count(func(o pod) bool { return o.active() && o.draining != "" })
	return max(0, c.replicas+c.delta-max(0, draining-c.surplus()))
}

func (c *change) unschedulable() bool {
	return c.count(func(o pod) bool { return o.stays() && o.unschedulable }) > 0
}

// grow takes back pods that are being drained, then asks for further ones.
func (c *change) grow(lack int) {
	var back []*pod
	for i := range c.pods {
		if o := &c.pods[i]; c.recallable(*o) {
			back = append(back, o)
		}
	}
	slices.SortFunc(back, func(a, b *pod) int { return compareVictims(b, a) })
	for _, o := range back[:min(lack, len(back))] {
		c.recall(o)
		lack--
	}
	c.delta += lack
}

// recallable tells whether the pod can still be kept: its ReplicaSet has not been told to give it up.
func (c *change) recallable(o pod) bool {
	return o.active() && o.draining != "" && (!o.leaving || c.surplus() == 0)
}

// shrink gives up what does not exist yet, then pods.
func (c *change) shrink(excess int) {
	excess -= c.dropMissing(excess)
	victims := c.staying()
	for _, o := range victims[:min(excess, len(victims))] {
		c.drain(o)
	}
}

// dropMissing lowers the number by at most so many pods that have not been made yet.
func (c *change) dropMissing(most int) int {
	if c.deleting {
		return 0
	}
	missing := max(0, min(c.replicas+c.delta-max(c.active(), c.made), most))
	c.delta -= missing
	return missing
}

// staying lists the pods that stay, those to be given up first at the front.
func (c *change) staying() []*pod {
	var list []*pod
	for i := range c.pods {
		if c.pods[i].stays() {
			list = append(list, &c.pods[i])
		}
	}
	slices.SortFunc(list, compareVictims)
	return list
}

// swap drains a pod that broke in place of a better one that is being drained: its ReplicaSet would give up the broken one anyway.
func (c *change) swap() {
	staying := c.staying()
	if len(staying) == 0 {
		return
	}
	for i := range c.pods {
		if o := &c.pods[i]; c.recallable(*o) && o.rank > staying[0].rank {
			c.recall(o)
			c.drain(staying[0])
			return
		}
	}
}

func (c *change) drain(o *pod) {
	c.note(drain, o)
	o.draining = "now"
}

func (c *change) recall(o *pod) {
	c.note(recall, o)
	o.draining, o.done, o.leaving = "", false, false
}

// finish lowers the number by the pods that are drained, and lists all actions. Pods are first marked as the ones to go and given up in a later
// turn, when the mark has been seen.
func (c *change) finish() []action {
	if c.deleting {
		return nil
	}
	unseen := false // by the controllers
	for i := range c.pods {
		o := &c.pods[i]
		if o.active() && o.done && o.draining != "" && !o.leaving {
			c.note(leave, o)
			c.marked = true
		}
		unseen = unseen || o.active() && o.fresh
	}
	leaving := c.count(func(o pod) bool { return o.active() && o.leaving && o.done }) // who was done may have come back with requests
	if lower := leaving - c.surplus(); lower > 0 && !c.marked && !unseen && c.chosen() {
		c.delta -= lower
	}
	switch replicas := c.replicas + c.delta; {
	case replicas <= 0 && leaving == c.active() && !c.marked:
		return append(c.actions, action{verb: remove, deployment: c.name})
	case replicas > 0 && c.delta != 0:
		return append(c.actions, action{verb: scale, deployment: c.name, replicas: replicas})
	}
	return c.actions
}

// chosen tells whether the ReplicaSet would give up the leaving pods before all others.
func (c *change) chosen() bool {
	lowest, highest := serving, unassigned
	for _, o := range c.pods {
		switch {
		case !o.active():
		case o.leaving:
			highest = max(highest, o.rank)
		default:
			lowest = min(lowest, o.rank)
		}
	}
	return highest <= lowest
}

// compareVictims orders pods by how well they can be missed: not ready, then with the fewest requests, then the newest.
func compareVictims(a, b *pod) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.requests, b.requests), b.created.Compare(a.created), cmp.Compare(a.name, b.name))
}
