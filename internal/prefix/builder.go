package prefix

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Mark is what stands between two messages of a prompt: the role of the message that follows.
type Mark byte

// The marks. Each is a byte that UTF-8 does not contain, so no text can imitate one.
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
// The hash of a beginning is XXH64 over all marks and texts before it, mixed with its length. A
// mark is no part of the text's length, and no length precedes a text: so two texts with the same
// beginning have the same hashes there, whatever follows.
type Builder struct {
	digest xxhash.Digest
	length uint32
	next   uint32 // the next fixed length
	full   bool   // the prompt is longer than maxBytes
	count  int
	blocks [maxBlocks]Block
	ends   [maxEnds]Block // a ring: end number n is at n % maxEnds
	ended  int
	// start is Chain.Start, valid once started.
	start   uint32
	started bool
}

// Reset starts another chain.
func (b *Builder) Reset() {
	b.digest.Reset()
	b.length, b.next, b.full, b.count, b.ended, b.started = 0, step, false, 0, 0, false
}

// Mark writes what stands before a message.
func (b *Builder) Mark(m Mark) {
	if !b.started && m >= MarkUser && m <= MarkOther {
		b.start, b.started = b.length, true
	}
	mark := [1]byte{byte(m)}
	_, _ = b.digest.Write(mark[:]) // never fails
}

// Root writes the namespace that the prompt belongs to: its kind and its name. Roots come before
// all texts, and count no length.
func (b *Builder) Root(kind string, name []byte) {
	b.Mark(MarkRoot)
	_, _ = b.digest.WriteString(kind)
	b.number(uint64(len(name)))
	_, _ = b.digest.Write(name)
}

// Text writes a piece of text.
func (b *Builder) Text(text []byte) {
	if room := maxBytes - int(b.length); len(text) > room {
		text, b.full = text[:room], true
	}
	for len(text) >= int(b.next-b.length) {
		n := b.next - b.length
		_, _ = b.digest.Write(text[:n])
		text = text[n:]
		b.reach()
	}
	_, _ = b.digest.Write(text)
	b.length += uint32(len(text))
}

// Media writes an image, a sound or a file by a digest of its bytes.
func (b *Builder) Media(digest uint64) {
	if int(b.length)+MediaBytes > maxBytes {
		b.full = true
		return
	}
	b.Mark(MarkMedia)
	b.number(digest)
	for end := b.length + MediaBytes; ; b.reach() {
		if b.next > end {
			b.length = end
			return
		}
	}
}

// number writes eight bytes.
func (b *Builder) number(n uint64) {
	var bytes [8]byte
	binary.LittleEndian.PutUint64(bytes[:], n)
	_, _ = b.digest.Write(bytes[:])
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

// block returns the beginning that ends here. Its length is in the hash, because all fixed lengths
// inside of a media part have the same digest.
func (b *Builder) block() Block {
	return Block{Hash: mix(b.digest.Sum64(), uint64(b.length)), End: b.length}
}

// End records the end of a message. A message without text has no end of its own.
func (b *Builder) End() {
	if b.full || b.length == 0 || b.ended > 0 && b.ends[(b.ended-1)%maxEnds].End == b.length {
		return
	}
	b.ends[b.ended%maxEnds] = b.block()
	b.ended++
}

// Chain returns the chain of what was written, in memory of its own. The prompt ends here, whether
// End was called or not.
func (b *Builder) Chain() Chain {
	b.End()
	ends := min(b.ended, maxEnds)
	all := make([]Block, b.count+ends)
	copy(all, b.blocks[:b.count])
	for i := range ends {
		all[b.count+i] = b.ends[(b.ended-1-i)%maxEnds]
	}
	start := b.length
	if b.started {
		start = b.start
	}
	return Chain{Blocks: all[:b.count:b.count], Ends: all[b.count:], Bytes: int(b.length), Start: int(start)}
}
