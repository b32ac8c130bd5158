package prefix

import (
	"math/bits"
	"math/rand/v2"
)

// bucketSeed differs in each process, so that no client can choose prompts whose beginnings share a
// bucket.
var bucketSeed = rand.Uint64()

// table finds nodes by their keys. It is a hash table that grows and shrinks by one bucket at a
// time (linear hashing, Litwin 1980). So no request waits for a whole table to be copied. It has
// between one bucket for each node and one for two. The nodes of a bucket are linked.
type table[T any, P keyed[T]] struct {
	arena  *arena[T, P]
	chunks []*[chunkSize]uint32 // the first node of each bucket
	size   uint32               // buckets, at least 1
	nodes  uint32
}

// keyed is a node of a table.
type keyed[T any] interface {
	node[T]
	key() uint64
}

func (t *table[T, P]) init(a *arena[T, P]) {
	t.arena, t.size = a, 1
	t.chunks = []*[chunkSize]uint32{new([chunkSize]uint32)}
}

// bucket returns the place of the first node whose key may be this one.
func (t *table[T, P]) bucket(key uint64) *uint32 {
	spread := uint32(mix(key, bucketSeed) >> 32)
	level := uint32(bits.Len32(t.size)) // 2^(level-1) <= size < 2^level
	n := spread & (1<<level - 1)
	if n >= t.size {
		n &= 1<<(level-1) - 1
	}
	return t.place(n)
}

func (t *table[T, P]) place(bucket uint32) *uint32 {
	return &t.chunks[bucket/chunkSize][bucket%chunkSize]
}

// add puts a node into the table. No node with the same key may be there.
func (t *table[T, P]) add(n uint32) {
	t.push(n)
	t.nodes++
	if t.nodes > 2*t.size {
		t.split()
	}
}

func (t *table[T, P]) push(n uint32) {
	node := t.arena.at(n)
	first := t.bucket(node.key())
	*node.link() = *first
	*first = n
}

// remove takes a node that is there out of the table.
func (t *table[T, P]) remove(n uint32) {
	node := t.arena.at(n)
	place := t.bucket(node.key())
	for *place != n {
		place = t.arena.at(*place).link()
	}
	*place = *node.link()
	t.nodes--
	if t.nodes < t.size && t.size > 1 {
		t.merge()
	}
}

// split adds a bucket and moves nodes of the bucket that had its keys.
func (t *table[T, P]) split() {
	old := t.size - 1<<(bits.Len32(t.size)-1)
	if int(t.size/chunkSize) == len(t.chunks) {
		t.chunks = append(t.chunks, new([chunkSize]uint32))
	}
	t.size++
	t.redistribute(t.place(old))
}

// merge removes the last bucket and moves its nodes.
func (t *table[T, P]) merge() {
	last := t.place(t.size - 1)
	t.size--
	t.redistribute(last)
	if keep := int(t.size/chunkSize) + 1; keep < len(t.chunks)-1 { // one chunk of slack
		t.chunks[len(t.chunks)-1] = nil
		t.chunks = t.chunks[:len(t.chunks)-1]
	}
}

// redistribute moves the nodes of a bucket to where their keys belong now.
func (t *table[T, P]) redistribute(bucket *uint32) {
	n := *bucket
	*bucket = 0
	for n != 0 {
		next := *t.arena.at(n).link()
		t.push(n)
		n = next
	}
}
