package sim

// block is one block of the simulated GPU memory: the keys and values of some tokens.
type block struct {
	// hash identifies the tokens of the block and all tokens before it. It is valid if hashed is
	// true. Only a hashed block can be found again.
	hash   uint64
	hashed bool
	// refs is the number of running sequences that hold the block. A block with refs 0 is free,
	// and a hashed free block is cached.
	refs int
	// older and newer link the cached blocks in order of their last use.
	older, newer *block
	// twin is another block with the same hash, or nil. Two sequences that compute the same tokens
	// make twins.
	twin *block
}

// blockPool simulates the GPU memory for keys and values as vLLM manages it
// (vllm/v1/core/block_pool.py). Running sequences hold blocks, which nothing evicts. A block that
// no sequence holds stays cached until its memory is needed: the least recently used goes first. A
// blockPool is not safe for concurrent use.
type blockPool struct {
	// blockSize is the number of tokens in a block.
	blockSize int
	// capacity is the number of blocks, and unused the number of those that are free and hold
	// nothing.
	capacity, unused int
	// byHash finds hashed blocks. Of twins it has the first, which links to the others.
	byHash map[uint64]*block
	// lru is the ring of the cached blocks: lru.newer is the least recently used, lru.older the
	// most recently used.
	lru block
	// cached is the number of blocks in the ring.
	cached int
}

func newBlockPool(tokens, blockSize int) *blockPool {
	p := &blockPool{blockSize: blockSize, capacity: tokens / blockSize, unused: tokens / blockSize, byHash: map[uint64]*block{}}
	p.lru.older, p.lru.newer = &p.lru, &p.lru
	return p
}

// blocksFor returns the number of blocks that so many tokens take.
func (p *blockPool) blocksFor(tokens int) int { return (tokens + p.blockSize - 1) / p.blockSize }

// match returns the blocks that are in memory already, from the first hash on without a gap.
func (p *blockPool) match(hashes []uint64) []*block {
	var found []*block
	for _, h := range hashes {
		b := p.byHash[h]
		if b == nil {
			break
		}
		found = append(found, b)
	}
	return found
}

// fits tells whether a sequence can hold the found blocks and so many new ones.
func (p *blockPool) fits(found []*block, fresh int) bool {
	free := p.unused + p.cached
	for _, b := range found {
		if b.refs == 0 {
			free--
		}
	}
	return fresh <= free
}

// hold adds a holder to each block.
func (p *blockPool) hold(blocks []*block) {
	for _, b := range blocks {
		if b.refs == 0 {
			p.unlink(b)
		}
		b.refs++
	}
}

// allocate returns up to n blocks with one holder each. It returns fewer when the memory is held by
// others.
func (p *blockPool) allocate(n int) []*block {
	n = max(min(n, p.unused+p.cached), 0)
	blocks := make([]*block, n)
	for i := range blocks {
		if p.unused > 0 {
			p.unused--
		} else {
			oldest := p.lru.newer
			p.unlink(oldest)
			p.removeHash(oldest)
		}
		blocks[i] = &block{refs: 1}
	}
	return blocks
}

// release removes a holder from each block of a sequence. The last block is useless without those
// before it. So the last block becomes the least recently used of them.
func (p *blockPool) release(blocks []*block) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		b.refs--
		switch {
		case b.refs > 0:
		case b.hashed:
			p.link(b)
		default:
			p.unused++
		}
	}
}

// setHash says which tokens a block holds, from which moment on other sequences find it.
func (p *blockPool) setHash(b *block, hash uint64) {
	if b.hashed {
		return
	}
	b.hash, b.hashed = hash, true
	first := p.byHash[hash]
	if first == nil {
		p.byHash[hash] = b
		return
	}
	b.twin, first.twin = first.twin, b
}

// removeHash makes a block unfindable.
func (p *blockPool) removeHash(b *block) {
	if !b.hashed {
		return
	}
	first := p.byHash[b.hash]
	switch {
	case first != b:
		for first.twin != b {
			first = first.twin
		}
		first.twin = b.twin
	case b.twin != nil:
		p.byHash[b.hash] = b.twin
	default:
		delete(p.byHash, b.hash)
	}
	b.hashed, b.twin = false, nil
}

// link makes a block the most recently used of the cached ones.
func (p *blockPool) link(b *block) {
	b.older, b.newer = p.lru.older, &p.lru
	b.older.newer, b.newer.older = b, b
	p.cached++
}

// unlink removes a block from the cached ones.
func (p *blockPool) unlink(b *block) {
	b.older.newer, b.newer.older = b.newer, b.older
	b.older, b.newer = nil, nil
	p.cached--
}

// clear removes all cached blocks, and makes the blocks that sequences hold unfindable.
func (p *blockPool) clear() {
	for _, first := range p.byHash {
		for b := first; b != nil; {
			next := b.twin
			b.hashed, b.twin = false, nil
			b = next
		}
	}
	clear(p.byHash)
	p.lru.older, p.lru.newer = &p.lru, &p.lru
	p.unused, p.cached = p.unused+p.cached, 0
}

// findableTokens returns the number of tokens in blocks that a new sequence can find.
func (p *blockPool) findableTokens() int { return len(p.byHash) * p.blockSize }

// usage returns the share of the memory that sequences hold, from 0 to 1.
func (p *blockPool) usage() float64 {
	if p.capacity == 0 {
		return 0
	}
	return float64(p.capacity-p.unused-p.cached) / float64(p.capacity)
}
