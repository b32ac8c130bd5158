package nodes

import (
	"fmt"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

// BenchmarkPlan: 1,000 replicas of 200 models on 20 hosts of 8 GPUs. None has a host at first; all have theirs; there is room for 640
// only, and half of the models may evict.
func BenchmarkPlan(b *testing.B) {
	large := func(gpu float64, room bool) *world {
		var models []local.Model
		for i := range 200 {
			m := model(fmt.Sprintf("model-%d", i), 5, gpu)
			m.Resources.CPU, m.EvictIdle = 0.1, i%2 == 0
			models = append(models, m)
		}
		var members []member
		for i := range 20 {
			members = append(members, with(fmt.Sprintf("host-%d", i), 8))
		}
		w := worldOf(models, members...)
		if p := w.plan(memory{}); room != (len(p.vacancies) == 0) {
			b.Fatalf("%d have no host", len(p.vacancies))
		}
		return w
	}
	b.Run("new", func(b *testing.B) {
		w := large(0.12, true)
		for b.Loop() {
			w.plan(memory{})
		}
	})
	b.Run("stable", func(b *testing.B) {
		w := large(0.12, true)
		p := w.plan(memory{})
		w.shown = shownFor(p)
		for b.Loop() {
			w.plan(p.memory)
		}
	})
	b.Run("short of room", func(b *testing.B) {
		w := large(0.25, false)
		p := w.plan(memory{})
		w.shown = shownFor(p)
		var idle []string
		for i := range 100 {
			idle = append(idle, fmt.Sprintf("model-%d", i))
		}
		for b.Loop() {
			w.plan(p.memory).evict(idle)
		}
	})
}

// shownFor is the fleet in which all seats have ready replicas.
func shownFor(p *plan) (shown []replica) {
	for i, h := range p.hosts {
		for _, c := range h.Claims {
			shown = append(shown, replica{spot{c.ID, p.members[i].key}, c.Model, indexOf(c.Model, c.ID), engines.Ready, 0, c.Resources, c.Devices[0]})
		}
	}
	return shown
}
