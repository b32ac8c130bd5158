package prefix

import (
	"sync"
	"sync/atomic"
)

// maxSlots bounds the replicas of an index.
const maxSlots = 1<<16 - 1

// Index remembers which replica of a model was given which beginnings, as the replica's prefix
// cache does. A replica has a slot: a small number that is used again after Release. An Index may
// be used by several goroutines. No call waits for anything but other calls.
//
// A replica that has a beginning also has all shorter beginnings of fixed length, because a chain's
// shorter beginnings count as used after its longer ones. Match depends on this.
type Index struct {
	budget *Budget
	// used and held are the slots in use and their entries. They are written with mu held; other
	// indexes read them.
	used, held atomic.Int64

	mu       sync.Mutex
	groups   table[group, *group]
	entries  table[entry, *entry]
	replicas []replica // by slot
	released []int     // slots to use again
	cursor   int       // the slot where the last search for a full one ended
	done     []uint64  // for Match: a bit for each slot
	path     []stage   // the result of followLocked
}

// replica is what an index keeps of a slot.
type replica struct {
	inUse          bool
	newest, oldest uint32 // entries; 0: none
	entries        int
	bytes          int
	capacity       int
	share          float64 // of the capacity that is in use; see Correct
}

// limit returns the bytes that the replica's beginnings may have.
func (r *replica) limit() int { return int(float64(r.capacity) * r.share) }

// NewIndex returns an empty index. nil means a budget of its own with the default size.
func NewIndex(b *Budget) *Index {
	if b == nil {
		b = NewBudget(0)
	}
	x := &Index{budget: b}
	x.groups.init(&b.groups)
	x.entries.init(&b.entries)
	return x
}

// Slot returns a slot for a replica whose cache holds so many bytes of prompts. It returns -1,
// which all methods ignore, when 65,535 slots are in use.
func (x *Index) Slot(capacity int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	slot := len(x.replicas)
	switch n := len(x.released); {
	case n > 0:
		slot = x.released[n-1]
		x.released = x.released[:n-1]
	case slot == maxSlots:
		return -1
	default:
		x.replicas = append(x.replicas, replica{})
		x.done = make([]uint64, slot/64+1)
	}
	x.replicas[slot] = replica{inUse: true, capacity: capacity, share: 1}
	x.budget.join(x, int(x.used.Add(1)), 1)
	return slot
}

// Release forgets a replica that is gone. Its slot may be given to another one.
func (x *Index) Release(slot int) {
	x.Forget(slot)
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.replicaLocked(slot)
	if r == nil {
		return
	}
	for x.evictLocked(slot) { // what was recorded meanwhile
	}
	*r = replica{}
	x.released = append(x.released, slot)
	x.budget.join(x, int(x.used.Add(-1)), -1)
}

// forgetAtOnce is how many entries Forget removes before it lets other calls go on.
const forgetAtOnce = 256

// Forget forgets what a replica has, because it has restarted with an empty cache.
func (x *Index) Forget(slot int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.replicaLocked(slot)
	if r == nil {
		return
	}
	for n := r.entries; n > 0 && x.evictLocked(slot); n-- {
		if n%forgetAtOnce == 0 {
			x.mu.Unlock()
			x.mu.Lock()
		}
	}
}

// SetCapacity sets how many bytes of prompts the cache of a replica holds.
func (x *Index) SetCapacity(slot, bytes int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r := x.replicaLocked(slot); r != nil {
		r.capacity = bytes
		x.fitLocked(r, slot)
	}
}

// Corrections of a replica's capacity.
const (
	shrink = 1.0 / 32  // of the share in use, for a report of less than was predicted
	regrow = 1.0 / 256 // of the whole capacity, for a report of as much
	// tolerance is how many bytes less than predicted are no news, because engines count whole
	// blocks of tokens, and the gateway does not know tokens.
	tolerance = 1 << 10
)

// Correct tells how many bytes of a prompt the replica's engine had cached, beside what Match had
// predicted. If the engine had clearly less, it forgets sooner than the index: the capacity of the
// replica shrinks by 1/32. If it had as much, the capacity recovers by 1/256 of what SetCapacity
// has said, and never beyond that. A prompt of which nothing was predicted or cached tells nothing.
//
// The chain of the prompt itself stays: the engine has computed what it lacked, so it has the whole
// prompt now.
func (x *Index) Correct(slot, predicted, cached int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.replicaLocked(slot)
	switch {
	case r == nil, predicted <= 0 && cached <= 0:
	case cached < predicted-predicted/4-tolerance:
		r.share -= r.share * shrink
		x.fitLocked(r, slot)
	case cached >= predicted-tolerance && cached > 0:
		r.share = min(r.share+regrow, 1)
	}
}

// Slots returns how many slots there are, released ones included: the length that Match needs.
func (x *Index) Slots() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.replicas)
}

// replicaLocked returns the replica of a slot, and nil for a slot that is not in use.
func (x *Index) replicaLocked(slot int) *replica {
	if slot < 0 || slot >= len(x.replicas) || !x.replicas[slot].inUse {
		return nil
	}
	return &x.replicas[slot]
}
