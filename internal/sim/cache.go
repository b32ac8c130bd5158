package sim

import "container/list"

// prefixCache simulates the blocks whose keys and values are in GPU memory. It evicts the least
// recently used block. It is not safe for concurrent use.
type prefixCache struct {
	// capacity is the largest number of blocks.
	capacity int
	// order holds the hashes of the blocks, the most recently used first.
	order *list.List
	// blocks are the elements of order, by hash.
	blocks map[uint64]*list.Element
}

// newPrefixCache returns a cache with a capacity in tokens. A negative capacity caches nothing.
func newPrefixCache(tokens int) *prefixCache {
	return &prefixCache{
		capacity: max(tokens, 0) / blockSize,
		order:    list.New(),
		blocks:   make(map[uint64]*list.Element),
	}
}

// match returns the number of the prompt's tokens that need no prefill. The last token is always
// computed, because the first new token comes from its output.
func (c *prefixCache) match(p prompt) int {
	if p.tokens == 0 {
		return 0
	}
	candidates := p.blocks[:min(len(p.blocks), (p.tokens-1)/blockSize)]
	n := 0
	for n < len(candidates) && c.blocks[candidates[n]] != nil {
		n++
	}
	c.add(candidates[:n])
	return n * blockSize
}

// add adds blocks, or marks them as just used. A block is useless without the blocks before it. So
// later blocks become the older ones and are evicted first.
func (c *prefixCache) add(blocks []uint64) {
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

// tokens returns the number of tokens in the cached blocks.
func (c *prefixCache) tokens() int { return c.order.Len() * blockSize }

// clear removes all blocks.
func (c *prefixCache) clear() {
	c.order.Init()
	clear(c.blocks)
}
