package xds

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// perModel is the number of replicas of a model in the benchmarks: 1,000 replicas are 200 models.
const perModel = 5

// fleetPart returns a launcher's part of the fleet with that many replicas.
func fleetPart(size int) engines.Part {
	var p engines.Part
	for n := range size {
		name := fmt.Sprintf("model-%d", n/perModel)
		if n%perModel == 0 {
			p.Models = append(p.Models, engines.Model{Name: name, Launcher: engines.Local, Desired: perModel, MaxReplicas: perModel})
		}
		r := ready(fmt.Sprintf("%s-%d", name, n%perModel), fmt.Sprintf("10.0.%d.%d:80", n>>8, n&255))
		r.Model = name
		p.Replicas = append(p.Replicas, r)
	}
	return p
}

// BenchmarkFleet measures the whole chain for one replica that is removed or returns, in fleets of
// several sizes. The chain goes from the report of its launcher to the acknowledgement of Envoy.
func BenchmarkFleet(b *testing.B) {
	for _, size := range []int{10, 100, 1000} {
		full := fleetPart(size)
		less := engines.Part{Models: full.Models, Replicas: slices.Clone(full.Replicas)}
		at := size / 2
		less.Replicas[at].State = engines.Failed
		b.Run(fmt.Sprintf("set/%d replicas", size), func(b *testing.B) {
			f := engines.NewFleet()
			f.Set("local", full)
			for i := range b.N {
				f.Set("local", []engines.Part{less, full}[i%2])
			}
		})
		b.Run(fmt.Sprintf("whole/%d replicas", size), func(b *testing.B) { wholeChain(b, full, less, full.Replicas[at].Model) })
	}
}

func wholeChain(b *testing.B, full, less engines.Part, model string) {
	c := Config{Listen: "127.0.0.1:1"}
	f := engines.NewFleet()
	f.Set("local", full)
	s := newServed(b)
	resources := mustBuild(b, c, f.Snapshot())
	s.Set(resources)
	var names []string
	for _, m := range full.Models {
		names = append(names, m.Name)
	}
	envoy := s.connectAndAck(b, names...)
	b.ResetTimer()
	for i := range b.N {
		f.Set("local", []engines.Part{less, full}[i%2])
		var err error
		if resources, err = resources.Rebuild(c, f.Snapshot()); err != nil {
			b.Fatal(err)
		}
		s.Set(resources)
		envoy.ack(envoy.expect(endpointKind, "model/"+model))
	}
}
