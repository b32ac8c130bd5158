package delta

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// unescape appends what a JSON string says. raw is what stands between its quotes, with whole escapes only. high is the half of a pair that
// it ends with, 0: it does not.
func unescape(dst, raw []byte) (said []byte, high rune) {
	for len(raw) > 0 {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			return append(dst, raw...), 0
		}
		dst, raw = append(dst, raw[:n]...), raw[n:]
		if raw[1] != 'u' {
			dst, raw = append(dst, control(raw[1])), raw[2:]
			continue
		}
		r, rest := codePoint(raw)
		if u := hex(raw); len(rest) == 0 && r == utf8.RuneError && utf16.IsSurrogate(u) && !lowHalf(u) {
			high = u
		}
		dst, raw = utf8.AppendRune(dst, r), rest
	}
	return dst, high
}

// lowHalf says whether r is the second half of a surrogate pair.
func lowHalf(r rune) bool { return r >= 0xdc00 && r <= 0xdfff }

// control is what the letter of a short escape stands for.
func control(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// codePoint reads a \u escape, two when they are a pair of surrogates.
func codePoint(raw []byte) (r rune, rest []byte) {
	r, rest = hex(raw), raw[6:]
	if !utf16.IsSurrogate(r) {
		return r, rest
	}
	if len(rest) >= 6 && rest[1] == 'u' && rest[0] == '\\' {
		if pair := utf16.DecodeRune(r, hex(rest)); pair != utf8.RuneError {
			return pair, rest[6:]
		}
	}
	return utf8.RuneError, rest
}

// hex is the number in a \u escape.
func hex(escape []byte) (r rune) {
	for _, c := range escape[2:6] {
		digit := c - '0'
		if digit > 9 {
			digit = c&^0x20 - 'A' + 10
		}
		r = r<<4 | rune(digit)
	}
	return r
}
