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
	// The shortest run becomes the newest entry, and each longer one follows behind it. The ends
	// inside of a run follow behind the run, too, so they go before it.
	ends, ok := c.Ends, true
	for blocks := c.Blocks; ok && len(blocks)+len(ends) > 0; {
		if n := len(ends); n > 0 && (len(blocks) == 0 || ends[n-1].End < blocks[0].End) {
			ok = isFixed(ends[n-1].End) || w.record(ends[n-1:n], true) > 0
			ends = ends[:n-1]
			continue
		}
		n := w.record(blocks, false)
		ok, blocks = n > 0, blocks[n:]
	}
	x.fitLocked(r, slot)
}

// recording is one call of Record.
type recording struct {
	*Index
	*replica
	slot   int
	newer  uint32 // the entry of the run before; 0: none
	before uint32 // the group of the blocks before; 0: none
	length uint32 // of the blocks before
	// fresh says that no replica has the blocks that follow, or ends behind the next of them.
	fresh bool
}

// record makes the first of the blocks, or an end, those used right before the last ones. It
// returns how many these are, and 0 when there is no memory for them.
func (w *recording) record(blocks []Block, end bool) (count int) {
	for {
		number := uint32(0)
		if !w.fresh {
			number = w.find(blocks[0].Hash)
		}
		n := uint32(0)
		switch {
		case number != 0:
			n, count = w.touch(number, blocks)
		case end:
			n, count = w.create(blocks[:1], uncounted(blocks[0].End))
		default:
			w.fresh = true
			if count = w.extend(blocks); count > 0 {
				return count
			}
			n, count = w.create(blocks, w.length)
		}
		if n != 0 {
			w.newer = n
			if g := w.budget.entries.at(n).group; !end {
				w.before, w.length = g, blocks[count-1].End
			}
			return count
		}
		if !w.makeRoomLocked(w.slot, w.newer) {
			return 0
		}
	}
}

// uncounted returns how much of an end the fixed lengths beside it count: all of it, except when
// the end is shorter than all of them.
func uncounted(end uint32) uint32 {
	if end < step {
		return 0
	}
	return end
}

// touch uses those beginnings of a group that the blocks are. It returns the number of their entry,
// and 0 when there is no memory, and how many beginnings these are.
func (w *recording) touch(number uint32, blocks []Block) (n uint32, count int) {
	g := w.budget.groups.at(number)
	count = g.common(blocks)
	if count < int(g.size) && !w.split(number, count, blocks[count-1].End) {
		return 0, 0
	}
	if !w.holds(number, w.slot) {
		return w.join(number), count
	}
	n = w.findEntry(number, w.slot)
	if n != w.newer && w.budget.entries.at(n).newer != w.newer {
		w.unlink(w.replica, n)
		w.linkAfter(w.replica, n, w.newer)
	}
	return n, count
}

// extend adds blocks to the group before them, if the replica alone has it and it has room. So the
// turns of a conversation fill groups.
func (w *recording) extend(blocks []Block) (count int) {
	g := w.budget.groups.at(w.before)
	if w.before == 0 || g.count != 1 || g.forked {
		return 0
	}
	bytes := g.bytes()
	count = g.add(blocks)
	w.length = g.last
	w.replica.bytes += g.bytes() - bytes
	return count
}

// create makes a group of the first of the blocks, which follow a length. It returns the number of
// its entry, and 0 when there is no memory, and how many blocks these are.
func (w *recording) create(blocks []Block, from uint32) (n uint32, count int) {
	number := w.budget.groups.get()
	if number == 0 {
		return 0, 0
	}
	g := w.budget.groups.at(number)
	g.from, g.last = from, from
	count = g.add(blocks)
	if n = w.join(number); n == 0 {
		w.budget.groups.put(number)
		return 0, 0
	}
	w.groups.add(number)
	return n, count
}

