package prefix

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// steadyPrompts are conversations whose prompts begin with the same half, and each goes on as none
// before.
type steadyPrompts struct {
	rng    *rand.Rand
	firsts []Chain
	next   Chain
}

func newSteadyPrompts(conversations, size int) *steadyPrompts {
	p := &steadyPrompts{rng: rand.New(rand.NewPCG(1, 7))}
	for range conversations {
		c := conversation(0, 200, size-200)
		p.renew(&c, 0)
		p.firsts = append(p.firsts, c)
	}
	p.next = conversation(0, 200, size-200)
	return p
}

// renew makes what is longer than so many bytes another text.
func (p *steadyPrompts) renew(c *Chain, than int) {
	for _, blocks := range [][]Block{c.Blocks, c.Ends} {
		for i := range blocks {
			if int(blocks[i].End) > than {
				blocks[i].Hash = p.rng.Uint64()
			}
		}
	}
}

// make returns the next prompt of a conversation. The chain is valid until the next call.
func (p *steadyPrompts) make(conversation int) *Chain {
	first := &p.firsts[conversation]
	copy(p.next.Blocks, first.Blocks)
	copy(p.next.Ends, first.Ends)
	p.renew(&p.next, first.Bytes/2)
	return &p.next
}

// BenchmarkSteady is what a request costs an index in which all replicas are full. It is a Match
// and a Record of a prompt whose first half is known, and which makes older ones go. The budget is
// not used up.
func BenchmarkSteady(b *testing.B) {
	for _, size := range []int{64 << 10, 400 << 10} {
		for _, replicas := range []int{8, 64} {
			b.Run(fmt.Sprintf("bytes=%d/replicas=%d", size, replicas), func(b *testing.B) {
				x := NewIndex(nil)
				for range replicas {
					x.Slot(someCapacity)
				}
				conversations := replicas * (someCapacity / 4) / (size / 2)
				p := newSteadyPrompts(conversations, size)
				matched := make([]int32, x.Slots())
				request := func(i int) {
					n := i % conversations
					c := p.make(n)
					x.Match(c, matched)
					x.Record(n%replicas, c)
				}
				i := 0
				for ; i < 8*conversations; i++ {
					request(i)
				}
				b.ReportAllocs()
				for b.Loop() {
					request(i)
					i++
				}
				b.ReportMetric(float64(x.Stats().Entries), "entries")
			})
		}
	}
}
