package jsonscan

import (
	"encoding/binary"
	"math/bits"
)

// The functions of this file are the grammar. Each takes the offset at which something must start
// and returns the offset behind it. After a fault it returns -1, and each function passes a
// negative offset on. depth is the level of a container at that offset: 1 for the outermost.

// at returns the byte at offset i, and 0 outside of the text. A zero byte is valid nowhere in JSON.
func (r *Reader) at(i int) byte {
	if uint(i) < uint(len(r.data)) {
		return r.data[i]
	}
	return 0
}

// space skips white space. The usual case, no white space, is inlined.
func (r *Reader) space(i int) int {
	if r.at(i) > ' ' {
		return i
	}
	return r.spaces(i)
}

func (r *Reader) spaces(i int) int {
	for {
		switch r.at(i) {
		case ' ', '\n', '\r', '\t':
			i++
		default:
			return i
		}
	}
}

// fail records the first fault, ends the text and returns -1.
func (r *Reader) fail(reason Reason, i int) int {
	if r.reason == NoFault {
		if i >= len(r.data) {
			reason = UnexpectedEnd
		}
		r.reason, r.faultAt = reason, i
	}
	r.pos = len(r.data)
	return -1
}

// value skips any value. No white space stands before the value.
func (r *Reader) value(i, depth int) int {
	switch r.at(i) {
	case '"':
		i, _ = r.str(i)
		return i
	case '{':
		return r.object(i, depth)
	case '[':
		return r.list(i, depth)
	case 't':
		return r.literal(i, "true")
	case 'f':
		return r.literal(i, "false")
	case 'n':
		return r.literal(i, "null")
	}
	return r.number(i)
}

// whole is value, by the fastest way.
func (r *Reader) whole(i, depth int) int {
	if r.at(i)|0x20 == '{' { // { or [
		if end := r.container(i, depth); end > 0 && (!r.RequireUTF8 || r.utf8 || validUTF8(r.data[i:end])) {
			return end
		}
	}
	return r.value(i, depth)
}

func (r *Reader) object(i, depth int) int {
	i, more := r.first(i, depth, '}')
	for more {
		i, _ = r.str(i)
		i = r.value(r.colon(i), depth+1)
		i, more = r.next(i, '}')
	}
	return i
}

func (r *Reader) list(i, depth int) int {
	i, more := r.first(i, depth, ']')
	for more {
		i = r.value(i, depth+1)
		i, more = r.next(i, ']')
	}
	return i
}

// first enters the container whose bracket is at i. It returns the offset of the first member, or
// of what stands behind an empty container.
func (r *Reader) first(i, depth int, closing byte) (member int, more bool) {
	if depth > MaxDepth {
		return r.fail(TooDeep, i), false
	}
	i = r.space(i + 1)
	if r.at(i) == closing {
		return i + 1, false
	}
	return i, true
}

// next goes from behind a member to the next member, or behind the container.
func (r *Reader) next(i int, closing byte) (member int, more bool) {
	i = r.space(i)
	switch r.at(i) {
	case ',':
		return r.space(i + 1), true
	case closing:
		return i + 1, false
	}
	if closing == '}' {
		return r.fail(ExpectedCommaOrBrace, i), false
	}
	return r.fail(ExpectedCommaOrBracket, i), false
}

// colon goes from behind a member's name to the member's value.
func (r *Reader) colon(i int) int {
	if r.at(i) == ':' && r.at(i+1) > ' ' {
		return i + 1
	}
	i = r.space(i)
	if r.at(i) != ':' {
		return r.fail(ExpectedColon, i)
	}
	return r.space(i + 1)
}

// str skips a string with its quotes and reports whether it has escapes.
func (r *Reader) str(i int) (end int, escaped bool) {
	b := r.data
	if uint(i) >= uint(len(b)) || b[i] != '"' {
		return r.fail(ExpectedString, i), false
	}
	i++
	from, allASCII := i, true
	// Names and many texts are short and have no escapes: they need no call.
	for range 4 {
		if len(b)-i < 8 {
			break
		}
		if m := special(binary.LittleEndian.Uint64(b[i:])) & high; m != 0 {
			if i += bits.TrailingZeros64(m) >> 3; b[i] == '"' {
				return i + 1, false
			}
			break
		}
		i += 8
	}
	for {
		var skipped, ascii bool
		i, skipped, ascii = skipText(b, i)
		escaped, allASCII = escaped || skipped, allASCII && ascii
		if i >= len(b) {
			return r.fail(UnexpectedEnd, i), false
		}
		switch b[i] {
		case '"':
			if !allASCII && r.RequireUTF8 && !r.isUTF8() {
				if at := notUTF8(b, from, i); at >= 0 {
					return r.fail(NotUTF8, at), false
				}
			}
			return i + 1, escaped
		case '\\':
			n := escapeLen(b, i)
			if n == 0 {
				return r.fail(BadEscape, i), false
			}
			i = unicodeEscapes(b, i+n)
			escaped = true
		default:
			return r.fail(ControlCharacter, i), false
		}
	}
}

// literal skips true, false or null.
func (r *Reader) literal(i int, word string) int {
	if len(r.data)-i < len(word) || string(r.data[i:i+len(word)]) != word {
		return r.fail(ExpectedValue, i)
	}
	return i + len(word)
}

// number skips a number (RFC 8259, section 6).
func (r *Reader) number(i int) int {
	start := i
	if r.at(i) == '-' {
		i++
	}
	switch c := r.at(i); {
	case c == '0':
		i++
		if r.digits(i) > i {
			return r.fail(LeadingZero, i-1)
		}
	case '1' <= c && c <= '9':
		i = r.digits(i)
	case i == start:
		return r.fail(ExpectedValue, i)
	default:
		return r.fail(ExpectedDigit, i)
	}
	if r.at(i) == '.' {
		if i = r.someDigits(i + 1); i < 0 {
			return -1
		}
	}
	if r.at(i)|0x20 == 'e' {
		i++
		if c := r.at(i); c == '+' || c == '-' {
			i++
		}
		return r.someDigits(i)
	}
	return i
}

// digits skips digits, if there are any.
func (r *Reader) digits(i int) int {
	b := r.data
	for uint(i) < uint(len(b)) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

// someDigits skips one digit or more.
func (r *Reader) someDigits(i int) int {
	end := r.digits(i)
	if end == i {
		return r.fail(ExpectedDigit, i)
	}
	return end
}
