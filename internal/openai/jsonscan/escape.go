package jsonscan

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// Halves tells which surrogates of a string have no partner. JSON's grammar allows them and Unicode
// does not; Unescape writes U+FFFD for each of them, as encoding/json does.
type Halves struct {
	// Any reports whether there is at least one.
	Any bool
	// Low is the low surrogate that the string starts with, and High the high surrogate that it
	// ends with; 0: none. Together they are one character if High ends one string and Low starts
	// the next.
	Low, High rune
}

// Unescape appends the inside of a valid JSON string to dst, without its escapes.
func Unescape(dst, raw []byte) (text []byte, halves Halves) {
	for first := true; ; first = false {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			return append(dst, raw...), halves
		}
		r, size, half := DecodeEscape(raw[n:])
		dst = utf8.AppendRune(append(dst, raw[:n]...), r)
		if half != 0 {
			halves.Any = true
			switch {
			case isLow(half) && first && n == 0:
				halves.Low = half
			case !isLow(half) && n+size == len(raw):
				halves.High = half
			}
		}
		raw = raw[n+size:]
	}
}

// unescaped returns a new slice with the inside of a valid JSON string, without its escapes.
func unescaped(raw []byte) []byte {
	text, _ := Unescape(make([]byte, 0, len(raw)), raw)
	return text
}

// UnescapedLen returns the length of what Unescape appends.
func UnescapedLen(raw []byte) int {
	length := len(raw)
	for {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			return length
		}
		r, size, _ := DecodeEscape(raw[n:])
		length += utf8.RuneLen(r) - size
		raw = raw[n+size:]
	}
}

// DecodeEscape decodes the valid escape at the start of b, two escapes if they are a surrogate
// pair. size is how many bytes it has read. half is a surrogate without its partner, for which r is
// U+FFFD, and 0 for anything else.
func DecodeEscape(b []byte) (r rune, size int, half rune) {
	switch b[1] {
	case 'b':
		return '\b', 2, 0
	case 'f':
		return '\f', 2, 0
	case 'n':
		return '\n', 2, 0
	case 'r':
		return '\r', 2, 0
	case 't':
		return '\t', 2, 0
	case 'u':
		r, _ = hex4(b, 2)
	default:
		return rune(b[1]), 2, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 6, 0
	}
	if len(b) >= 8 && b[6] == '\\' && b[7] == 'u' {
		low, _ := hex4(b, 8)
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, 12, 0
		}
	}
	return utf8.RuneError, 6, r
}

// isLow reports whether a surrogate is the second half of a pair.
func isLow(surrogate rune) bool { return surrogate >= 0xdc00 }

// escapeLen returns the length of the escape that starts with the backslash at i, and 0 if it is
// none.
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

// hex4 reads the four hexadecimal digits at i.
func hex4(b []byte, i int) (r rune, ok bool) {
	if len(b)-i < 4 {
		return 0, false
	}
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
