package ringhash

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

var sizes = []int{8, 64, 1000}

func BenchmarkPick(b *testing.B) {
	for _, n := range sizes {
		r := New(names("chat", n), 0)
		loads := make([]int, n)
		random := rand.New(rand.NewPCG(1, 1))
		for i := range loads {
			loads[i] = random.IntN(20)
		}
		b.Run(fmt.Sprintf("replicas=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			key := uint64(0)
			for b.Loop() {
				key += 0x9e3779b97f4a7c15
				r.Pick(key, loads, Bound{})
			}
		})
		b.Run(fmt.Sprintf("replicas=%d/one_free", n), func(b *testing.B) {
			b.ReportAllocs()
			only := make([]int, n)
			for i := range only {
				only[i] = -1
			}
			only[n/2] = 0
			key := uint64(0)
			for b.Loop() {
				key += 0x9e3779b97f4a7c15
				r.Pick(key, only, Bound{})
			}
		})
	}
}

func BenchmarkAppendOrder(b *testing.B) {
	for _, n := range sizes {
		r := New(names("chat", n), 0)
		loads := make([]int, n)
		dst := make([]int, 0, 3)
		b.Run(fmt.Sprintf("replicas=%d/first=3", n), func(b *testing.B) {
			b.ReportAllocs()
			key := uint64(0)
			for b.Loop() {
				key += 0x9e3779b97f4a7c15
				dst = r.AppendOrder(dst[:0], key, loads, 3)
			}
		})
	}
}

func BenchmarkNew(b *testing.B) {
	for _, n := range sizes {
		ids := names("chat", n)
		b.Run(fmt.Sprintf("replicas=%d", n), func(b *testing.B) {
			for b.Loop() {
				New(ids, 0)
			}
		})
	}
}
