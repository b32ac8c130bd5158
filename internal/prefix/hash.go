package prefix

import (
	"encoding/binary"
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

// stripe is how many bytes of text a hash takes at once. All fixed lengths are multiples of it.
const stripe = 64

// hash is the hash of a beginning: of its text, and of the marks in it with their places. Its value
// can be read at every length for the price of a few multiplications, because text is taken in
// stripes that end where fixed lengths end. A general hash such as XXH64 pays its long finish at
// each fixed length and at each mark.
//
// Each of four lanes takes 16 bytes of a stripe by one multiplication of 64 by 64 bits, as wyhash
// and rapidhash do (https://github.com/Nicoshev/rapidhash). The hash is no cryptographic one. Who
// makes two prompts with the same hash has requests routed to the wrong cache, and nothing else.
//
// The zero hash must be Reset.
type hash struct {
	lanes lanes
	marks uint64       // of the marks, their places, and the numbers
	used  int          // bytes of tail
	tail  [stripe]byte // the text behind the last whole stripe, then anything
}

// lanes is the hash of whole stripes.
type lanes struct{ a, b, c, d uint64 }

// The keys change the words of a lane before they are multiplied. Keys of even numbers have a byte,
// 0xff, that UTF-8 does not contain. So no text makes the factor of such a key zero, which would
// lose all the text before. The other factor is zero for a text that was computed to be the lane.
const (
	key0 = 0xff2d358dccaa6c78
	key1 = 0x8bb84b93962eacc9
	key2 = 0xff4b33a62ed433d4
	key3 = 0x4d5a2da51de1aa47
	key4 = 0xff761d6478bd642f
	key5 = 0xe7037ed1a0b428db
	key6 = 0xff0761d6478bd642
	key7 = 0x589965cc75374cc3
)

// reset starts another hash.
func (h *hash) reset() {
	*h = hash{lanes: lanes{key1, key3, key5, key7}}
}

// mark hashes what stands at a length beside the text.
func (h *hash) mark(what uint64, length uint32) { h.marks = mix(h.marks^what, uint64(length)) }

// root hashes a namespace.
func (h *hash) root(kind string, name []byte) {
	h.marks = mix(h.marks^xxhash.Sum64String(kind), xxhash.Sum64(name))
}

// write hashes text.
func (h *hash) write(text []byte) {
	if h.used > 0 {
		n := copy(h.tail[h.used:], text)
		h.used += n
		if h.used < stripe {
			return
		}
		h.lanes = h.lanes.take(h.tail[:])
		h.used = 0
		text = text[n:]
	}
	if len(text) >= stripe {
		h.lanes = h.lanes.take(text)
		text = text[len(text)&^(stripe-1):]
	}
	if len(text) > 0 {
		h.used = copy(h.tail[:], text)
	}
}

// sum returns the hash of all that was written. length is part of it, because all fixed lengths
// inside of a media part have the same text and marks before them.
func (h *hash) sum(length uint32) uint64 {
	l := h.lanes
	if h.used > 0 {
		last := h.tail
		clear(last[h.used:])
		l = l.take(last[:])
	}
	one, two := fold(l.a^key4, l.b^key5), fold(l.c^key6, l.d^key7)
	return mix(fold(one^h.marks^key0, two^key1), uint64(length))
}

// take hashes the whole stripes of a text. The race detector would make it a hundred times slower.
//
//go:norace
func (l lanes) take(text []byte) lanes {
	a, b, c, d := l.a, l.b, l.c, l.d
	for ; len(text) >= stripe; text = text[stripe:] {
		s := text[:stripe:stripe]
		a = fold(binary.LittleEndian.Uint64(s)^key0, binary.LittleEndian.Uint64(s[8:])^a)
		b = fold(binary.LittleEndian.Uint64(s[16:])^key2, binary.LittleEndian.Uint64(s[24:])^b)
		c = fold(binary.LittleEndian.Uint64(s[32:])^key4, binary.LittleEndian.Uint64(s[40:])^c)
		d = fold(binary.LittleEndian.Uint64(s[48:])^key6, binary.LittleEndian.Uint64(s[56:])^d)
	}
	return lanes{a, b, c, d}
}

// Digest returns a hash of bytes, such as those of an image. It is no cryptographic one.
func Digest(data []byte) uint64 {
	var h hash
	h.reset()
	h.write(data)
	return h.sum(uint32(len(data)))
}

// fold multiplies two numbers and adds, without a carry, the halves of the product.
func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

// mix spreads the bits of two numbers over one.
func mix(a, b uint64) uint64 { return fold(a^0x9e3779b97f4a7c15, b^0xd1b54a32d192ed03) }
