package prefix

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// This file says a second time, slowly, what an Index does.

// weight returns how many bytes of a replica's cache a beginning adds to the ones before it. Fixed
// lengths add the distance from the fixed length before. The end of a message adds nothing, because
// the fixed lengths beside it count its text, except when it is shorter than all of them.
func weight(end uint32) int {
	if end < step {
		return int(end)
	}
	if before := stepAt(end - 1); end%before == 0 {
		return int(before)
	}
	return 0
}

// naiveReplica is a list of beginnings, the least recently used first.
type naiveReplica struct {
	capacity int
	order    []Block
}

func (r *naiveReplica) bytes() (sum int) {
	for _, b := range r.order {
		sum += weight(b.End)
	}
	return sum
}

// record uses the beginnings of a chain, the longest first.
func (r *naiveReplica) record(c Chain) {
	all := slices.Concat(c.Blocks, c.Ends)
	slices.SortStableFunc(all, func(a, b Block) int { return int(b.End) - int(a.End) })
	for _, b := range all {
		r.order = slices.DeleteFunc(r.order, func(o Block) bool { return o.Hash == b.Hash })
		r.order = append(r.order, b)
	}
	r.fit()
}

func (r *naiveReplica) fit() {
	for r.bytes() > r.capacity {
		r.order = r.order[1:]
	}
}

// match is the longest beginning of a chain.
func (r *naiveReplica) match(c Chain) (longest int32) {
	for _, b := range slices.Concat(c.Blocks, c.Ends) {
		if slices.ContainsFunc(r.order, func(o Block) bool { return o.Hash == b.Hash }) {
			longest = max(longest, int32(b.End))
		}
	}
	return longest
}

// order returns what an index has of a slot, the least recently used first.
func order(x *Index, slot int) (blocks []Block) {
	for n := x.replicas[slot].oldest; n != 0; {
		e := x.budget.entries.at(n)
		g := x.budget.groups.at(e.group)
		run, end := make([]Block, g.size), g.from
		for i := range run {
			end += stepAt(end)
			run[i] = Block{Hash: g.hashes[i], End: end}
		}
		if g.size == 1 {
			run[0].End = g.last // it may be the end of a message
		}
		slices.Reverse(run)
		blocks = append(blocks, run...)
		n = e.newer
	}
	return blocks
}

// fixed returns the beginnings of fixed lengths.
func fixed(blocks []Block) []Block {
	return slices.DeleteFunc(slices.Clone(blocks), func(b Block) bool { return !isFixed(b.End) })
}

// prompts makes chains that share beginnings: each continues an earlier one or starts anew.
type prompts struct {
	rng   *rand.Rand
	texts [][]string // messages of each prompt so far
}

func (p *prompts) next() Chain {
	var messages []string
	if len(p.texts) > 0 && p.rng.IntN(5) > 0 {
		messages = p.texts[p.rng.IntN(len(p.texts))]
		messages = slices.Clip(messages[:1+p.rng.IntN(len(messages))])
	}
	for range 1 + p.rng.IntN(4) {
		word := string(rune('a' + p.rng.IntN(26)))
		messages = append(messages, strings.Repeat(word, p.rng.IntN(1<<(1+p.rng.IntN(12)))))
	}
	p.texts = append(p.texts, messages)
	return chainOf(messages...)
}

func chainOf(messages ...string) Chain {
	var b Builder
	b.Reset()
	for _, m := range messages {
		b.Mark(MarkUser)
		b.Text([]byte(m))
		b.End()
	}
	return b.Chain()
}

// Random prompts on random replicas: at each step the index knows what the naive one knows, in the
// same order.
func TestB1_IndexIsAnLRUCacheForEachReplica(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		replicas := []int{3, 8, 200}[seed%3]
		x := NewIndex(NewBudget(0))
		naive := make([]naiveReplica, replicas)
		for i := range naive {
			naive[i].capacity = 1 << (6 + rng.IntN(9))
			if slot := x.Slot(naive[i].capacity); slot != i {
				t.Fatalf("slot %d, want %d", slot, i)
			}
		}
		p := prompts{rng: rng}
		for range 300 {
			c := p.next()
			slot := rng.IntN(min(replicas, 1+rng.IntN(replicas)))
			switch rng.IntN(20) {
			case 0:
				x.Forget(slot)
				naive[slot].order = nil
			case 1:
				naive[slot].capacity = 1 + rng.IntN(20000)
				x.SetCapacity(slot, naive[slot].capacity)
				naive[slot].fit()
			case 2:
				x.Release(slot)
				if again := x.Slot(naive[slot].capacity); again != slot {
					t.Fatalf("slot %d is not used again, but %d", slot, again)
				}
				naive[slot].order = nil
			default:
				x.Record(slot, &c)
				naive[slot].record(c)
			}
			compare(t, x, naive, slot, p.next())
		}
	}
}

func compare(t *testing.T, x *Index, naive []naiveReplica, slot int, c Chain) {
	t.Helper()
	got, all := order(x, slot), naive[slot].order
	// Whole runs go where several replicas have them, so an index may have less of the oldest.
	want := fixed(all)
	missing := len(want) - len(fixed(got))
	if missing < 0 || missing >= runLength || !slices.Equal(fixed(got), want[missing:]) {
		t.Fatalf("replica %d has %v, want %v", slot, fixed(got), want)
	}
	for _, b := range got {
		if !slices.Contains(all, b) {
			t.Fatalf("replica %d has %v, want one of %v", slot, b, all)
		}
	}
	for _, b := range all[min(len(all), 2*runLength+MaxEnds):] {
		if !slices.Contains(got, b) && !isFixed(b.End) {
			t.Fatalf("replica %d lacks the end %v", slot, b)
		}
	}
	if got := x.Replica(slot); got.Bytes > naive[slot].bytes() || missing == 0 && got.Bytes < naive[slot].bytes()-step || got.Capacity != naive[slot].capacity {
		t.Fatalf("replica %d: %+v, want %d bytes", slot, got, naive[slot].bytes())
	}
	matched := make([]int32, x.Slots())
	x.Match(&c, matched)
	for i := range naive {
		if want := (&naiveReplica{order: order(x, i)}).match(c); matched[i] != want {
			t.Fatalf("replica %d matches %d bytes of %v, want %d; it has %v", i, matched[i], c, want, order(x, i))
		}
	}
}
