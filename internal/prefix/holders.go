package prefix

// group is a beginning that at least one replica has, and which replicas these are: the bits of 64
// slots, and a list of spills with the bits of others. So 1,000 replicas are 16 words.
type group struct {
	hash  uint64
	bits  uint64
	end   uint32 // the length of the beginning
	word  uint16 // bits are those of the slots from 64 × word
	count uint16 // replicas
	next  uint32 // in the bucket of the table
	more  uint32 // the first spill; 0: none
}

func (g *group) link() *uint32 { return &g.next }
func (g *group) key() uint64   { return g.hash }

// spill is 64 more slots of a group.
type spill struct {
	bits uint64
	word uint32
	next uint32
}

func (s *spill) link() *uint32 { return &s.next }
func (s *spill) key() uint64   { return 0 } // spills are in no table

// find returns the number of a beginning's group, and 0 if no replica has the beginning.
func (x *Index) find(hash uint64) uint32 {
	n := *x.groups.bucket(hash)
	for n != 0 {
		g := x.budget.groups.at(n)
		if g.hash == hash {
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

// holds reports whether a slot is in a group.
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
