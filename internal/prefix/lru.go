package prefix

// entry is one run of beginnings on one replica. The entries of a replica are linked in the order
// of their last use.
type entry struct {
	group uint32
	slot  uint32
	next  uint32 // in the bucket of the table
	newer uint32 // 0: this is the newest
	older uint32 // 0: this is the oldest
}

func (e *entry) link() *uint32 { return &e.next }
func (e *entry) key() uint64   { return entryKey(e.group, int(e.slot)) }

func entryKey(group uint32, slot int) uint64 { return uint64(group)<<32 | uint64(slot) }

// findEntry returns the number of a group's entry for a slot, which is there.
func (x *Index) findEntry(group uint32, slot int) uint32 {
	n := *x.entries.bucket(entryKey(group, slot))
	for {
		e := x.budget.entries.at(n)
		if e.group == group && int(e.slot) == slot {
			return n
		}
		n = e.next
	}
}

// linkAfter puts an entry behind a newer one of its replica; 0: it becomes the newest.
func (x *Index) linkAfter(r *replica, n, newer uint32) {
	e := x.budget.entries.at(n)
	e.newer = newer
	if newer == 0 {
		e.older, r.newest = r.newest, n
	} else {
		before := x.budget.entries.at(newer)
		e.older, before.older = before.older, n
	}
	if e.older == 0 {
		r.oldest = n
	} else {
		x.budget.entries.at(e.older).newer = n
	}
}

// unlink takes an entry out of the order of its replica.
func (x *Index) unlink(r *replica, n uint32) {
	e := x.budget.entries.at(n)
	if e.newer == 0 {
		r.newest = e.older
	} else {
		x.budget.entries.at(e.newer).older = e.older
	}
	if e.older == 0 {
		r.oldest = e.newer
	} else {
		x.budget.entries.at(e.older).newer = e.newer
	}
}
