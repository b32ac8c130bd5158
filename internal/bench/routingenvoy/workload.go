package main

import (
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/trace"
)

// tokenScale divides all numbers of tokens. A block of the trace becomes two blocks of an engine.
const tokenScale = 16

// request is one request of the replayed trace.
type request struct {
	// at is when it is sent, after the beginning of the replay.
	at time.Duration
	// prompt is its text, and output the number of tokens it asks for.
	prompt string
	output int
	blocks []int32
}

// scaled returns the recorded requests with fewer tokens, in less time.
func scaled(recorded []trace.Request, speed float64) []request {
	work := make([]request, len(recorded))
	texts := map[int32]string{}
	for i, r := range recorded {
		left := max(r.Prompt/tokenScale, 1)
		var b strings.Builder
		for _, id := range r.Blocks {
			text, ok := texts[id]
			if !ok {
				text = textOf(id)
				texts[id] = text
			}
			n := min(left, trace.BlockTokens/tokenScale)
			b.WriteString(text[:n*tokenBytes])
			left -= n
		}
		work[i] = request{
			at:     time.Duration(float64(r.At) / speed),
			prompt: b.String(), output: max(r.Output/tokenScale, 1), blocks: r.Blocks,
		}
	}
	return work
}

// tokenBytes is the length of each token of the texts: a space and three letters.
const tokenBytes = 4

// textOf returns the text of a block. Equal ids have equal texts, different ids different ones.
func textOf(id int32) string {
	random := rand.New(rand.NewPCG(uint64(id), 0)) //nolint:gosec // texts, not secrets
	b := make([]byte, trace.BlockTokens/tokenScale*tokenBytes)
	for i := range b {
		if b[i] = ' '; i%tokenBytes > 0 {
			b[i] = byte('a' + random.IntN(26))
		}
	}
	return string(b)
}