// join adds the replica to a group. It returns the number of the entry, and 0 when there is no
// memory.
func (w *recording) join(number uint32) uint32 {
	n := w.budget.entries.get()
	if n == 0 {
		return 0
	}
	g := w.budget.groups.at(number)
	if !w.hold(g, w.slot) {
		w.budget.entries.put(n)
		return 0
	}
	e := w.budget.entries.at(n)
	e.group, e.slot = number, uint32(w.slot)
	w.Index.entries.add(n)
	w.linkAfter(w.replica, n, w.newer)
	w.replica.entries++
	w.replica.bytes += g.bytes()
	w.held.Add(1)
	return n
}

// fitLocked evicts what exceeds the capacity of a replica: single beginnings of a run that no other
// replica has, and whole runs that others have.
func (x *Index) fitLocked(r *replica, slot int) {
	for limit := r.limit(); r.bytes > limit && r.oldest != 0; {
		if !x.trim(r, x.budget.entries.at(r.oldest).group) {
			x.evictLocked(slot)
		}
	}
}

// trim takes the longest beginning of a run from a replica that has it. It reports false if other
// replicas have the run, too, or if the run is one beginning.
func (x *Index) trim(r *replica, number uint32) bool {
	g := x.budget.groups.at(number)
	removed := stepAt(g.last - 1)
	if g.count > 1 || g.size == 1 || int(removed) > g.bytes() {
		return false
	}
	g.size--
	g.last -= removed
	r.bytes -= int(removed)
	return true
}

// evictLocked forgets the least recently used run of a replica. It reports false if the replica has
// none.
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
	if known := x.followLocked(c.Blocks); known > 0 {
		p := x.path[len(x.path)-1]
		if x.budget.groups.at(p.group).last > p.end {
			return // a later prompt goes on there
		}
	}
	runs, ends := x.path, c.Ends
	first, next := true, uint32(0)
	for len(runs)+len(ends) > 0 {
		// A chain from elsewhere may have a run twice, so each is looked for when its turn comes.
		number, isRun := uint32(0), len(runs) > 0
		if isRun {
			number = x.find(runs[len(runs)-1].hash)
		}
		switch {
		case len(ends) > 0 && ends[0].End > x.budget.groups.at(number).from:
			// Record has put each end behind the run that it is in.
			number, ends, isRun = x.findEnd(ends[0]), ends[1:], false
		case isRun:
			runs = runs[:len(runs)-1]
		default:
			return // an end without text
		}
		if number == 0 || !x.holds(number, slot) {
			continue // evicted, or the same as a block
		}
		g := x.budget.groups.at(number)
		n := x.findEntry(number, slot)
		e := x.budget.entries.at(n)
		// Record has put each run right behind the next shorter one. What a later prompt has used
		// has its own longer runs behind it.
		if !first && n != next || first && x.end(e.older) > g.last {
			return
		}
		first, next = false, e.newer
		switch {
		case int(g.last) <= kept && isRun:
			return
		case int(g.last) <= kept:
		case isRun && int(g.from) < kept:
			for int(g.last) > kept && x.trim(r, number) {
			}
			return
		default:
			x.forget(r, slot, n)
		}
	}
}

// findEnd returns the number of an end's group; 0: no replica has it.
func (x *Index) findEnd(b Block) uint32 {
	if isFixed(b.End) {
		return 0 // it is in the group of a block
	}
	return x.find(b.Hash)
}

// end returns the longest length of an entry's run, and 0 for no entry.
func (x *Index) end(n uint32) uint32 {
	return x.budget.groups.at(x.budget.entries.at(n).group).last
}

// forget removes the entry n of a replica.
func (x *Index) forget(r *replica, slot int, n uint32) {
	group := x.budget.entries.at(n).group
	r.bytes -= x.budget.groups.at(group).bytes()
	r.entries--
	x.held.Add(-1)
	x.unlink(r, n)
	x.entries.remove(n)
	x.drop(group, slot)
	x.budget.entries.put(n)
}

// makeRoomLocked evicts one run for a new one of a replica, because the budget is used up. It
// evicts one of another index or of another replica, if they have more than their share and this
// one has less. Else it evicts the replica's oldest. It reports false if nothing can go but what
// was recorded just now, which ends with the entry last.
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
