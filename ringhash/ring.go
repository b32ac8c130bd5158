// Package ringhash is a consistent hash ring with bounded loads. Package dispatch uses it to send
// requests with the same key to the same replica, so that the replica's prefix cache helps. A
// replica that has clearly more load than the others gets no more of them.
//
// A ring holds the ids of replicas and nothing else. It is immutable. When a replica comes or goes,
// the caller builds a new ring and swaps a pointer, so readers need no lock. Loads belong to the
// caller and are an argument of each Pick.
//
// The algorithm is "Consistent Hashing with Bounded Loads" (Mirrokni, Thorup, Zadimoghaddam,
// https://arxiv.org/abs/1608.01350). Positions are fixed, so that other programs and other versions
// of this one agree on which replica serves a key:
//
//   - virtual node i of a replica has the position of the first 8 bytes, big endian, of
//     MD5(id + ":" + i), with i in decimal, counted from 0;
//   - a key has the position of its XXH64 with seed 0;
//   - a key belongs to the first node at or after its position, and the ring wraps around.
package ringhash

import (
	"cmp"
	"crypto/md5"
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// DefaultVirtualNodes is the default number of positions of a replica on the ring.
const DefaultVirtualNodes = 100

// Ring is an immutable hash ring. It is safe for concurrent use. A replica is named by its index in
// the ids given to New, so a caller can keep loads and addresses in slices beside the ring.
type Ring struct {
	ids []string
	// positions and owners are the nodes in ring order, as two columns: the binary search reads
	// only positions.
	positions []uint64
	owners    []int32
}

// New returns a ring of the replicas with these ids. Each has virtualNodes positions; 0 or less
// means DefaultVirtualNodes.
//
// Ids should be distinct, stable names, not addresses. The replica that a key belongs to does not
// depend on their order. New takes about 0.2 µs for each virtual node.
func New(ids []string, virtualNodes int) *Ring {
	return build(ids, virtualNodes, position)
}

// Key returns the position of a key on every ring.
func Key(key []byte) uint64 { return xxhash.Sum64(key) }

// position returns the position of a replica's virtual node.
func position(id string, index int) uint64 {
	name := make([]byte, 0, 64)
	name = append(name, id...)
	name = append(name, ':')
	name = strconv.AppendInt(name, int64(index), 10)
	sum := md5.Sum(name)
	return binary.BigEndian.Uint64(sum[:8])
}

func build(ids []string, virtualNodes int, position func(id string, index int) uint64) *Ring {
	if virtualNodes <= 0 {
		virtualNodes = DefaultVirtualNodes
	}
	type node struct {
		position uint64
		owner    int32
	}
	nodes := make([]node, 0, len(ids)*virtualNodes)
	for owner, id := range ids {
		for i := range virtualNodes {
			nodes = append(nodes, node{position(id, i), int32(owner)})
		}
	}
	slices.SortFunc(nodes, func(a, b node) int {
		if c := cmp.Compare(a.position, b.position); c != 0 {
			return c
		}
		// For two nodes at one position the ids decide, because the caller's order of the ids may
		// change.
		if c := cmp.Compare(ids[a.owner], ids[b.owner]); c != 0 {
			return c
		}
		return cmp.Compare(a.owner, b.owner)
	})
	r := &Ring{
		ids:       slices.Clone(ids),
		positions: make([]uint64, len(nodes)),
		owners:    make([]int32, len(nodes)),
	}
	for i, n := range nodes {
		r.positions[i], r.owners[i] = n.position, n.owner
	}
	return r
}

// Len returns the number of replicas.
func (r *Ring) Len() int { return len(r.ids) }

// IDs returns a copy of the ids given to New, in their order.
func (r *Ring) IDs() []string { return slices.Clone(r.ids) }

// Order returns every replica once, in the order in which the ring meets them from the key on. The
// key belongs to the first one.
func (r *Ring) Order(key uint64) []int {
	return r.AppendOrder(make([]int, 0, len(r.ids)), key, nil, 0)
}

// stackWords is the size of a visited set that lives on the stack; each word is for 64 replicas.
const stackWords = 16

// AppendOrder appends to dst the first limit candidates that the ring meets from the key on, each
// once, and returns the extended slice. A replica is a candidate unless its load is negative. With
// nil loads all replicas are candidates; otherwise loads has one entry for each of the Len
// replicas. A limit of 0 or less means all candidates.
//
// It allocates only if dst is too small or the ring has more than 1,024 replicas.
func (r *Ring) AppendOrder(dst []int, key uint64, loads []int, limit int) []int {
	left := r.candidates(loads)
	if limit > 0 {
		left = min(left, limit)
	}
	var onStack [stackWords]uint64
	visited := onStack[:]
	if len(r.ids) > 64*stackWords {
		visited = make([]uint64, (len(r.ids)+63)/64)
	}
	for i := r.firstNode(key); left > 0; i = r.nextNode(i) {
		owner := int(r.owners[i])
		word, bit := owner/64, uint64(1)<<(owner%64)
		if visited[word]&bit != 0 || loads != nil && loads[owner] < 0 {
			continue
		}
		visited[word] |= bit
		dst = append(dst, owner)
		left--
	}
	return dst
}

// candidates counts the replicas whose load is not negative.
func (r *Ring) candidates(loads []int) int {
	if loads == nil {
		return len(r.ids)
	}
	n := 0
	for _, load := range loads[:len(r.ids)] {
		if load >= 0 {
			n++
		}
	}
	return n
}

// firstNode returns the node that a key belongs to. The result means nothing for a ring without
// nodes.
func (r *Ring) firstNode(key uint64) int {
	i, _ := slices.BinarySearch(r.positions, key)
	if i == len(r.positions) {
		return 0
	}
	return i
}

// nextNode returns the node after node i.
func (r *Ring) nextNode(i int) int {
	if i++; i < len(r.owners) {
		return i
	}
	return 0
}
