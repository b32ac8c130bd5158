package nodes

import (
	"fmt"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

// BenchmarkPlan plans 1,000 replicas of 200 models on 20 nodes of 8 GPUs. In "new" no replica has a
// node, in "stable" all have one. In "short of room" 640 replicas fit, and half of the models may
// evict.
func BenchmarkPlan(b *testing.B) {
	large := func(gpu float64, room bool) *observation {
		var models []local.Model
		for i := range 200 {
			m := model(fmt.Sprintf("model-%d", i), 5, gpu)
			m.Resources.CPU, m.EvictIdle = 0.1, i%2 == 0
			models = append(models, m)
		}
		var members []member
		for i := range 20 {
			members = append(members, with(fmt.Sprintf("node-%d", i), 8))
		}
		o := observationOf(models, members...)
		if p := o.plan(planState{}); room != (len(p.pending) == 0) {
			b.Fatalf("%d replicas are pending", len(p.pending))
		}
		return o
	}
	b.Run("new", func(b *testing.B) {
		o := large(0.12, true)
		for b.Loop() {
			o.plan(planState{})
		}
	})
	b.Run("stable", func(b *testing.B) {
		o := large(0.12, true)
		p := o.plan(planState{})
		o.shown = shownFor(p)
		for b.Loop() {
			o.plan(p.planState)
		}
	})
	b.Run("short of room", func(b *testing.B) {
		o := large(0.25, false)
		p := o.plan(planState{})
		o.shown = shownFor(p)
		var idle []string
		for i := range 100 {
			idle = append(idle, fmt.Sprintf("model-%d", i))
		}
		for b.Loop() {
			o.plan(p.planState).evict(idle)
		}
	})
}

// shownFor returns a ready replica for each assignment of the plan.
func shownFor(p *plan) (shown []replica) {
	for i, n := range p.nodes {
		for _, c := range n.Claims {
			shown = append(shown, replica{location{c.ID, p.members[i].key}, c.Model, engines.ReplicaIndex(c.Model, c.ID), engines.Ready, "", 0, c.Resources, c.Devices[0]})
		}
	}
	return shown
}
