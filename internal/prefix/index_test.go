package prefix

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
)

// someCapacity is the capacity of a replica in tests that fill no cache.
const someCapacity = 8 << 20

// check holds everything that an index stores against everything else.
func check(t *testing.T, x *Index) {
	t.Helper()
	entries, slots := 0, map[uint32]int{}
	for slot := range x.replicas {
		r := &x.replicas[slot]
		count, bytes, newer := 0, 0, uint32(0)
		for n := r.newest; n != 0; n = x.budget.entries.at(n).older {
			e := x.budget.entries.at(n)
			if int(e.slot) != slot || e.newer != newer || x.findEntry(e.group, slot) != n || !x.holds(e.group, slot) {
				t.Fatalf("entry %d of slot %d is %+v", n, slot, e)
			}
			slots[e.group]++
			count, bytes, newer = count+1, bytes+x.budget.groups.at(e.group).bytes(), n
		}
		if r.oldest != newer || r.entries != count || r.bytes != bytes || r.bytes > r.limit() && r.inUse {
			t.Fatalf("slot %d is %+v; %d entries of %d bytes are linked, the oldest is %d", slot, r, count, bytes, newer)
		}
		entries += count
	}
	if int(x.held.Load()) != entries || int(x.entries.nodes) != entries || int(x.groups.nodes) != len(slots) {
		t.Fatalf("%d entries and %d groups are linked; counted are %d, %d and %d",
			entries, len(slots), x.held.Load(), x.entries.nodes, x.groups.nodes)
	}
	for number, n := range slots {
		g := x.budget.groups.at(number)
		holders := bits.OnesCount64(g.bits)
		for s := g.more; s != 0; s = x.budget.spills.at(s).next {
			n := bits.OnesCount64(x.budget.spills.at(s).bits)
			if holders += n; n == 0 {
				t.Fatalf("spill %d is empty", s)
			}
		}
		if int(g.count) != n || holders != n {
			t.Fatalf("group %d is %+v of %d holders, %d entries are in it", number, g, holders, n)
		}
	}
}

// checkGood is check for an index that was given good chains alone: no beginning is there twice.
func checkGood(t *testing.T, x *Index) {
	t.Helper()
	check(t, x)
	for slot := range x.replicas {
		seen := map[uint64]bool{}
		for _, b := range order(x, slot) {
			if seen[b.Hash] {
				t.Fatalf("slot %d has the beginning of %d bytes twice", slot, b.End)
			}
			seen[b.Hash] = true
		}
	}
}

// lost returns how many nodes of an arena were given and are not free now.
func lost[T any, P node[T]](a *arena[T, P]) int {
	given := int(a.last)
	for n := a.free; n != 0; n = *a.at(n).link() {
		given--
	}
	return given
}

// Small budgets: each index stays whole and within the budget, and what a replica has is still the
// shorter beginnings of what it was given.
func TestB1_BudgetIsKept(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 2))
		b := NewBudget(bytesPerEntry * (1 + rng.IntN(2000)))
		indexes := []*Index{NewIndex(b), NewIndex(b)}
		for range 1 + rng.IntN([]int{4, 200}[seed%2]) {
			indexes[0].Slot(someCapacity)
			indexes[1].Slot(someCapacity)
		}
		p := prompts{rng: rng}
		for range 400 {
			x := indexes[rng.IntN(2)]
			c := p.next()
			slot := rng.IntN(x.Slots())
			x.Record(slot, &c)
			if held := indexes[0].Stats().Entries + indexes[1].Stats().Entries; held > b.Entries() {
				t.Fatalf("%d entries, the budget is %d", held, b.Entries())
			}
			matched := make([]int32, x.Slots())
			x.Match(&c, matched)
			if b.Entries() > 100*2*x.Slots() && int(matched[slot]) != c.Bytes {
				t.Fatalf("the replica has %d of %d bytes that it was given just now", matched[slot], c.Bytes)
			}
			for i, end := range matched {
				if want := (&naiveReplica{order: order(x, i)}).match(c); end != want {
					t.Fatalf("replica %d matches %d bytes, want %d", i, end, want)
				}
			}
		}
		for _, x := range indexes {
			checkGood(t, x)
			for slot := range x.Slots() {
				x.Release(slot)
			}
		}
		if lost(&b.entries) != 0 || lost(&b.groups) != 0 || lost(&b.spills) != 0 || len(b.indexes) != 0 || b.slots.Load() != 0 {
			t.Fatalf("%d entries, %d groups and %d spills are lost", lost(&b.entries), lost(&b.groups), lost(&b.spills))
		}
	}
}

