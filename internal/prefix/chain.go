// Package prefix knows which replica has the beginning of a prompt in its cache. internal/dispatch
// uses one index for each model; internal/openai makes the chains of prompts.
//
// A Chain is the beginnings of one prompt, each with a hash of all that it covers. Two prompts with
// the same beginning have the same hash there. An Index remembers, for each replica of a model, the
// beginnings that it was given, as an engine's prefix cache does: the least recently used goes
// first.
//
// Lengths are bytes of text, because the gateway has no tokenizer. An image, a sound or a file
// counts 2,048.
//
// All indexes of a process share a Budget, 64 MiB by default: room for 419,430 runs of up to 12
// beginnings on replicas. An index allocates as it fills. When the budget is used up, a new run
// replaces the oldest of a replica.
//
// The order of reading: chain.go and builder.go (a prompt becomes a chain), index.go (what an Index
// promises), record.go, match.go, then the storage: budget.go, table.go, holders.go, lru.go.
package prefix

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Block is one beginning of a prompt.
type Block struct {
	// Hash covers everything before End.
	Hash uint64
	// End is the length of the beginning.
	End uint32
}

// Chain is the beginnings of one prompt. The zero value is a prompt that is not known.
type Chain struct {
	// Blocks are the beginnings of fixed lengths, the shortest first: every 64 bytes up to 1 KiB,
	// then 16 in each doubling.
	Blocks []Block
	// Ends are the beginnings that end with one of the last 16 messages, the longest first.
	// The first is the whole prompt.
	Ends []Block
	// Bytes is the length of the whole prompt.
	Bytes int
	// Start is the length of what comes before the first message that is not the system's: tools
	// and instructions, which many conversations share.
	Start int
	// Home is the hash of the beginning that all later turns of a conversation have in common. It
	// is the place of a request on a hash ring. Its maker says where the beginning ends.
	Home uint64
}

// Sizes of beginnings, in bytes of text.
const (
	step     = 64      // between fixed lengths up to fine
	fine     = 1 << 10 // from here on there are 16 fixed lengths in each doubling
	maxBytes = 1 << 30 // what follows is not in the chain
	// MediaBytes is the length that an image, a sound or a file counts.
	MediaBytes = 2048
	// MaxEnds is how many ends of messages a chain has at most.
	MaxEnds = 16
	// maxBlocks is how many fixed lengths there are up to maxBytes: 16 up to fine, and 16 in each
	// of 20 doublings.
	maxBlocks = 16 + 16*20
)

// stepAt returns the distance from a fixed length to the next one.
func stepAt(length uint32) uint32 {
	if length < fine {
		return step
	}
	return 1 << (bits.Len32(length) - 5)
}

// isFixed reports whether a length is one of those that blocks have.
func isFixed(length uint32) bool { return length >= step && length%stepAt(length-1) == 0 }

// Reroot makes the chain one of another namespace, such as that of a LoRA adapter: it shares no
// beginning with chains of other names. The empty name changes nothing. Reroot changes the blocks
// in place.
func (c *Chain) Reroot(name string) {
	if name == "" {
		return
	}
	root := xxhash.Sum64String(name)
	for _, blocks := range [][]Block{c.Blocks, c.Ends} {
		for i := range blocks {
			blocks[i].Hash = mix(blocks[i].Hash, root)
		}
	}
}

// HashAt returns the hash of the beginning that ends there, as Match reports it; 0: there is none.
func (c *Chain) HashAt(end int32) uint64 {
	i, found := slices.BinarySearchFunc(c.Blocks, uint32(end), func(b Block, end uint32) int { return cmp.Compare(b.End, end) })
	if found {
		return c.Blocks[i].Hash
	}
	for _, b := range c.Ends {
		if b.End == uint32(end) {
			return b.Hash
		}
	}
	return 0
}
