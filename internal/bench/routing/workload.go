package main

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gateway/sluice/internal/bench/trace"
	"github.com/sluice-gateway/sluice/internal/prefix"
)

// tokenBytes is how many bytes of text a token stands for. A block has as many as a medium.
const tokenBytes = prefix.MediaBytes / blockTokens

// workload is a sequence of requests that can be simulated.
type workload struct {
	name    string
	prompts []prompt
	// blocks is one more than the largest id of a block
	blocks int
}

func newWorkload(name string, requests []trace.Request) *workload {
	w := &workload{name: name, prompts: make([]prompt, len(requests))}
	var builder prefix.Builder
	for i, r := range requests {
		w.prompts[i] = prompt{Request: r, chain: chainOf(&builder, &r), key: ringKey(r.Blocks)}
		for _, b := range r.Blocks {
			w.blocks = max(w.blocks, int(b)+1)
		}
	}
	return w
}

// chainOf returns the beginnings of a prompt as the gateway computes them from a text. Each block
// of the trace is written as a medium, which counts as many bytes as a block has.
func chainOf(b *prefix.Builder, r *trace.Request) prefix.Chain {
	b.Reset()
	left := r.Prompt * tokenBytes
	for _, id := range r.Blocks {
		if left < prefix.MediaBytes {
			b.Mark(prefix.MarkMedia)
			text := strings.Repeat(strconv.Itoa(int(id))+" ", left)[:left]
			b.Text([]byte(text))
			break
		}
		b.Media(uint64(id))
		left -= prefix.MediaBytes
	}
	return b.Chain()
}

// ringKey is the position of a prompt on the ring: that of its first two blocks, which stand for
// the system prompt and the first question.
func ringKey(blocks []int32) uint64 {
	var buffer [8]byte
	for i, b := range blocks[:min(2, len(blocks))] {
		binary.LittleEndian.PutUint32(buffer[4*i:], uint32(b)+1)
	}
	return xxhash.Sum64(buffer[:])
}
