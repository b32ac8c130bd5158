package xds

import (
	"fmt"
	"maps"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// BenchmarkScale measures the time from a change of one replica in the fleet to Envoy's
// acknowledgement, for fleets of several sizes.
func BenchmarkScale(b *testing.B) {
	for _, size := range []int{10, 200, 2000} {
		b.Run(fmt.Sprintf("%d models", size), func(b *testing.B) {
			c := Config{Listen: "127.0.0.1:1"}
			var all []*engines.ModelSnapshot
			var names []string
			for i := range size {
				name := fmt.Sprintf("model-%d", i)
				m := model(name)
				for r := range 5 {
					m.Replicas = append(m.Replicas, ready(fmt.Sprintf("%s-%d", name, r), fmt.Sprintf("10.%d.%d.%d:80", i>>8, i&255, r)))
				}
				all, names = append(all, m), append(names, name)
			}
			full := fleet(all...)
			less := &engines.Snapshot{Models: maps.Clone(full.Models)}
			less.Models["model-0"] = model("model-0", full.Models["model-0"].Replicas[:4]...)
			s := newServed(b)
			resources := mustBuild(b, c, full)
			s.Set(resources)
			envoy := s.connectAndAck(b, names...)
			b.ResetTimer()
			for i := range b.N {
				next := less
				if i%2 == 1 {
					next = full
				}
				var err error
				if resources, err = resources.Rebuild(c, next); err != nil {
					b.Fatal(err)
				}
				s.Set(resources)
				envoy.ack(envoy.expect(endpointKind, "model/model-0"))
			}
		})
	}
}
