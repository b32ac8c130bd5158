package ray

import (
	"cmp"
	"slices"
)

// target is what a model should have. The zero value is a model that is not wanted any more.
type target struct {
	desired int
	// spec is the model's current Model.spec.
	spec string
	// roomMade is how many replicas of an old kind have been drained to make room for this spec.
	roomMade int
}

// unit is a replica as plan sees it.
type unit struct {
	index int
	// spec is the Model.spec that it was started with. A unit without a running job has the current
	// one, because its next job will.
	spec string
	// ready: it serves. ended: it has no job that runs. due: an ended one may be started now.
	ready, ended, due bool
	// stuck: Ray has had no room for it for a while.
	stuck bool
	// draining: it gets no requests and shall stop. drained: it has no request any more. stopping:
	// its job was told to stop. stopAgain: it was told so a while ago.
	draining, drained, stopping, stopAgain bool
	requests                               int
}

type actionKind string

const (
	// actionSubmit starts a job.
	actionSubmit actionKind = "submit"
	// actionDrain and actionUndrain begin and cancel the end of a replica.
	actionDrain   actionKind = "drain"
	actionUndrain actionKind = "undrain"
	// actionMakeRoom is actionDrain for a successor that Ray has no room for.
	actionMakeRoom actionKind = "make room"
	// actionStop stops a job.
	actionStop actionKind = "stop"
	// actionForget removes a replica that has no running job.
	actionForget actionKind = "forget"
)

// action is one step towards the target.
type action struct {
	kind  actionKind
	index int
}

// planner computes the actions for one model.
type planner struct {
	target
	kept, draining []unit
	actions        []action
}

// plan returns what to do now so that a model becomes as wanted.
//
// When the model has changed, one successor is started before one replica of the old kind drains.
// A successor that does not get ready stops the replacement, so that a bad change costs nothing. If
// Ray has no room for the successor, a replica of the old kind drains to make room. The next one
// does so only when that successor has become ready, so that a change that fits nowhere costs one
// replica.
func plan(want target, units []unit) []action {
	p := &planner{target: want}
	for _, u := range units {
		if u.draining {
			p.draining = append(p.draining, u)
		} else {
			p.kept = append(p.kept, u)
		}
	}
	p.finishDraining()
	p.undrain()
	p.shrink()
	p.replace()
	p.grow()
	p.restart()
	return p.actions
}

func (p *planner) do(kind actionKind, index int) { p.actions = append(p.actions, action{kind, index}) }

// finishDraining stops what has drained and forgets what has ended.
func (p *planner) finishDraining() {
	for _, u := range p.draining {
		if u.ended {
			p.do(actionForget, u.index)
		} else if u.drained && (!u.stopping || u.stopAgain) {
			p.do(actionStop, u.index)
		}
	}
}

// undrain takes back draining replicas of the current kind that are needed again.
func (p *planner) undrain() {
	p.draining = slices.DeleteFunc(p.draining, func(u unit) bool {
		back := len(p.kept) < p.desired && u.spec == p.spec && !u.ended && !u.stopping && !u.drained
		if back {
			p.do(actionUndrain, u.index)
			p.kept = append(p.kept, u)
		}
		return back
	})
}

// shrink ends the surplus. While a successor is not ready, one replica more is no surplus.
func (p *planner) shrink() {
	surplus := len(p.kept) - p.desired
	if p.isRolling() && p.waitsForSuccessor() {
		surplus--
	}
	if surplus <= 0 {
		return
	}
	slices.SortFunc(p.kept, p.compareForEnd)
	for _, u := range p.kept[:min(surplus, len(p.kept))] {
		p.end(u)
	}
	p.kept = p.kept[min(surplus, len(p.kept)):]
}

// compareForEnd orders replicas by how little is lost by their end. The old kind is first, then
// those without a job, those that are not ready, those with the fewest requests, the highest
// number.
func (p *planner) compareForEnd(a, b unit) int {
	return cmp.Or(cmp.Compare(rank(a.spec == p.spec), rank(b.spec == p.spec)), cmp.Compare(rank(!a.ended), rank(!b.ended)),
		cmp.Compare(rank(a.ready), rank(b.ready)), cmp.Compare(a.requests, b.requests), cmp.Compare(b.index, a.index))
}

func rank(late bool) int {
	if late {
		return 1
	}
	return 0
}

// end removes a replica: at once if it has no job, else after it has drained.
func (p *planner) end(u unit) {
	if u.ended {
		p.do(actionForget, u.index)
		return
	}
	p.do(actionDrain, u.index)
	p.draining = append(p.draining, u)
}

// isRolling reports whether replicas of an old kind are left.
func (p *planner) isRolling() bool {
	return slices.ContainsFunc(p.kept, func(u unit) bool { return u.spec != p.spec })
}

// waitsForSuccessor reports whether a replica of the current kind is not ready.
func (p *planner) waitsForSuccessor() bool {
	return slices.ContainsFunc(p.kept, func(u unit) bool { return u.spec == p.spec && !u.ready })
}

// replace goes on with the replacement of replicas of an old kind.
func (p *planner) replace() {
	if !p.isRolling() {
		return
	}
	// Those that serve nobody are replaced at once.
	p.kept = slices.DeleteFunc(p.kept, func(u unit) bool {
		useless := u.spec != p.spec && !u.ready
		if useless {
			p.end(u)
		}
		return useless
	})
	stuck, successors := false, 0
	for _, u := range p.kept {
		stuck = stuck || u.spec == p.spec && u.stuck
		if u.spec == p.spec && u.ready {
			successors++
		}
	}
	switch {
	case !p.isRolling():
	case !p.waitsForSuccessor() && len(p.kept) == p.desired:
		p.add()
	case stuck && len(p.draining) == 0 && p.roomMade <= successors:
		slices.SortFunc(p.kept, p.compareForEnd)
		p.do(actionMakeRoom, p.kept[0].index)
		p.draining = append(p.draining, p.kept[0])
		p.kept = p.kept[1:]
	}
}

// grow starts the replicas that are missing.
func (p *planner) grow() {
	for len(p.kept) < p.desired {
		p.add()
	}
}

// add starts a replica with the lowest number that is free.
func (p *planner) add() {
	index := 0
	used := func(u unit) bool { return u.index == index }
	for slices.ContainsFunc(p.kept, used) || slices.ContainsFunc(p.draining, used) {
		index++
	}
	p.do(actionSubmit, index)
	p.kept = append(p.kept, unit{index: index, spec: p.spec})
}

// restart starts those again whose job has ended and whose pause is over.
func (p *planner) restart() {
	for _, u := range p.kept {
		if u.ended && u.due {
			p.do(actionSubmit, u.index)
		}
	}
}
