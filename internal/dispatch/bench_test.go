package dispatch

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// BenchmarkFleet is what one replica that goes or comes back costs here, with Envoy's word of it,
// in fleets of several sizes.
func BenchmarkFleet(b *testing.B) {
	const perModel = 5 // 1,000 replicas are 200 models
	for _, size := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("%d replicas", size), func(b *testing.B) {
			full := engines.Part{}
			known := map[string]map[string]netip.AddrPort{}
			for n := range size {
				name := fmt.Sprintf("model-%d", n/perModel)
				if n%perModel == 0 {
					full.Models = append(full.Models, engines.Model{Name: name, Launcher: engines.Local})
					known["model/"+name] = map[string]netip.AddrPort{}
				}
				r := engines.Replica{ID: fmt.Sprintf("%s-%d", name, n%perModel), Model: name, State: engines.Ready,
					Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 80)}
				full.Replicas = append(full.Replicas, r)
				known["model/"+name][r.ID] = r.Address
			}
			s := newStage(Policy{})
			s.fleet.Set("local", full)
			for cluster, replicas := range known {
				s.SetRoutable(cluster, replicas)
			}
			less := engines.Part{Models: full.Models, Replicas: slices.Clone(full.Replicas)}
			less.Replicas[size/2].State = engines.Failed
			cluster := "model/" + less.Replicas[size/2].Model
			b.ResetTimer()
			for i := range b.N {
				s.fleet.Set("local", []engines.Part{less, full}[i%2])
				s.rebuild()
				s.SetRoutable(cluster, known[cluster])
			}
		})
	}
}
