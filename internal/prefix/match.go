package prefix

import "math/bits"

// Match writes how many bytes of a prompt each replica has, by slot: the longest beginning of the
// chain that the index knows there. 0 means none. Slots that matched is too short for are left out.
//
// The replicas that have a beginning also have all shorter ones of fixed length. So the search goes
// from run to run up to the longest beginning that any replica has, and back until each replica has
// its answer.
func (x *Index) Match(c *Chain, matched []int32) {
	clear(matched)
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.done) == 0 {
		return // no replica ever had a slot
	}
	clear(x.done)
	m := matching{index: x, matched: matched}
	known := x.followLocked(c.Blocks)
	ends, everyone := c.Ends, 0
	if known < len(c.Blocks) {
		ends = shorter(ends, c.Blocks[known].End)
	}
	if len(x.path) > 0 {
		everyone = int(x.budget.groups.at(x.path[0].group).count)
	}
	for i := len(x.path) - 1; i >= 0 && m.assigned < everyone; i-- {
		p := x.path[i]
		if int(x.budget.groups.at(p.group).count) > m.assigned {
			for ; len(ends) > 0 && ends[0].End > p.end; ends = ends[1:] {
				m.assign(x.find(ends[0].Hash), ends[0].End)
			}
			m.assign(p.group, p.end)
		}
		ends = shorter(ends, p.end)
	}
	if len(c.Blocks) > 0 && known > 0 {
		ends = shorter(ends, c.Blocks[0].End)
	}
	for _, b := range ends { // of replicas that have less than the first block
		m.assign(x.find(b.Hash), b.End)
	}
}

// shorter returns the ends that are shorter than a length.
func shorter(ends []Block, length uint32) []Block {
	for len(ends) > 0 && ends[0].End >= length {
		ends = ends[1:]
	}
	return ends
}

// stage is a run on the way through a chain, and the length of the longest of its beginnings that
// the chain has.
type stage struct {
	hash  uint64 // of the run's shortest beginning
	group uint32
	end   uint32
}

// followLocked makes path the runs that have the blocks, up to the longest block that a replica
// has. It returns the number of blocks that these are.
func (x *Index) followLocked(blocks []Block) (known int) {
	x.path = x.path[:0]
	for known < len(blocks) {
		hash := blocks[known].Hash
		number := x.find(hash)
		if number == 0 {
			break
		}
		known += x.budget.groups.at(number).common(blocks[known:])
		x.path = append(x.path, stage{hash, number, blocks[known-1].End})
	}
	return known
}

// matching is one call of Match.
type matching struct {
	index    *Index
	matched  []int32
	assigned int // replicas that have their answer; their bits in index.done are set
}

// assign gives the replicas of a group a length, except those that have a longer one.
func (m *matching) assign(number, end uint32) {
	m.index.words(m.index.budget.groups.at(number), func(word int, set uint64) {
		set &^= m.index.done[word]
		m.index.done[word] |= set
		for ; set != 0; set &= set - 1 {
			m.assigned++
			if slot := word*64 + bits.TrailingZeros64(set); slot < len(m.matched) {
				m.matched[slot] = int32(end)
			}
		}
	})
}
