// Package jsonscan reads JSON that passes through a stream: in one pass, in place, without building anything. It says where
// things are, so that what is read can be passed on, or added to, byte for byte.
//
// The grammar is RFC 8259, as encoding/json has it, except that texts nested deeper than 256 levels are refused. Whether
// strings are valid UTF-8 is not looked at: what an engine writes is passed on in any case.
package jsonscan

import (
	"encoding/binary"
	"math/bits"
)

// maxDepth bounds the recursion of Skip. What engines stream is some ten levels deep.
const maxDepth = 256

// Reader reads one JSON text. Values are read in the order they stand in; each method skips white space before what it
// reads. The first fault ends the text: from then on Kind is 0, More is false and Valid is false, so that callers may look
// at the end only.
type Reader struct {
	b     []byte
	i     int
	depth int
	bad   bool
}

// Reset makes the reader begin with another text.
func (r *Reader) Reset(b []byte) { *r = Reader{b: b} }

// Pos is the offset behind what was read last.
func (r *Reader) Pos() int { return r.i }

// Valid says whether the text was read to its end without a fault.
func (r *Reader) Valid() bool { return r.Kind() == 0 && !r.bad && r.i == len(r.b) }

// Kind is the first byte of what comes next, and 0 at the end. Pos is then its offset.
func (r *Reader) Kind() byte {
	for ; r.i < len(r.b); r.i++ {
		switch c := r.b[r.i]; {
		case c > ' ':
			return c
		case c != ' ' && c != '\n' && c != '\r' && c != '\t':
			r.fail()
			return 0
		}
	}
	return 0
}

func (r *Reader) fail() {
	r.bad = true
	r.i = len(r.b)
}

// Open goes into the container that begins with the bracket given, and says whether it has a member. It is a fault when
// something else comes next.
func (r *Reader) Open(bracket byte) bool {
	if r.Kind() != bracket || r.depth == maxDepth {
		r.fail()
		return false
	}
	r.i++
	if r.peek() == bracket+2 || r.Kind() == bracket+2 { // ] is [ + 2 and } is { + 2
		r.i++
		return false
	}
	r.depth++
	return !r.bad
}

// In what follows peek comes before Kind: it is inlined, and engines write no white space.

// More goes to the next member of a container that began with bracket, or behind its end.
func (r *Reader) More(bracket byte) bool {
	if r.peek() == ',' {
		r.i++
		return true
	}
	switch r.Kind() {
	case ',':
		r.i++
		return true
	case bracket + 2:
		r.i++
		r.depth--
	default:
		r.fail()
	}
	return false
}

// Name reads the name of an object's member, as [Reader.Text] does, and what parts it from the value.
func (r *Reader) Name() []byte {
	name := r.Text()
	if r.peek() != ':' && r.Kind() != ':' {
		r.fail()
		return nil
	}
	r.i++
	return name
}

// Text reads a string and gives what stands between its quotes, escapes as they are. It is part of the text read.
func (r *Reader) Text() []byte {
	if r.peek() != '"' && r.Kind() != '"' {
		r.fail()
		return nil
	}
	start := r.i + 1
	for i := start; ; {
		i = plain(r.b, i)
		if i < len(r.b) && r.b[i] == '"' {
			r.i = i + 1
			return r.b[start:i]
		}
		n := escape(r.b[i:])
		if n == 0 {
			r.fail()
			return nil
		}
		i += n
	}
}

// Null reads a null, if that is what comes next.
func (r *Reader) Null() bool {
	if r.Kind() != 'n' {
		return false
	}
	r.word("null")
	return !r.bad
}

// Int reads a value, and gives it when it is an integer of 0 to 10^15, far above any count of tokens.
func (r *Reader) Int() (n int64, ok bool) {
	r.Kind()
	start := r.i
	r.Skip()
	digits := r.b[start:r.i]
	if r.bad || len(digits) > 15 {
		return 0, false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// Skip reads any value.
func (r *Reader) Skip() {
	switch r.Kind() {
	case '"':
		r.Text()
	case '{':
		for more := r.Open('{'); more; more = r.More('{') {
			r.Name()
			r.Skip()
		}
	case '[':
		for more := r.Open('['); more; more = r.More('[') {
			r.Skip()
		}
	case 't':
		r.word("true")
	case 'f':
		r.word("false")
	case 'n':
		r.word("null")
	default:
		r.number()
	}
}

func (r *Reader) word(w string) {
	if len(r.b)-r.i < len(w) || string(r.b[r.i:r.i+len(w)]) != w {
		r.fail()
		return
	}
	r.i += len(w)
}

// number reads a number (RFC 8259, section 6).
func (r *Reader) number() {
	if r.peek() == '-' {
		r.i++
	}
	if r.peek() == '0' {
		r.i++
	} else {
		r.digits()
	}
	if r.peek() == '.' {
		r.i++
		r.digits()
	}
	if r.peek()|0x20 == 'e' {
		r.i++
		if c := r.peek(); c == '+' || c == '-' {
			r.i++
		}
		r.digits()
	}
}

// peek is the very next byte, 0 at the end.
func (r *Reader) peek() byte {
	if r.i < len(r.b) {
		return r.b[r.i]
	}
	return 0
}

// digits reads one digit or more.
func (r *Reader) digits() {
	start := r.i
	for r.i < len(r.b) && r.b[r.i]-'0' <= 9 {
		r.i++
	}
	if r.i == start {
		r.fail()
	}
}

// plain is the offset of the first byte at or after i that is a quote, a backslash or a control character; len(b) when
// there is none.
func plain(b []byte, i int) int {
	const each = 0x0101010101010101 // times a byte: that byte eight times
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote, slash := w^each*'"', w^each*'\\'
		// A subtraction borrows into a byte's high bit where the byte was smaller; only bytes below 0x80 count. Borrows
		// travel upwards, so the lowest mark is always right.
		marks := (w-each*0x20)&^w | (quote-each)&^quote | (slash-each)&^slash
		if marks &= each * 0x80; marks != 0 {
			return i + bits.TrailingZeros64(marks)/8
		}
	}
	for i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// escape is the length of the escape that b begins with, 0 when it is none.
func escape(b []byte) int {
	if len(b) < 2 || b[0] != '\\' {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, c := range b[2:6] {
			if c-'0' > 9 && c|0x20-'a' > 5 {
				return 0
			}
		}
		return 6
	}
	return 0
}
