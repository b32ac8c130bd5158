package main

// blockCache is the prefix cache of an engine: the blocks of prompts, the least recently used goes
// first. Rules that keep an approximate index of each replica use it, too. Its links are columns
// over all blocks of a trace, so no operation allocates.
type blockCache struct {
	// limit is how many blocks fit; size is how many there are
	limit, size int
	// newer and older link the blocks that are there, from newest to oldest. absent in newer marks
	// a block that is not there.
	newer, older   []int32
	newest, oldest int32
}

const (
	nothing int32 = -1
	absent  int32 = -2
)

// newBlockCache returns an empty cache of limit blocks, for a trace with so many blocks.
func newBlockCache(limit, blocks int) *blockCache {
	c := &blockCache{limit: limit, newer: make([]int32, blocks), older: make([]int32, blocks), newest: nothing, oldest: nothing}
	for i := range c.newer {
		c.newer[i] = absent
	}
	return c
}

// match returns how many of a prompt's blocks are there, from its beginning on.
func (c *blockCache) match(blocks []int32) int {
	for i, b := range blocks {
		if c.newer[b] == absent {
			return i
		}
	}
	return len(blocks)
}

// touch makes the blocks of a prompt the newest. The beginning of the prompt becomes the very
// newest, because an engine evicts the end of a prompt first.
func (c *blockCache) touch(blocks []int32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		if c.newer[b] != absent {
			c.remove(b)
		}
		c.add(b)
	}
	for c.size > c.limit {
		c.remove(c.oldest)
	}
}

func (c *blockCache) add(b int32) {
	c.newer[b], c.older[b] = nothing, c.newest
	if c.newest != nothing {
		c.newer[c.newest] = b
	} else {
		c.oldest = b
	}
	c.newest = b
	c.size++
}

func (c *blockCache) remove(b int32) {
	newer, older := c.newer[b], c.older[b]
	if newer != nothing {
		c.older[newer] = older
	} else {
		c.newest = older
	}
	if older != nothing {
		c.newer[older] = newer
	} else {
		c.oldest = newer
	}
	c.newer[b] = absent
	c.size--
}