// When the budget is used up, a replica that has nothing gets its share: from another replica, and
// from the index of another model.
func TestB1_BudgetIsShared(t *testing.T) {
	b := NewBudget(bytesPerEntry * 1000)
	first, second := NewIndex(b), NewIndex(b)
	fillUp := func(x *Index, slot int) {
		for i := range 300 {
			c := conversation(i, 0, 4096)
			x.Record(slot, &c)
		}
	}
	fillUp(first, first.Slot(someCapacity))
	if got := first.Stats().Entries; got != 1000 {
		t.Fatalf("one replica has %d entries of 1000", got)
	}
	fillUp(first, first.Slot(someCapacity))
	if a, b := first.Replica(0).Entries, first.Replica(1).Entries; a+b != 1000 || a < 480 || a > 520 {
		t.Errorf("two replicas of a model have %d and %d entries", a, b)
	}
	fillUp(second, second.Slot(someCapacity))
	if a, b := first.Stats().Entries, second.Stats().Entries; a+b != 1000 || b < 320 || b > 350 {
		t.Errorf("two replicas have %d entries, one of another model has %d", a, b)
	}
	second.Release(0)
	fillUp(first, 0)
	if got := first.Stats().Entries; got != 1000 {
		t.Errorf("the model that is left has %d entries of 1000", got)
	}
}

// A prompt that a replica did not get after all leaves what it shares with others.
func TestB1_DroppedPromptsLeaveNoGaps(t *testing.T) {
	x := NewIndex(nil)
	slot := x.Slot(someCapacity)
	matched := make([]int32, 1)
	record := func(c Chain) (kept int) {
		x.Match(&c, matched)
		x.Record(slot, &c)
		return int(matched[0])
	}
	left := func(c Chain) int {
		x.Match(&c, matched)
		return int(matched[0])
	}
	common, own, more := strings.Repeat("s", 1000), strings.Repeat("o", 3000), strings.Repeat("m", 500)
	record(chainOf(common, "first"))
	second := chainOf(common, own)
	kept := record(second)
	if x.Drop(slot, &second, kept); kept != 1000 || left(second) != 1000 {
		t.Errorf("%d bytes were known, and %d after the prompt was dropped", kept, left(second))
	}
	kept = record(second)
	next := chainOf(common, own+more)
	record(next)
	if x.Drop(slot, &second, kept); left(next) != 4500 {
		t.Errorf("%d bytes of a later prompt are known after an earlier one was dropped", left(next))
	}
	kept = record(second)
	next = chainOf(common, own, more)
	record(next)
	if x.Drop(slot, &second, kept); left(next) != 4500 || left(second) != 4000 {
		t.Errorf("%d bytes of the next turn and %d of the dropped one are known", left(next), left(second))
	}
	checkGood(t, x)

	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 4))
		x, p := NewIndex(nil), prompts{rng: rng}
		for range 3 {
			x.Slot(1 << (10 + rng.IntN(8)))
		}
		type given struct {
			chain      Chain
			slot, kept int
		}
		var all []given
		for range 300 {
			g := given{chain: p.next(), slot: rng.IntN(3)}
			matched := make([]int32, 3)
			x.Match(&g.chain, matched)
			g.kept = int(matched[g.slot])
			x.Record(g.slot, &g.chain)
			all = append(all, g)
			if rng.IntN(3) == 0 {
				g := all[max(0, len(all)-1-rng.IntN(4))]
				x.Drop(g.slot, &g.chain, g.kept)
			}
			c := p.next()
			x.Match(&c, matched)
			for i, end := range matched {
				if want := (&naiveReplica{order: order(x, i)}).match(c); end != want {
					t.Fatalf("replica %d matches %d bytes, want %d", i, end, want)
				}
			}
		}
		checkGood(t, x)
	}
}

