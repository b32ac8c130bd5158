package prefix

// Record says that a replica was given a prompt, so that its cache has all beginnings of the prompt
// from now on. What exceeds the replica's capacity goes, the least recently used first. When the
// memory of the budget is used up, older beginnings make room: those of the same replica, or of one
// that has more than its share. A slot that is not in use is ignored.
func (x *Index) Record(slot int, c *Chain) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.replicaLocked(slot)
	if r == nil {
		return
	}
	// The shortest beginning becomes the newest entry, and each longer one follows behind it.
	var newer uint32
	ends := c.Ends
	for blocks := c.Blocks; len(blocks)+len(ends) > 0; {
		var next *Block
		if n := len(ends); n > 0 && (len(blocks) == 0 || ends[n-1].End < blocks[0].End) {
			next, ends = &ends[n-1], ends[:n-1]
		} else {
			next, blocks = &blocks[0], blocks[1:]
		}
		n := x.touch(slot, next, newer)
		for n == 0 {
			if !x.makeRoomLocked(slot, newer) {
				x.fitLocked(r, slot)
				return
			}
			n = x.touch(slot, next, newer)
		}
		newer = n
	}
	x.fitLocked(r, slot)
}

// touch makes a beginning the one used right before newer; 0: the last of all. It returns the
// entry's number, and 0 when there is no memory for a new one.
func (x *Index) touch(slot int, b *Block, newer uint32) uint32 {
	r := &x.replicas[slot]
	number := x.find(b.Hash)
	if number != 0 {
		bits := x.word(x.budget.groups.at(number), slot/64)
		if bits != nil && *bits&(1<<(slot%64)) != 0 {
			n := x.findEntry(number, slot)
			if n != newer && x.budget.entries.at(n).newer != newer {
				x.unlink(r, n)
				x.linkAfter(r, n, newer)
			}
			return n
		}
	}
	n := x.budget.entries.get()
	if n == 0 {
		return 0
	}
	if number = x.joinGroup(number, slot, b); number == 0 {
		x.budget.entries.put(n)
		return 0
	}
	e := x.budget.entries.at(n)
	e.group, e.slot = number, uint32(slot)
	x.entries.add(n)
	x.linkAfter(r, n, newer)
	r.entries++
	r.bytes += weight(b.End)
	x.held.Add(1)
	return n
}

// joinGroup adds a slot to the group of a beginning; 0: a new group. It returns the group's number,
// and 0 when there is no memory.
func (x *Index) joinGroup(number uint32, slot int, b *Block) uint32 {
	if number != 0 {
		if !x.hold(x.budget.groups.at(number), slot) {
			return 0
		}
		return number
	}
	if number = x.budget.groups.get(); number == 0 {
		return 0
	}
	g := x.budget.groups.at(number)
	g.hash, g.end = b.Hash, b.End
	x.hold(g, slot) // the first slot needs no spill
	x.groups.add(number)
	return number
}

// fitLocked evicts what exceeds the capacity of a replica.
func (x *Index) fitLocked(r *replica, slot int) {
	for limit := r.limit(); r.bytes > limit && x.evictLocked(slot); {
	}
}

// evictLocked forgets the least recently used beginning of a replica. It reports false if the
// replica has none.
func (x *Index) evictLocked(slot int) bool {
	r := &x.replicas[slot]
	n := r.oldest
	if n == 0 {
		return false
	}
	x.forget(r, slot, n)
	return true
}

// Drop forgets the beginnings of a prompt that are longer than kept, because the replica did not
// get the prompt after all.
func (x *Index) Drop(slot int, c *Chain, kept int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.replicaLocked(slot)
	if r == nil {
		return
	}
	for _, blocks := range [...][]Block{c.Blocks, c.Ends} {
		for _, b := range blocks {
			if int(b.End) > kept && x.has(b.Hash, slot) {
				x.forget(r, slot, x.findEntry(x.find(b.Hash), slot))
			}
		}
	}
}

// has reports whether a replica has a beginning.
func (x *Index) has(hash uint64, slot int) bool {
	number := x.find(hash)
	if number == 0 {
		return false
	}
	bits := x.word(x.budget.groups.at(number), slot/64)
	return bits != nil && *bits&(1<<(slot%64)) != 0
}

// forget removes the entry n of a replica.
func (x *Index) forget(r *replica, slot int, n uint32) {
	group := x.budget.entries.at(n).group
	r.bytes -= weight(x.budget.groups.at(group).end)
	r.entries--
	x.held.Add(-1)
	x.unlink(r, n)
	x.entries.remove(n)
	x.drop(group, slot)
	x.budget.entries.put(n)
}

// makeRoomLocked evicts one beginning for a new one of a replica, because the budget is used up:
// one of another index or of another replica, if they have more than their share and this one has
// less, else the replica's oldest. It reports false if nothing can go but what was recorded just
// now, which ends with the entry last.
func (x *Index) makeRoomLocked(slot int, last uint32) bool {
	r := &x.replicas[slot]
	held, used := int(x.held.Load()), int(x.used.Load())
	if held < x.budget.fairShare(used) && x.budget.reclaim(x) {
		return true
	}
	if r.entries*used < held {
		return x.evictLocked(x.fullestLocked())
	}
	return r.oldest != last && x.evictLocked(slot)
}

// fullestLocked returns a slot that has as many entries as the average of all, or more. Different
// calls return different slots, if there are several.
func (x *Index) fullestLocked() int {
	held, used := int(x.held.Load()), int(x.used.Load())
	for range x.replicas {
		x.cursor = (x.cursor + 1) % len(x.replicas)
		if r := &x.replicas[x.cursor]; r.inUse && r.entries*used >= held {
			break
		}
	}
	return x.cursor
}
