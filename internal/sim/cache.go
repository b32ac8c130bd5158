package sim

import "container/list"

// prefixCache holds the blocks whose keys and values are still in the simulated GPU's memory; the block used longest
// ago goes first. It is not safe for concurrent use.
type prefixCache struct {
	capacity int // blocks
	order    *list.List
	blocks   map[uint64]*list.Element // of uint64, the block's hash
}

// newPrefixCache makes a cache for so many tokens; none for a negative number.
func newPrefixCache(tokens int) *prefixCache {
	return &prefixCache{
		capacity: max(tokens, 0) / blockSize,
		order:    list.New(),
		blocks:   make(map[uint64]*list.Element),
	}
}

// match says how many of the prompt's tokens need no prefill. The last token is always computed, because its output is
// what the first new token comes from.
func (c *prefixCache) match(p prompt) int {
	if p.tokens == 0 {
		return 0
	}
	candidates := p.blocks[:min(len(p.blocks), (p.tokens-1)/blockSize)]
	n := 0
	for n < len(candidates) && c.blocks[candidates[n]] != nil {
		n++
	}
	c.put(candidates[:n])
	return n * blockSize
}

// put adds the blocks, or marks them as just used. A later block is of no use without those before it, so it is made
// the older one and leaves first.
func (c *prefixCache) put(blocks []uint64) {
	blocks = blocks[:min(len(blocks), c.capacity)]
	for i := len(blocks) - 1; i >= 0; i-- {
		if e := c.blocks[blocks[i]]; e != nil {
			c.order.MoveToFront(e)
			continue
		}
		c.blocks[blocks[i]] = c.order.PushFront(blocks[i])
	}
	for c.order.Len() > c.capacity {
		delete(c.blocks, c.order.Remove(c.order.Back()).(uint64))
	}
}

// tokens is how many tokens the cached blocks hold.
func (c *prefixCache) tokens() int { return c.order.Len() * blockSize }

func (c *prefixCache) clear() {
	c.order.Init()
	clear(c.blocks)
}
