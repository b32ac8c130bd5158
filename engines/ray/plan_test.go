package ray

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestN4_Plan checks what is done for one model in one state.
func TestN4_Plan(t *testing.T) {
	ready := func(i int) unit { return unit{index: i, spec: "new", ready: true} }
	old := func(i int) unit { return unit{index: i, spec: "old", ready: true} }
	with := func(u unit, change func(*unit)) unit { change(&u); return u }
	draining := func(u unit) unit { return with(u, func(u *unit) { u.draining = true }) }
	for name, test := range map[string]struct {
		desired  int
		units    []unit
		want     []action
		roomMade int
	}{
		"the first":          {2, nil, []action{{actionSubmit, 0}, {actionSubmit, 1}}, 0},
		"nothing to do":      {1, []unit{ready(0)}, nil, 0},
		"lowest free number": {2, []unit{draining(with(ready(0), func(u *unit) { u.stopping = true })), ready(2)}, []action{{actionSubmit, 1}}, 0},
		"surplus":            {1, []unit{ready(0), ready(1)}, []action{{actionDrain, 1}}, 0},
		"fewest requests":    {1, []unit{ready(0), with(ready(1), func(u *unit) { u.requests = 2 })}, []action{{actionDrain, 0}}, 0},
		"not ready first":    {1, []unit{{index: 0, spec: "new"}, ready(1)}, []action{{actionDrain, 0}}, 0},
		"ended surplus":      {0, []unit{{index: 0, spec: "new", ended: true}}, []action{{actionForget, 0}}, 0},
		"drained":            {0, []unit{draining(with(ready(0), func(u *unit) { u.drained = true }))}, []action{{actionStop, 0}}, 0},
		"stopping":           {0, []unit{draining(with(ready(0), func(u *unit) { u.drained, u.stopping = true, true }))}, nil, 0},
		"told to stop again": {0, []unit{draining(with(ready(0), func(u *unit) { u.drained, u.stopping, u.stopAgain = true, true, true }))}, []action{{actionStop, 0}}, 0},
		"not drained":        {0, []unit{draining(ready(0))}, nil, 0},
		"drained and ended":  {0, []unit{draining(unit{index: 0, ended: true})}, []action{{actionForget, 0}}, 0},
		"needed again":       {1, []unit{draining(ready(0))}, []action{{actionUndrain, 0}}, 0},
		"pause":              {1, []unit{{index: 0, spec: "new", ended: true}}, nil, 0},
		"pause is over":      {1, []unit{{index: 0, spec: "new", ended: true, due: true}}, []action{{actionSubmit, 0}}, 0},

		"successor first":             {1, []unit{old(0)}, []action{{actionSubmit, 1}}, 0},
		"successor starts":            {1, []unit{old(0), {index: 1, spec: "new"}}, nil, 0},
		"successor fails":             {1, []unit{old(0), {index: 1, spec: "new", ended: true}}, nil, 0},
		"successor ready":             {1, []unit{old(0), ready(1)}, []action{{actionDrain, 0}}, 0},
		"one after another":           {2, []unit{old(0), old(1), ready(2)}, []action{{actionDrain, 1}, {actionSubmit, 3}}, 0},
		"next one":                    {2, []unit{draining(old(0)), old(1), ready(2)}, []action{{actionSubmit, 3}}, 0},
		"no room":                     {1, []unit{old(0), {index: 1, spec: "new", stuck: true}}, []action{{actionMakeRoom, 0}}, 0},
		"room is being made":          {2, []unit{old(1), draining(old(0)), {index: 2, spec: "new", stuck: true}}, nil, 0},
		"it fits nowhere":             {2, []unit{old(0), {index: 1, spec: "new", stuck: true}}, nil, 1},
		"old one that does not serve": {1, []unit{{index: 0, spec: "old"}}, []action{{actionDrain, 0}, {actionSubmit, 1}}, 0},
		"old one that drains":         {1, []unit{draining(old(0))}, []action{{actionSubmit, 1}}, 0},
	} {
		if diff := cmp.Diff(test.want, plan(target{test.desired, "new", test.roomMade}, test.units), cmp.AllowUnexported(action{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestN4_PlanConverges applies plans to random fleets whose jobs do what they are told. It checks
// that a model reaches what is wanted, and that it never has fewer ready replicas on the way than
// it must have.
func TestN4_PlanConverges(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := &world{room: 1 + r.IntN(5), units: map[int]*unit{}}
		for range 4 {
			want := target{r.IntN(4), fmt.Sprint(r.IntN(2)), 0}
			least := min(want.desired, w.serving(), w.room-1)
			for range 60 {
				want.roomMade += w.step(want, r)
				if want.desired > 0 && w.serving() < least {
					t.Fatalf("seed %d: %d serve, want at least %d: %v", seed, w.serving(), least, w.list())
				}
			}
			ok := w.serving() == min(want.desired, w.room) && len(w.units) == want.desired
			if !ok || slices.ContainsFunc(w.list(), func(u unit) bool { return u.spec != want.spec }) {
				t.Fatalf("seed %d: wanted %+v with room for %d, got %+v", seed, want, w.room, w.list())
			}
		}
	}
}

// world is a cluster with room for some jobs.
type world struct {
	room  int
	units map[int]*unit
}

func (w *world) list() []unit {
	var all []unit
	for _, u := range w.units {
		all = append(all, *u)
	}
	slices.SortFunc(all, func(a, b unit) int { return a.index - b.index })
	return all
}

// serving counts the ready replicas that do not drain.
func (w *world) serving() int {
	n := 0
	for _, u := range w.units {
		if u.ready && !u.draining {
			n++
		}
	}
	return n
}

// step executes a plan and lets time pass. It returns how many replicas had to make room.
func (w *world) step(want target, r *rand.Rand) (roomMade int) {
	for _, a := range plan(want, w.list()) {
		switch u := w.units[a.index]; a.kind {
		case actionSubmit:
			w.units[a.index] = &unit{index: a.index, spec: want.spec}
		case actionMakeRoom:
			roomMade++
			u.draining = true
		case actionDrain:
			u.draining = true
		case actionUndrain:
			u.draining = false
		case actionStop:
			u.stopping = true
		case actionForget:
			delete(w.units, a.index)
		}
	}
	running := 0
	for _, u := range w.units {
		if u.ready && !u.ended {
			running++
		}
	}
	for _, index := range r.Perm(64) {
		u := w.units[index]
		switch {
		case u == nil || u.ended:
		case u.stopping:
			u.ended, u.ready = true, false
		case u.draining:
			u.drained = true
		case !u.ready && running < w.room:
			u.ready, u.stuck = true, false
			running++
		case !u.ready:
			u.stuck = true
		}
	}
	return roomMade
}
