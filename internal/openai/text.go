package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// Masks for eight bytes at once.
const (
	ones = 0x0101010101010101
	high = 0x80 * ones
)

// special marks, by its high bit, each byte of w that ends a run of plain text inside a JSON string: quotes, backslashes,
// control characters and everything beyond ASCII. The lowest mark is exact; a borrow may set false ones above it.
//
// The first half finds control characters and the quote: w^2 moves the quote, 0x22, next to them. The second finds the
// backslash. Of the bytes beyond ASCII each half misses only some that the other finds.
func special(w uint64) uint64 {
	return ((w ^ 0x02*ones) - 0x21*ones) | ((w ^ '\\'*ones) - ones)
}

// plain returns the position of the first special byte at or after i; len(b) when there is none.
func plain(b []byte, i int) int {
	for len(b)-i >= 8 {
		if m := special(binary.LittleEndian.Uint64(b[i:])) & high; m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
		i += 8
		for len(b)-i >= 32 {
			c := b[i : i+32 : i+32]
			m := special(binary.LittleEndian.Uint64(c)) | special(binary.LittleEndian.Uint64(c[8:])) |
				special(binary.LittleEndian.Uint64(c[16:])) | special(binary.LittleEndian.Uint64(c[24:]))
			if m&high != 0 {
				break
			}
			i += 32
		}
	}
	for i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' && b[i] < utf8.RuneSelf {
		i++
	}
	return i
}

// beyondASCII skips the characters beyond ASCII that begin at i. It returns the position of the first ASCII byte, or
// ^position of a byte that is not UTF-8.
func beyondASCII(b []byte, i int) int {
	for i < len(b) && b[i] >= utf8.RuneSelf {
		if len(b)-i >= 4 {
			w := binary.LittleEndian.Uint32(b[i:])
			// Three bytes 1110xxxx 10xxxxxx 10xxxxxx, neither overlong nor a surrogate.
			if x := w & 0x200f; w&0xc0c0f0 == 0x8080e0 && x != 0 && x != 0x200d {
				i += 3
				continue
			}
			// Two bytes 110xxxxx 10xxxxxx, not overlong.
			if w&0xc0e0 == 0x80c0 && w&0x1e != 0 {
				i += 2
				continue
			}
		}
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 {
			return ^i
		}
		i += size
	}
	return i
}

// escapeLen is the length of the escape that begins with the backslash at i; 0 when it is none.
func escapeLen(b []byte, i int) int {
	if i+1 >= len(b) {
		return 0
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex4(b, i+2); ok {
			return 6
		}
	}
	return 0
}

// hex4 reads four hexadecimal digits.
func hex4(b []byte, i int) (rune, bool) {
	if len(b)-i < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[i : i+4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// escape decodes the valid escape at the beginning of b and says how many bytes it takes. Half a surrogate pair, which
// the grammar allows and Unicode does not, decodes to U+FFFD as in encoding/json, and is told.
func escape(b []byte) (r rune, size int, whole bool) {
	switch b[1] {
	case 'b':
		return '\b', 2, true
	case 'f':
		return '\f', 2, true
	case 'n':
		return '\n', 2, true
	case 'r':
		return '\r', 2, true
	case 't':
		return '\t', 2, true
	case 'u':
		r, _ = hex4(b, 2)
	default:
		return rune(b[1]), 2, true
	}
	if !utf16.IsSurrogate(r) {
		return r, 6, true
	}
	if len(b) >= 8 && b[6] == '\\' && b[7] == 'u' {
		low, _ := hex4(b, 8)
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, 12, true
		}
	}
	return utf8.RuneError, 6, false
}

// unescape decodes the inside of a valid JSON string into a new slice. whole is false when it held half a surrogate pair.
func unescape(raw []byte) (text []byte, whole bool) {
	text, whole = make([]byte, 0, len(raw)), true
	for {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			return append(text, raw...), whole
		}
		r, size, ok := escape(raw[n:])
		whole = whole && ok
		text = utf8.AppendRune(append(text, raw[:n]...), r)
		raw = raw[n+size:]
	}
}

// unescapedLen is the length of what unescape makes.
func unescapedLen(raw []byte) int {
	length := len(raw)
	for {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			return length
		}
		r, size, _ := escape(raw[n:])
		length += utf8.RuneLen(r) - size
		raw = raw[n+size:]
	}
}
