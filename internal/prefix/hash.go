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
// Each of eight lanes takes eight bytes of a stripe by one multiplication of 32 by 32 bits, as XXH3
// does (https://github.com/Cyan4973/xxHash). So a processor takes four lanes by one instruction.
// The hash is no cryptographic one. A client that makes two prompts with the same hash has requests
// routed to the wrong cache, and nothing else.
//
// The zero hash must be Reset.
type hash struct {
	lanes lanes
	marks uint64       // of the marks, their places, and the numbers
	used  int          // bytes of tail
	tail  [stripe]byte // the text behind the last whole stripe, then anything
}

// lanes is the hash of whole stripes. Assembly reads it.
//
// A lane adds up the product of the two halves of each of its words. It also adds up the words of
// the lane beside it, so that no word is lost whose product is zero. A key changes a word before
// that. A key grows with each stripe, so the same stripes in another order have another hash.
type lanes struct{ sums, keys [8]uint64 }

// growth is what a key grows by. Both halves are odd, so both change with each stripe.
const growth = 0x9e3779b97f4a7c15

// firstKeys are the keys of the first stripe: the digits of pi behind the point, as a text without
// structure.
var firstKeys = [8]uint64{
	0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89,
	0x452821e638d01377, 0xbe5466cf34e90c6c, 0xc0ac29b7c97c50dd, 0x3f84d5b5b5470917,
}

// reset starts another hash.
func (h *hash) reset() {
	*h = hash{lanes: lanes{sums: firstKeys, keys: firstKeys}}
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
		h.lanes.take(h.tail[:])
		h.used = 0
		text = text[n:]
	}
	if len(text) >= stripe {
		h.lanes.take(text)
		text = text[len(text)&^(stripe-1):]
	}
	if len(text) > 0 {
		h.used = copy(h.tail[:], text)
	}
}

// sum returns the hash of all that was written. length is part of it, because all fixed lengths
// inside of a media part have the same text and marks before them.
func (h *hash) sum(length uint32) uint64 {
	l := &h.lanes
	if h.used > 0 {
		whole := h.lanes
		clear(h.tail[h.used:])
		whole.take(h.tail[:])
		l = &whole
	}
	k := &firstKeys
	one := fold(l.sums[0]^k[1], l.sums[1]^k[2]) + fold(l.sums[2]^k[3], l.sums[3]^k[4])
	two := fold(l.sums[4]^k[5], l.sums[5]^k[6]) + fold(l.sums[6]^k[7], l.sums[7]^k[0])
	return mix(fold(one^h.marks, two^growth), uint64(length))
}

// takePlainly is take. The race detector would make it a hundred times slower.
//
//go:norace
func (l *lanes) takePlainly(text []byte) {
	s := &l.sums
	k0, k1, k2, k3 := l.keys[0], l.keys[1], l.keys[2], l.keys[3]
	k4, k5, k6, k7 := l.keys[4], l.keys[5], l.keys[6], l.keys[7]
	for ; len(text) >= stripe; text = text[stripe:] {
		t := text[:stripe:stripe]
		one, two := binary.LittleEndian.Uint64(t), binary.LittleEndian.Uint64(t[8:])
		s[0] += halves(one^k0) + two
		s[1] += halves(two^k1) + one
		one, two = binary.LittleEndian.Uint64(t[16:]), binary.LittleEndian.Uint64(t[24:])
		s[2] += halves(one^k2) + two
		s[3] += halves(two^k3) + one
		one, two = binary.LittleEndian.Uint64(t[32:]), binary.LittleEndian.Uint64(t[40:])
		s[4] += halves(one^k4) + two
		s[5] += halves(two^k5) + one
		one, two = binary.LittleEndian.Uint64(t[48:]), binary.LittleEndian.Uint64(t[56:])
		s[6] += halves(one^k6) + two
		s[7] += halves(two^k7) + one
		k0, k1, k2, k3 = k0+growth, k1+growth, k2+growth, k3+growth
		k4, k5, k6, k7 = k4+growth, k5+growth, k6+growth, k7+growth
	}
	l.keys = [8]uint64{k0, k1, k2, k3, k4, k5, k6, k7}
}

// halves multiplies the two halves of a word.
func halves(word uint64) uint64 { return uint64(uint32(word)) * (word >> 32) }

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
