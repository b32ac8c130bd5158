package prefix

import "math/bits"

// Match writes how many bytes of a prompt each replica has, by slot: the longest beginning of the
// chain that the index knows there. 0 means none. Slots that matched is too short for are left out.
//
// The replicas that have a beginning also have all shorter ones of fixed length. So a search by
// halves finds the longest one that any replica has, and from there the next shorter one that more
// replicas have, until each replica has its answer.
func (x *Index) Match(c *Chain, matched []int32) {
	clear(matched)
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.done) == 0 {
		return // no replica ever had a slot
	}
	clear(x.done)
	m := matching{index: x, matched: matched}
	number, everyone := x.deepest(c.Blocks, 0), 0
	if number >= 0 {
		everyone = x.replicasOf(c.Blocks[0])
	}
	for ends := c.Ends; ; {
		if number+1 < len(c.Blocks) {
			ends = shorter(ends, c.Blocks[number+1].End)
		}
		for len(ends) > 0 && (number < 0 || ends[0].End > c.Blocks[number].End) {
			m.assign(ends[0])
			ends = ends[1:]
		}
		if number < 0 {
			return
		}
		m.assign(c.Blocks[number])
		if m.assigned >= everyone { // what is left is shorter than the first block
			number = -1
			continue
		}
		number = x.deepest(c.Blocks[:number], m.assigned)
	}
}

// shorter returns the ends that are shorter than a length.
func shorter(ends []Block, length uint32) []Block {
	for len(ends) > 0 && ends[0].End >= length {
		ends = ends[1:]
	}
	return ends
}

// deepest returns the number of the longest of the blocks that more replicas have than so many, and
// -1 if there is none.
func (x *Index) deepest(blocks []Block, than int) int {
	low, high := -1, len(blocks) // low has more, high has not
	for high-low > 1 {
		middle := int(uint(low+high) / 2)
		if x.replicasOf(blocks[middle]) > than {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// replicasOf returns how many replicas have a beginning.
func (x *Index) replicasOf(b Block) int { return int(x.budget.groups.at(x.find(b.Hash)).count) }

// matching is one call of Match.
type matching struct {
	index    *Index
	matched  []int32
	assigned int // replicas that have their answer; their bits in index.done are set
}

// assign gives the replicas that have a beginning its length, except those that have a longer one.
func (m *matching) assign(b Block) {
	x := m.index
	g := x.budget.groups.at(x.find(b.Hash))
	m.slots(int(g.word), g.bits, b.End)
	for n := g.more; n != 0; {
		s := x.budget.spills.at(n)
		m.slots(int(s.word), s.bits, b.End)
		n = s.next
	}
}

func (m *matching) slots(word int, set uint64, end uint32) {
	set &^= m.index.done[word]
	m.index.done[word] |= set
	for ; set != 0; set &= set - 1 {
		m.assigned++
		if slot := word*64 + bits.TrailingZeros64(set); slot < len(m.matched) {
			m.matched[slot] = int32(end)
		}
	}
}
