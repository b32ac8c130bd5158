package jsonscan

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// Masks for eight bytes at once.
const (
	ones = 0x0101010101010101
	high = 0x80 * ones
)

// special marks, by its high bit, each byte of w that ends a run of plain ASCII inside a JSON
// string. Such bytes are quotes, backslashes, control characters and every byte beyond ASCII. The
// lowest mark is exact; a borrow may set false marks above it.
//
// The first half finds control characters and the quote: w^2 moves the quote, 0x22, next to the
// control characters. The second half finds the backslash. Each half misses only some of the bytes
// beyond ASCII, and the other half finds those. A byte beyond ASCII borrows from no other byte.
func special(w uint64) uint64 {
	return ((w ^ 0x02*ones) - 0x21*ones) | ((w ^ '\\'*ones) - ones)
}

// specialByte is special without the bytes beyond ASCII.
func specialByte(w uint64) uint64 { return special(w) &^ w }

// plainText skips plain text and short escapes from i, which must not be inside of an escape. It
// stops at a quote, at a control character, at a backslash that begins no short escape, and at the
// end of the text. escaped reports whether it has skipped an escape.
func plainText(b []byte, i int) (end int, escaped bool) {
	for {
		i = plainBytes(b, i)
		if i+1 >= len(b) || b[i] != '\\' || !shortEscapes[b[i+1]] {
			return i, escaped
		}
		i, escaped = denseEscapes(b, i+2), true
	}
}

// plainBytes returns the offset of the first byte at or after i that ends a run of plain text. It
// returns the length of the text when there is none.
func plainBytes(b []byte, i int) int {
	for len(b)-i >= 8 {
		if m := specialByte(binary.LittleEndian.Uint64(b[i:])) & high; m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
		i += 8
		for len(b)-i >= 32 {
			c := b[i : i+32 : i+32]
			m := specialByte(binary.LittleEndian.Uint64(c)) |
				specialByte(binary.LittleEndian.Uint64(c[8:])) |
				specialByte(binary.LittleEndian.Uint64(c[16:])) |
				specialByte(binary.LittleEndian.Uint64(c[24:]))
			if m&high != 0 {
				break
			}
			i += 32
		}
	}
	for i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// shortEscapes are the bytes that make an escape of two bytes with the backslash before.
var shortEscapes = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// denseEscapes skips plain ASCII and short escapes from i. It reads blocks of 64 bytes, because to
// search for each escape of many takes twice as long. It stops behind a block without an escape,
// before the last block of the text, and before anything else: the caller must read on.
func denseEscapes(b []byte, i int) int {
	const block = 64
	for len(b)-i > block {
		c := b[i : i+block : i+block]
		m := marks(c) | marks(c[8:])<<8 | marks(c[16:])<<16 | marks(c[24:])<<24 |
			marks(c[32:])<<32 | marks(c[40:])<<40 | marks(c[48:])<<48 | marks(c[56:])<<56
		if m == 0 {
			return i + block
		}
		next := i + block
		for ; m != 0; m &= m - 1 {
			at := bits.TrailingZeros64(m)
			switch {
			case c[at] == '\\' && shortEscapes[b[i+at+1]]:
				m &^= 2 << at // the second byte of the escape
				if at == block-1 {
					next++
				}
			case c[at] < 0x20 || c[at] == '"' || c[at] == '\\' || c[at] >= utf8.RuneSelf:
				return i + at
			}
		}
		i = next
	}
	return i
}

// marks returns the bytes that special marks in the first eight bytes of b, one bit for each.
func marks(b []byte) uint64 {
	return (special(binary.LittleEndian.Uint64(b)) & high >> 7) * 0x0102040810204080 >> 56
}

// isASCII reports whether b has no byte beyond ASCII.
func isASCII(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.LittleEndian.Uint64(b)&high != 0 {
			return false
		}
	}
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// notUTF8 returns the offset of the first byte in a text from from to to that is not UTF-8, or -1.
// What stands before the text is ASCII.
func notUTF8(b []byte, from, to int) int {
	if validUTF8(b[max(from-3, 0):to]) {
		return -1
	}
	for i := from; i < to; {
		r, size := utf8.DecodeRune(b[i:to])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}