// The ends of early messages are not in the chain of a long conversation, and a short one has them.
func TestB1_EndsOfEarlyMessages(t *testing.T) {
	x := NewIndex(nil)
	slot := x.Slot(someCapacity)
	var messages []string
	for range 40 {
		messages = append(messages, strings.Repeat("m", 100))
	}
	long, short := chainOf(messages...), chainOf(messages[:10]...)
	x.Record(slot, &long)
	x.Record(slot, &short)
	checkGood(t, x)
	matched := make([]int32, 1)
	if x.Match(&short, matched); matched[0] != 1000 {
		t.Errorf("matched %d bytes", matched[0])
	}
}

// A chain from elsewhere may be anything.
func FuzzRecord(f *testing.F) {
	f.Add([]byte("0123456789"), uint16(3))
	f.Add(binary.LittleEndian.AppendUint64(nil, 1<<40), uint16(100))
	f.Add([]byte(strings.Repeat("\x02", 2800)+"00000"), uint16(2)) // the same beginning many times
	f.Fuzz(func(t *testing.T, data []byte, memory uint16) {
		x := NewIndex(NewBudget(int(memory) * bytesPerEntry))
		for range 130 {
			x.Slot(1 + len(data))
		}
		matched := make([]int32, x.Slots())
		for len(data) > 4 {
			var c Chain
			slot := int(data[0]) - 1
			fixed, ends := int(data[1]%16), int(data[2]%16)
			data = data[3:]
			for i := 0; i < fixed+ends && i < len(data); i++ {
				block := Block{Hash: uint64(data[i] % 32), End: uint32(data[i]) * uint32(data[len(data)-1-i])}
				if i < fixed {
					c.Blocks = append(c.Blocks, block)
				} else {
					c.Ends = append(c.Ends, block)
				}
			}
			data = data[min(fixed+ends, len(data)):]
			x.Record(slot, &c)
			x.Match(&c, matched)
			x.Drop(slot-len(data)%2, &c, len(data))
		}
		check(t, x)
	})
}

// The table has between one bucket for each node and one for two, whatever comes and goes.
func TestB1_TableGrowsAndShrinks(t *testing.T) {
	x := NewIndex(nil)
	slot := x.Slot(1 << 30)
	most := uint32(0)
	for i := range 300 {
		c := conversation(i, 0, 64<<10)
		x.Record(slot, &c)
		most = max(most, x.groups.size)
		if n := x.groups; n.nodes > 2*n.size || n.nodes < n.size-1 || int(n.size) > len(n.chunks)*chunkSize {
			t.Fatalf("%d nodes, %d buckets, %d chunks", n.nodes, n.size, len(n.chunks))
		}
	}
	check(t, x)
	x.Forget(slot)
	check(t, x)
	if n := x.groups; most < chunkSize || n.size != 1 || len(n.chunks) > 2 {
		t.Errorf("%d buckets at most, then %d in %d chunks", most, n.size, len(n.chunks))
	}
}

// The capacity shrinks when an engine has less than predicted, and comes back.
func TestB1_CapacityFollowsTheEngine(t *testing.T) {
	x := NewIndex(nil)
	slot := x.Slot(100_000)
	for i := range 20 {
		c := conversation(i, 0, 10_000)
		x.Record(slot, &c)
	}
	for _, c := range []struct {
		times, predicted, cached int
		least, most              int // of the capacity
	}{
		{times: 10, predicted: 0, cached: 0, least: 100_000, most: 100_000},
		{times: 10, predicted: 10_000, cached: 10_000, least: 100_000, most: 100_000},
		{times: 10, predicted: 10_000, cached: 9_000, least: 100_000, most: 100_000}, // within the tolerance
		{times: 10, predicted: 1_000, cached: 0, least: 100_000, most: 100_000},
		{times: 22, predicted: 10_000, cached: 5_000, least: 48_000, most: 51_000},
		{times: 64, predicted: 10_000, cached: 10_000, least: 73_000, most: 76_000},
		{times: 10, predicted: 0, cached: 2_000, least: 76_000, most: 80_000},
		{times: 1000, predicted: 10_000, cached: 12_000, least: 100_000, most: 100_000},
	} {
		for range c.times {
			x.Correct(slot, c.predicted, c.cached)
		}
		got := x.Replica(slot)
		if got.Capacity < c.least || got.Capacity > c.most || got.Bytes > got.Capacity {
			t.Errorf("after %+v: %+v", c, got)
		}
	}
}

