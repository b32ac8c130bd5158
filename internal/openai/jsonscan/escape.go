package jsonscan

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
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
	start := len(dst)
	dst = slices.Grow(dst, len(raw)+8) // no escape is shorter than its character
	out, n := dst[:cap(dst)], start
	for i := 0; i < len(raw); {
		if c := raw[i]; c != '\\' {
			i, n = copyText(out, raw, n, i)
			continue
		} else if c = shortValues[raw[i+1]]; c != 0 {
			out[n] = c
			i, n = i+2, n+1
			continue
		}
		r, size, half := DecodeEscape(raw[i:])
		if half != 0 {
			halves.Any = true
			switch {
			case isLow(half) && i == 0:
				halves.Low = half
			case !isLow(half) && i+size == len(raw):
				halves.High = half
			}
		}
		n = len(utf8.AppendRune(out[:n], r))
		i += size
	}
	return out[:n], halves
}

// AppendQuoted appends a text as a JSON string. Bytes that are not UTF-8 stay, because the rest of
// a character may come with the next event.
func AppendQuoted(dst, text []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range text {
		switch {
		case c == '"', c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// shortValues are the characters of escapes of two bytes, by their second byte.
var shortValues = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// copyUnescaped copies raw from i to out from n, up to the next backslash or the end. It writes up
// to seven bytes more. It returns the offsets behind what it has copied.
func copyUnescaped(out, raw []byte, n, i int) (nextRaw, nextOut int) {
	for len(raw)-i >= 8 {
		w := binary.LittleEndian.Uint64(raw[i:])
		binary.LittleEndian.PutUint64(out[n:], w)
		w ^= '\\' * ones
		if m := (w - ones) &^ w & high; m != 0 {
			k := bits.TrailingZeros64(m) >> 3
			return i + k, n + k
		}
		i, n = i+8, n+8
	}
	for ; i < len(raw) && raw[i] != '\\'; i, n = i+1, n+1 {
		out[n] = raw[i]
	}
	return i, n
}

// unescaped returns a new slice with the inside of a valid JSON string, without its escapes.
func unescaped(raw []byte) []byte {
	text, _ := Unescape(nil, raw)
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

// unicodeEscapes skips escapes of six bytes from i, which are one behind the other in texts of
// other scripts than the Latin one.
func unicodeEscapes(b []byte, i int) int {
	for len(b)-i >= 6 && b[i] == '\\' && b[i+1] == 'u' && hexDigits[b[i+2]] && hexDigits[b[i+3]] && hexDigits[b[i+4]] && hexDigits[b[i+5]] {
		i += 6
	}
	return i
}

// hexDigits are the hexadecimal digits.
var hexDigits = [256]bool{'0': true, '1': true, '2': true, '3': true, '4': true, '5': true, '6': true, '7': true, '8': true,
	'9': true, 'a': true, 'b': true, 'c': true, 'd': true, 'e': true, 'f': true, 'A': true, 'B': true, 'C': true, 'D': true,
	'E': true, 'F': true}

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
