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
	w := recording{Index: x, slot: slot, replica: r}
	// The shortest beginning becomes the newest entry, and each longer one follows behind it.
	ends := c.Ends
	for blocks := c.Blocks; len(blocks)+len(ends) > 0; {
		var known bool
		if n := len(ends); n > 0 && (len(blocks) == 0 || ends[n-1].End < blocks[0].End) {
			known = w.record(ends[n-1], false)
			ends = ends[:n-1]
		} else {
			known = w.record(blocks[0], true)
			blocks = blocks[1:]
		}
		if !known {
			break
		}
	}
	x.fitLocked(r, slot)
}

// recording is one call of Record.
type recording struct {
	*Index
	*replica
	slot  int
	newer uint32 // the entry of the beginning before; 0: none
	last  uint64 // its hash
	// fresh says that no replica has what follows: none has a shorter beginning of fixed length.
	fresh bool
}

// record makes a beginning the one used right before the last one. fixed says that its length is a
// fixed one. It reports false when there is no memory for it.
func (w *recording) record(b Block, fixed bool) bool {
	if w.newer != 0 && b.Hash == w.last {
		return true // a message that ends at a fixed length
	}
	n, isNew := w.touch(b)
	for n == 0 {
		if !w.makeRoomLocked(w.slot, w.newer) {
			return false
		}
		n, isNew = w.touch(b)
	}
	w.newer, w.last = n, b.Hash
	w.fresh = w.fresh || fixed && isNew
	return true
}

// touch returns the number of the beginning's entry, and 0 when there is no memory for a new one.
// isNew reports that no replica had the beginning.
func (w *recording) touch(b Block) (n uint32, isNew bool) {
	number := uint32(0)
	if !w.fresh {
		number = w.find(b.Hash)
	}
	if number != 0 && w.holds(number, w.slot) {
		n = w.findEntry(number, w.slot)
		if n != w.newer && w.budget.entries.at(n).newer != w.newer {
			w.unlink(w.replica, n)
			w.linkAfter(w.replica, n, w.newer)
		}
		return n, false
	}
	if n = w.budget.entries.get(); n == 0 {
		return 0, false
	}
	isNew = number == 0
	if number = w.joinGroup(number, b); number == 0 {
		w.budget.entries.put(n)
		return 0, false
	}
	e := w.budget.entries.at(n)
	e.group, e.slot = number, uint32(w.slot)
	w.Index.entries.add(n)
	w.linkAfter(w.replica, n, w.newer)
	w.replica.entries++
	w.replica.bytes += weight(w.budget.groups.at(number).end) // b.End, if the chain is a good one
	w.held.Add(1)
	return n, isNew
}

// joinGroup adds the slot to the group of a beginning; 0: a new group. It returns the group's
// number, and 0 when there is no memory.
func (w *recording) joinGroup(number uint32, b Block) uint32 {
	if number != 0 {
		if !w.hold(w.budget.groups.at(number), w.slot) {
			return 0
		}
		return number
	}
	if number = w.budget.groups.get(); number == 0 {
		return 0
	}
	g := w.budget.groups.at(number)
	g.hash, g.end = b.Hash, b.End
	w.hold(g, w.slot) // the first slot needs no spill
	w.groups.add(number)
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
// get the prompt after all. kept is what Match said before Record. A beginning that another prompt
// has used since stays, and so do all shorter ones.
func (x *Index) Drop(slot int, c *Chain, kept int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.replicaLocked(slot)
	if r == nil {
		return
	}
	first, next := true, uint32(0)
	ends := c.Ends
	for blocks := c.Blocks; len(blocks)+len(ends) > 0; {
		var b Block
		if n := len(blocks); n > 0 && (len(ends) == 0 || blocks[n-1].End > ends[0].End) {
			b, blocks = blocks[n-1], blocks[:n-1]
		} else {
			b, ends = ends[0], ends[1:]
		}
		number := x.find(b.Hash)
		switch {
		case int(b.End) <= kept:
			return
		case number == 0 || !x.holds(number, slot):
			continue // evicted, or the same as the one before
		}
		n := x.findEntry(number, slot)
		e := x.budget.entries.at(n)
		// Record has put each beginning right behind the next shorter one. What a later prompt has
		// used has its own longer beginnings behind it.
		if !first && n != next || first && x.end(e.older) > b.End {
			return
		}
		first, next = false, e.newer
		x.forget(r, slot, n)
	}
}

// end returns the length of an entry's beginning, and 0 for no entry.
func (x *Index) end(n uint32) uint32 {
	return x.budget.groups.at(x.budget.entries.at(n).group).end
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