// A method ignores a slot that is not in use.
func TestB1_UnknownSlots(t *testing.T) {
	x := NewIndex(nil)
	x.Slot(someCapacity)
	x.Release(x.Slot(someCapacity))
	c := conversation(1, 100, 1000)
	for _, slot := range []int{-1, 1, 2, 1 << 20} {
		x.Record(slot, &c)
		x.Correct(slot, 1, 1)
		x.SetCapacity(slot, 1)
		x.Forget(slot)
		x.Release(slot)
		if got := x.Replica(slot); got != (ReplicaStats{}) {
			t.Errorf("slot %d: %+v", slot, got)
		}
	}
	x.Match(&c, nil)
	if got := x.Stats(); got != (Stats{Replicas: 1}) || x.Slots() != 2 {
		t.Errorf("%+v, %d slots", got, x.Slots())
	}
}

// All methods may be called at the same time, on indexes that share a budget. Run with -race.
func TestB1_ManyGoroutines(t *testing.T) {
	b := NewBudget(bytesPerEntry * 3000)
	indexes := []*Index{NewIndex(b), NewIndex(b), NewIndex(b)}
	for _, x := range indexes {
		for range 100 {
			x.Slot(1 << 20)
		}
	}
	var wg sync.WaitGroup
	for seed := range uint64(6) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 3))
			p := prompts{rng: rng}
			for range 200 {
				x := indexes[rng.IntN(len(indexes))]
				c, slot := p.next(), rng.IntN(100)
				matched := make([]int32, x.Slots())
				x.Match(&c, matched)
				x.Record(slot, &c)
				switch rng.IntN(40) {
				case 0:
					x.Forget(slot)
				case 1:
					x.Release(slot)
					x.Slot(1 << 20)
				case 2:
					x.Correct(slot, 1<<14, 0)
				case 3:
					x.SetCapacity(slot, 1<<rng.IntN(20))
				}
				x.Stats()
			}
		})
	}
	wg.Wait()
	for _, x := range indexes {
		checkGood(t, x)
	}
}

// A shared beginning on 1,000 replicas, and one replica with more.
func TestB1_ThousandReplicas(t *testing.T) {
	x := NewIndex(nil)
	system := strings.Repeat("s", 4096)
	common := chainOf(system)
	for range 1000 {
		x.Record(x.Slot(someCapacity), &common)
	}
	next := chainOf(system, strings.Repeat("q", 5000))
	x.Record(777, &next)
	matched := make([]int32, x.Slots())
	x.Match(&next, matched)
	want := make([]int32, 1000)
	for i := range want {
		want[i] = 4096
	}
	want[777] = 9096
	if !slices.Equal(matched, want) {
		t.Errorf("matched %v", matched)
	}
	check(t, x)
}

// 1,000 replicas stay within the default budget, whatever they have.
func TestB1_MemoryOfAThousandReplicas(t *testing.T) {
	for name, all := range map[string]bool{"own prompts": false, "common prompts": true} {
		before := heap()
		x := NewIndex(NewBudget(0))
		fill(x, all)
		if used := heap() - before; used > DefaultBudget {
			t.Errorf("%s: %d bytes", name, used)
		}
		if got := x.Stats().Entries; got < x.budget.Entries()*9/10 {
			t.Errorf("%s: only %d of %d entries are used", name, got, x.budget.Entries())
		}
	}
}

// A prompt shorter than the first block is looked for while the model has no replica yet.
func TestB1_MatchWithoutReplicas(t *testing.T) {
	t.Parallel()
	NewIndex(NewBudget(1<<20)).Match(&Chain{Ends: []Block{{Hash: 2, End: 5}}, Bytes: 5}, nil)
}
