package prefix

import "math/bits"

// runLength is how many beginnings a group has at most. It makes a group 128 bytes.
const runLength = 12

// group is a run of beginnings that the same replicas have: the beginnings of consecutive fixed
// lengths of one prompt, or one end of a message. It says which replicas these are by the bits of
// 64 slots, and by a list of spills with the bits of others. So 1,000 replicas are 16 words.
//
// No beginning of a fixed length is in two groups. When a prompt leaves a run before its end, the
// run is split there.
type group struct {
	hashes [runLength]uint64 // the shortest beginning first
	bits   uint64
	from   uint32 // the length of the beginning before the run
	last   uint32 // the length of the longest beginning
	next   uint32 // in the bucket of the table
	more   uint32 // the first spill; 0: none
	word   uint16 // bits are those of the slots from 64 × word
	count  uint16 // replicas
	size   uint8  // beginnings
	forked bool   // the run was split, so the rest of another prompt follows
}

func (g *group) link() *uint32 { return &g.next }
func (g *group) key() uint64   { return g.hashes[0] }

// bytes returns how much of a replica's cache the run is.
func (g *group) bytes() int { return int(g.last) - int(g.from) }

// common returns how many beginnings of the run a prompt has.
func (g *group) common(blocks []Block) int {
	n := min(int(g.size), len(blocks))
	for i := range n {
		if g.hashes[i] != blocks[i].Hash {
			return i
		}
	}
	return n
}

// add adds as many of the blocks as the run has room for, and returns how many these are.
func (g *group) add(blocks []Block) int {
	n := min(runLength-int(g.size), len(blocks))
	for _, b := range blocks[:n] {
		g.hashes[g.size] = b.Hash
		g.size++
		g.last = max(g.last, b.End)
	}
	return n
}

// spill is 64 more slots of a group.
type spill struct {
	bits uint64
	word uint32
	next uint32
}

func (s *spill) link() *uint32 { return &s.next }

// find returns the number of the group whose shortest beginning has a hash, and 0 if there is none.
func (x *Index) find(hash uint64) uint32 {
	n := *x.groups.bucket(hash)
	for n != 0 {
		g := x.budget.groups.at(n)
		if g.hashes[0] == hash {
			return n
		}
		n = g.next
	}
	return 0
}

// word returns the bits of a group for the slots from 64 × word, and nil if it has none of them.
func (x *Index) word(g *group, word int) *uint64 {
	if int(g.word) == word {
		return &g.bits
	}
	for n := g.more; n != 0; {
		s := x.budget.spills.at(n)
		if int(s.word) == word {
			return &s.bits
		}
		n = s.next
	}
	return nil
}

func (x *Index) holds(number uint32, slot int) bool {
	bits := x.word(x.budget.groups.at(number), slot/64)
	return bits != nil && *bits&(1<<(slot%64)) != 0
}

// hold adds a slot to a group that it is not in. It reports false when there is no memory.
func (x *Index) hold(g *group, slot int) bool {
	bit := uint64(1) << (slot % 64)
	if g.count == 0 {
		g.word = uint16(slot / 64)
	}
	bits := x.word(g, slot/64)
	if bits == nil {
		n := x.budget.spills.get()
		if n == 0 {
			return false
		}
		s := x.budget.spills.at(n)
		s.word, s.next = uint32(slot/64), g.more
		g.more, bits = n, &s.bits
	}
	*bits |= bit
	g.count++
	return true
}

// words calls do with all the bits of a group.
func (x *Index) words(g *group, do func(word int, set uint64)) {
	do(int(g.word), g.bits)
	for n := g.more; n != 0; {
		s := x.budget.spills.at(n)
		do(int(s.word), s.bits)
		n = s.next
	}
}

// split makes a group of the beginnings behind the first keep of a group, the longest of which has
// the length end. The replicas have both groups then. It reports false, and changes nothing, when
// there is no memory.
func (x *Index) split(number uint32, keep int, end uint32) bool {
	g := x.budget.groups.at(number)
	entries := x.budget.entries.getMany(int(g.count))
	tailNumber := x.budget.groups.get()
	tail := x.budget.groups.at(tailNumber)
	if entries == 0 || tailNumber == 0 || !x.copySlots(tail, g) {
		x.budget.entries.putMany(entries)
		if tailNumber != 0 {
			x.budget.groups.put(tailNumber)
		}
		return false
	}
	end = min(max(end, g.from), g.last) // it is, if the chain is a good one
	tail.size = uint8(copy(tail.hashes[:], g.hashes[keep:g.size]))
	tail.from, tail.last, tail.forked = end, g.last, g.forked
	g.size, g.last, g.forked = uint8(keep), end, true
	x.groups.add(tailNumber)
	x.held.Add(int64(g.count))
	x.words(tail, func(word int, set uint64) {
		for ; set != 0; set &= set - 1 {
			slot := word*64 + bits.TrailingZeros64(set)
			n, e := entries, x.budget.entries.at(entries)
			entries = e.next
			e.group, e.slot = tailNumber, uint32(slot)
			x.entries.add(n)
			x.linkAfter(&x.replicas[slot], n, x.findEntry(number, slot))
			x.replicas[slot].entries++
		}
	})
	return true
}

// copySlots gives a group without slots those of another one. It reports false when there is no
// memory.
func (x *Index) copySlots(to, from *group) bool {
	to.word, to.bits, to.count = from.word, from.bits, from.count
	for n := from.more; n != 0; {
		s := x.budget.spills.at(n)
		number := x.budget.spills.get()
		if number == 0 {
			to.count = 0
			x.dropSpills(to)
			return false
		}
		*x.budget.spills.at(number) = spill{bits: s.bits, word: s.word, next: to.more}
		to.more, n = number, s.next
	}
	return true
}

// drop removes a slot from a group that it is in. A group without slots goes.
func (x *Index) drop(number uint32, slot int) {
	g := x.budget.groups.at(number)
	g.count--
	if g.count == 0 {
		x.groups.remove(number)
		x.dropSpills(g)
		x.budget.groups.put(number)
		return
	}
	*x.word(g, slot/64) &^= 1 << (slot % 64)
	x.dropSpills(g)
}

// dropSpills gives the spills without slots back. The bits of the group itself may be empty.
func (x *Index) dropSpills(g *group) {
	for place := &g.more; *place != 0; {
		n := *place
		s := x.budget.spills.at(n)
		if s.bits != 0 && g.count != 0 {
			place = &s.next
			continue
		}
		*place = s.next
		x.budget.spills.put(n)
	}
}
