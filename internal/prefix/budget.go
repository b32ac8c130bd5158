package prefix

import (
	"sync"
	"sync/atomic"
)

// DefaultBudget is the bytes of a budget that is made with 0.
const DefaultBudget = 64 << 20

// bytesPerEntry is what one run of beginnings on one replica costs at most. It is an entry (20), a
// group (128), a quarter of a spill (4), and a place in each of two tables (8).
const bytesPerEntry = 160

// chunkSize is how many nodes an arena allocates at once.
const chunkSize = 1024

// Budget is the memory that the indexes of all models share. It never shrinks: memory that was
// allocated once is used again. A Budget may be used by several goroutines.
type Budget struct {
	// entries and groups have the same limit. A group has at least one entry, so an index that has
	// got an entry gets a group, too.
	entries arena[entry, *entry]
	groups  arena[group, *group]
	spills  arena[spill, *spill]

	slots atomic.Int64 // of all indexes

	mu      sync.Mutex
	indexes map[*Index]struct{} // those with a slot; mu guards it
}

// NewBudget returns a budget of so many bytes; 0 means DefaultBudget. The budget covers what
// indexes keep of prompts. A model adds 16 KiB to it at most, and a replica 64 bytes.
func NewBudget(bytes int) *Budget {
	if bytes <= 0 {
		bytes = DefaultBudget
	}
	n := max(bytes/bytesPerEntry, 1)
	b := &Budget{indexes: map[*Index]struct{}{}}
	b.entries.init(n)
	b.groups.init(n)
	b.spills.init(max(n/4, 1))
	return b
}

// fairShare returns how many entries so many slots may keep while others want room.
func (b *Budget) fairShare(slots int) int {
	return int(int64(b.entries.limit) * int64(slots) / max(b.slots.Load(), 1))
}

// join counts the slots that an index has got or lost. An index without slots is forgotten.
func (b *Budget) join(x *Index, slots, change int) {
	b.slots.Add(int64(change))
	b.mu.Lock()
	defer b.mu.Unlock()
	if slots == 0 {
		delete(b.indexes, x)
		return
	}
	b.indexes[x] = struct{}{}
}

// reclaim makes another index give an entry back, if one has more than its fair share. It does not
// wait for an index that is in use, so the caller may hold the lock of its own index.
func (b *Budget) reclaim(self *Index) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for x := range b.indexes {
		if x == self || int(x.held.Load()) <= b.fairShare(int(x.used.Load())) || !x.mu.TryLock() {
			continue
		}
		ok := x.evictLocked(x.fullestLocked())
		x.mu.Unlock()
		if ok {
			return true
		}
	}
	return false
}

// node is what an arena keeps: a struct with a link to another node.
type node[T any] interface {
	*T
	link() *uint32
}

// arena gives nodes by number, so that nodes hold no pointers and the garbage collector has nothing
// to follow. Number 0 is no node. Numbers may be got and put by several goroutines; a node belongs
// to the one that has got its number.
type arena[T any, P node[T]] struct {
	limit  int
	chunks []*[chunkSize]T // as long as the limit needs; nil: not allocated yet

	mu   sync.Mutex
	last uint32 // the highest number that was ever given
	free uint32 // the first of the free nodes, which are linked
}

func (a *arena[T, P]) init(limit int) {
	a.limit = limit
	a.chunks = make([]*[chunkSize]T, limit/chunkSize+1)
	a.chunks[0] = new([chunkSize]T) // node 0 can be read: it is zero
}

// at returns the node of a number.
func (a *arena[T, P]) at(n uint32) P { return &a.chunks[n/chunkSize][n%chunkSize] }

// get returns the number of a node with the zero value, and 0 when the limit is reached.
func (a *arena[T, P]) get() uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.free; n != 0 {
		node := a.at(n)
		a.free = *node.link()
		*node = *new(T)
		return n
	}
	if int(a.last) == a.limit {
		return 0
	}
	a.last++
	if chunk := &a.chunks[a.last/chunkSize]; *chunk == nil {
		*chunk = new([chunkSize]T)
	}
	return a.last
}

// put gives a node back.
func (a *arena[T, P]) put(n uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*a.at(n).link() = a.free
	a.free = n
}

// getMany returns the first of so many linked nodes, and 0 when the limit is reached.
func (a *arena[T, P]) getMany(count int) (first uint32) {
	for range count {
		n := a.get()
		if n == 0 {
			a.putMany(first)
			return 0
		}
		*a.at(n).link() = first
		first = n
	}
	return first
}

// putMany gives linked nodes back.
func (a *arena[T, P]) putMany(first uint32) {
	for n := first; n != 0; {
		next := *a.at(n).link()
		a.put(n)
		n = next
	}
}
