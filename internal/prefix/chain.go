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
package prefix

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
}
