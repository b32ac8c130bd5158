package prefix

// Mark is what stands between two messages of a prompt: the role of the message that follows.
type Mark byte

// The marks.
const (
	MarkRoot      Mark = 0xf5 + iota // a namespace, such as the salt of a cache
	MarkTools                        // the tools that the model may call
	MarkSystem                       // a message of the system or the developer, instructions
	MarkUser                         // a message of the user
	MarkAssistant                    // a message of the model
	MarkTool                         // the result of a tool
	MarkOther                        // a message of another role, an item without a role, a prompt
	MarkField                        // a field of a message beside its text, such as tool calls
	MarkMedia                        // an image, a sound or a file
)

// Builder makes a chain from the pieces of a prompt, which are written in the order in which the
// model reads them. A text may be written in any number of pieces. The zero Builder must be Reset.
// A Builder holds no text. It is for one goroutine.
//
// The hash of a beginning covers all texts before it, all marks with their places, and its length.
// A mark is no part of the text's length, and no length precedes a text. So two texts with the same
// beginning have the same hashes there, whatever follows.
type Builder struct {
	hash   hash
	length uint32
	next   uint32 // the next fixed length
	full   bool   // the prompt is longer than maxBytes
	count  int
	blocks [maxBlocks]Block
	ends   [MaxEnds]Block // a ring: end number n is at n % MaxEnds
	ended  int
	// start is Chain.Start, valid once started.
	start   uint32
	started bool
}

// Reset starts another chain.
func (b *Builder) Reset() {
	b.hash.reset()
	b.length, b.next, b.full, b.count, b.ended, b.started = 0, step, false, 0, 0, false
}

// Mark writes what stands before a message.
func (b *Builder) Mark(m Mark) {
	if !b.started && m >= MarkUser && m <= MarkOther {
		b.start, b.started = b.length, true
	}
	b.hash.mark(uint64(m), b.length)
}

// Root writes the namespace that the prompt belongs to: its kind and its name. Roots come before
// all texts, and count no length.
func (b *Builder) Root(kind string, name []byte) {
	b.Mark(MarkRoot)
	b.hash.root(kind, name)
}

// Text writes a piece of text.
func (b *Builder) Text(text []byte) {
	if room := maxBytes - int(b.length); len(text) > room {
		text, b.full = text[:room], true
	}
	for len(text) >= int(b.next-b.length) {
		n := b.next - b.length
		b.hash.write(text[:n])
		text = text[n:]
		b.reach()
	}
	b.hash.write(text)
	b.length += uint32(len(text))
}

// Media writes an image, a sound or a file by a digest of its bytes.
func (b *Builder) Media(digest uint64) {
	if int(b.length)+MediaBytes > maxBytes {
		b.full = true
		return
	}
	b.Mark(MarkMedia)
	b.hash.mark(digest, b.length)
	for end := b.length + MediaBytes; ; b.reach() {
		if b.next > end {
			b.length = end
			return
		}
	}
}

// reach records the fixed length that the text has reached.
func (b *Builder) reach() {
	b.length = b.next
	b.next += stepAt(b.length)
	if b.count < maxBlocks {
		b.blocks[b.count] = b.block()
		b.count++
	}
}

// block returns the beginning that ends here.
func (b *Builder) block() Block { return Block{Hash: b.Sum(), End: b.length} }

// Sum returns the hash of everything that was written.
func (b *Builder) Sum() uint64 { return b.hash.sum(b.length) }

// End records the end of a message. A message without text has no end of its own.
func (b *Builder) End() {
	if b.full || b.length == 0 || b.ended > 0 && b.ends[(b.ended-1)%MaxEnds].End == b.length {
		return
	}
	b.ends[b.ended%MaxEnds] = b.block()
	b.ended++
}

// Chain returns the chain of what was written, in memory of its own. The prompt ends here, whether
// End was called or not.
func (b *Builder) Chain() Chain {
	b.End()
	ends := min(b.ended, MaxEnds)
	all := make([]Block, b.count+ends)
	copy(all, b.blocks[:b.count])
	for i := range ends {
		all[b.count+i] = b.ends[(b.ended-1-i)%MaxEnds]
	}
	start := b.length
	if b.started {
		start = b.start
	}
	return Chain{Blocks: all[:b.count:b.count], Ends: all[b.count:], Bytes: int(b.length), Start: int(start)}
}
