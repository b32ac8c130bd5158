package main

import (
	"container/list"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/trace"
	"github.com/sluice-gateway/sluice/internal/predict"
)

const (
	// prefillRate is how many uncached prompt tokens a replica computes in a second.
	prefillRate = 6000
	// tokenTime is how long a replica takes for each token of an answer.
	tokenTime = 20 * time.Millisecond
	// cacheBlocks is how many blocks of prompts a replica's cache holds: 307,200 tokens.
	cacheBlocks = 600
	// coldStart is how long a replica takes from its start until it is ready.
	coldStart = 60 * time.Second
)

// replica is a simulated engine. It computes prompts one after the other, and generates all answers
// side by side.
type replica struct {
	// born is when it was started, ready when it serves.
	born, ready time.Time
	// draining tells that it gets no more requests.
	draining bool
	// free is when it has computed all prompts that it was given.
	free time.Time
	// running is the number of its requests.
	running int
	cache   *cache
	// queue is what the gateway knows of it.
	queue *predict.Replica
}

// serve gives the replica a request. It returns when the first token comes.
func (r *replica) serve(now time.Time, q *trace.Request) time.Time {
	uncached := r.uncached(q)
	if r.free.Before(now) {
		r.free = now
	}
	r.free = r.free.Add(time.Duration(float64(uncached) / prefillRate * float64(time.Second)))
	r.cache.touch(q.Blocks)
	r.running++
	return r.free
}

// uncached returns how many tokens of the prompt the replica has to compute: at least one.
func (r *replica) uncached(q *trace.Request) int {
	return max(q.Prompt-r.cache.match(q.Blocks)*trace.BlockTokens, 1)
}

// cache is the prefix cache of an engine, by blocks. The least recently used goes first.
type cache struct {
	order  *list.List // of block numbers, the newest first
	blocks map[int32]*list.Element
}

func newCache() *cache { return &cache{list.New(), map[int32]*list.Element{}} }

// match returns how many of the blocks are there, from the beginning on.
func (c *cache) match(blocks []int32) int {
	for i, b := range blocks {
		if c.blocks[b] == nil {
			return i
		}
	}
	return len(blocks)
}

// touch makes the blocks of a prompt the newest, its beginning the very newest.
func (c *cache) touch(blocks []int32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		if e := c.blocks[blocks[i]]; e != nil {
			c.order.MoveToFront(e)
		} else {
			c.blocks[blocks[i]] = c.order.PushFront(blocks[i])
		}
	}
	for c.order.Len() > cacheBlocks {
		delete(c.blocks, c.order.Remove(c.order.Back()).(int32))
	}
}
