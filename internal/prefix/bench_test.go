package prefix

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
)

// conversation returns the chain of a system prompt that all share, and of text of its own.
func conversation(id, systemBytes, ownBytes int) Chain {
	rng := rand.New(rand.NewPCG(uint64(id), 1))
	own := make([]byte, ownBytes)
	for i := range own {
		own[i] = byte('a' + rng.IntN(26))
	}
	return chainOf(strings.Repeat("s", systemBytes), string(own))
}

// An index is filled with conversations before Match is measured.
func BenchmarkMatch(b *testing.B) {
	for _, c := range []struct{ replicas, conversations, system, own int }{
		{8, 2000, 200, 800}, {8, 2000, 4 << 10, 60 << 10}, {1000, 2000, 4 << 10, 4 << 10}, {1000, 2000, 4 << 10, 60 << 10},
	} {
		b.Run(fmt.Sprintf("replicas=%d/bytes=%d", c.replicas, c.system+c.own), func(b *testing.B) {
			x := NewIndex(nil)
			for range c.replicas {
				x.Slot(someCapacity)
			}
			chains := make([]Chain, c.conversations)
			for i := range chains {
				chains[i] = conversation(i, c.system, c.own)
				x.Record(i%c.replicas, &chains[i])
			}
			matched := make([]int32, x.Slots())
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				x.Match(&chains[i%len(chains)], matched)
				i += 7
			}
		})
	}
}

// Each replica has another length of the prompt: the most work that Match can have.
func BenchmarkMatchAllDepths(b *testing.B) {
	x := NewIndex(nil)
	whole := conversation(1, 0, 64<<10)
	for i := range 1000 {
		part := whole
		part.Blocks, part.Ends = whole.Blocks[:1+i%len(whole.Blocks)], nil
		x.Record(x.Slot(someCapacity), &part)
	}
	matched := make([]int32, x.Slots())
	for b.Loop() {
		x.Match(&whole, matched)
	}
}

func BenchmarkRecord(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10} {
		for _, kind := range []string{"known", "new"} {
			b.Run(fmt.Sprintf("%s/bytes=%d", kind, size), func(b *testing.B) {
				x := NewIndex(nil)
				for range 8 {
					x.Slot(someCapacity)
				}
				chains := make([]Chain, 4000)
				for i := range chains {
					chains[i] = conversation(i, 200, size-200)
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					c := &chains[i%len(chains)]
					if kind == "new" && i >= len(chains) {
						c.Reroot("again")
					}
					x.Record(i%8, c)
					i++
				}
			})
		}
	}
}

func BenchmarkChain(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			text := []byte(strings.Repeat("x", size))
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				var c Builder
				c.Reset()
				c.Mark(MarkUser)
				c.Text(text)
				if c.Chain().Bytes != size {
					b.Fatal("not all of the text")
				}
			}
		})
	}
}

// heap returns the bytes of live memory.
func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// fill gives 1,000 replicas more prompts than a budget has room for. all: each prompt goes to all
// replicas, so that memory is used in the other way.
func fill(x *Index, all bool) {
	const replicas = 1000
	for range replicas {
		x.Slot(someCapacity)
	}
	rng := rand.New(rand.NewPCG(1, 5))
	c := conversation(0, 200, 20<<10)
	for i := 0; x.Stats().Entries < x.budget.Entries() && i < 1<<20; i++ {
		for _, blocks := range [][]Block{c.Blocks, c.Ends} {
			for i := range blocks {
				blocks[i].Hash = rng.Uint64() // another prompt of the same length
			}
		}
		if !all {
			x.Record(i%replicas, &c)
			continue
		}
		for slot := range replicas {
			x.Record(slot, &c)
		}
	}
}

// BenchmarkMemory reports what a full index of 1,000 replicas uses.
func BenchmarkMemory(b *testing.B) {
	for name, all := range map[string]bool{"own-prompts": false, "common-prompts": true} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				before := heap()
				x := NewIndex(NewBudget(0))
				fill(x, all)
				b.ReportMetric(float64(heap()-before)/(1<<20), "MiB")
				b.ReportMetric(float64(x.Stats().Entries), "entries")
				runtime.KeepAlive(x)
			}
		})
	}
}
