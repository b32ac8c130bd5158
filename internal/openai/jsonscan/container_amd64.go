package jsonscan

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/cpu"
)

// The functions of this file skip an object or a list by bits, one for each byte of a block of 64
// bytes, as simdjson's first stage does. To read such a value token by token takes twice as long,
// because a processor cannot predict where short tokens end.
//
// They only say whether a value is valid, and where it ends. If it is not valid, or nested too deep
// for a stack of 64 bits, the grammar reads it again and says why not.

// block is what wideBlocks finds in 64 bytes. The lowest bit is the first byte.
type block struct {
	text    uint64 // strings, from the opening quote to before the closing quote
	opening uint64 // quotes that open a string
	control uint64 // control characters in strings
	long    uint64 // bytes in strings that are behind a backslash and end no short escape
	// What follows is outside of strings, but for curly.
	open    uint64 // { and [
	closing uint64 // } and ]
	curly   uint64 // { and } and other bytes: tells { from [
	colon   uint64
	comma   uint64
	space   uint64
	scalar  uint64 // anything else
}

// carried is what wideBlocks carries from block to block.
type carried struct {
	escaped uint64 // 1 if the next byte is escaped
	text    uint64 // all bits if the next byte is inside of a string
}

// wideBlocks fills n blocks, 1 or more, from n * wideBlock bytes.
//
//go:noescape
func wideBlocks(b *byte, n int, c *carried, blocks *block)

// wideBits reports whether this processor has the instructions of wideBlocks.
func wideBits() bool { return wide() && cpu.X86.HasPCLMULQDQ && cpu.X86.HasPOPCNT }

// container skips the object or list at i. It returns a negative number if the grammar has to do
// it.
func (r *Reader) container(i, depth int) int {
	if depth > MaxDepth-64 || len(r.data)-i < wideBlock || !wideBits() {
		return -1
	}
	var blocks [8]block
	var c carried
	v := validator{colon: 1} // the container stands where a value may
	for n := 2; i < len(r.data); n = len(blocks) {
		if n = min(n, (len(r.data)-i)/wideBlock); n > 0 {
			wideBlocks(&r.data[i], n, &c, &blocks[0])
		} else {
			last := [wideBlock]byte(bytes.Repeat([]byte(" "), wideBlock))
			copy(last[:], r.data[i:])
			n = 1
			wideBlocks(&last[0], n, &c, &blocks[0])
		}
		for k := range n {
			switch end := v.block(r.data, i, &blocks[k]); {
			case end < 0:
				return -1
			case end > 0:
				return end
			}
			i += wideBlock
			if blocks[k].text == ^uint64(0) && i < len(r.data) && r.data[i-1] != '\\' {
				// Long texts are skipped faster.
				if end, _, _ := skipText(r.data, i); end-i > wideBlock {
					i, c = end, carried{text: ^uint64(0)}
					break
				}
			}
		}
	}
	return -1
}

// validator checks the grammar between blocks. A token is a bracket, a comma, a colon, a string or
// a scalar: a number, true, false or null, or anything else. Most fields are 1 if the next token
// that is not white space, or the next byte, has a token of that kind before it.
type validator struct {
	member uint64 // an opening bracket or a comma: a member of a container begins
	comma  uint64
	colon  uint64
	first  uint64 // a string at the beginning of a member: a name, or a member of a list
	inside uint64 // 1 if the next byte is in such a string
	scalar uint64 // 1 if the byte before is one of a scalar
	kinds  uint64 // of the open containers, the innermost last: 1 for an object
	depth  uint64
	object uint64 // 1 if a token behind the last bracket shows that it stands in an object
	list   uint64 // … in a list
}

// behind returns the tokens that have one of the tokens before it, and sets carry, which is one of
// the validator's.
func behind(tokens, space uint64, carry *uint64) uint64 {
	next := tokens<<1 | *carry
	*carry = tokens >> 63
	if space == 0 {
		return next
	}
	skipped, over := bits.Add64(space, next&space, 0) // carries through each run of white space
	*carry |= over
	return (next | skipped) &^ space
}

// block checks a block at i. It returns the offset behind the container if that ends here, -1 for a
// fault, and 0 to go on.
func (v *validator) block(data []byte, i int, b *block) (end int) {
	if b.text == ^uint64(0) && b.opening == 0 {
		if b.control != 0 || b.long != 0 && !longEscapes(data, i, b.long) {
			return -1
		}
		return 0
	}
	open, closing, colon, comma, space := b.open, b.closing, b.colon, b.comma, b.space
	scalars := b.scalar &^ (b.scalar<<1 | v.scalar)
	v.scalar = b.scalar >> 63
	fault := b.control
	at := scalars
	if bits.OnesCount64(at) >= manyScalars && len(data)-i >= wideBlock {
		at = notIntegers((*[wideBlock]byte)(data[i:]), at, b.scalar)
	}
	for ; at != 0; at &= at - 1 {
		if k := bits.TrailingZeros64(at); !validScalar(data, i, k, b.scalar) {
			fault |= 1 << k // the container may end before
		}
	}

	members := behind(open|comma, space, &v.member)
	values := behind(colon, space, &v.colon)
	last := behind(comma, space, &v.comma) & closing
	// A carry runs from the opening quote through the string to the closing one.
	sum, over := bits.Add64(b.text, members&b.opening, v.inside)
	v.inside = over
	named := behind(sum&^b.text, space, &v.first)
	starts := b.opening | scalars | open
	// A colon shows that its container is an object, and these that it is a list.
	list := named&^colon | members&(scalars|open)
	brackets := open | closing
	inObject, inList := segments(brackets, colon, &v.object), segments(brackets, list, &v.list)
	fault |= last | starts&^(members|values) | (comma|colon)&(members|values) | closing&values | colon&^named |
		inObject&(inList|closing&^b.curly) | inList&closing&b.curly
	live, end := v.brackets(brackets, open, b.curly, inObject|closing&b.curly)
	if fault&live != 0 || live == 0 || b.long != 0 && !longEscapes(data, i, b.long&live) {
		return -1
	}
	if end > 0 {
		return i + end
	}
	return 0
}

// segments returns the brackets that have one of the tokens at or before it, and behind the bracket
// before. carry says that there is such a token behind the last bracket.
func segments(brackets, tokens uint64, carry *uint64) uint64 {
	sum, over := bits.Add64(^brackets, tokens&^brackets, *carry) // carries up to the next bracket
	*carry = over
	return (sum | tokens) & brackets
}

// brackets checks each bracket against the container that it stands in. in are the brackets that
// stand in an object, or else in a list, by the tokens before them, and by their own kind if they
// end it. live are the bits of the container: all, or those before end if it ends here, and none
// after a fault.
func (v *validator) brackets(brackets, open, curly, in uint64) (live uint64, end int) {
	wrong, kinds, depth := uint64(0), v.kinds, v.depth
	for ; brackets != 0; brackets &= brackets - 1 {
		at := bits.TrailingZeros64(brackets) & 63
		wrong |= kinds ^ in>>at
		// To add and to take away without a branch, which a processor could not predict.
		opens := open >> at & 1
		inner, outer := kinds<<1|curly>>at&1, kinds>>1
		kinds = outer ^ (inner^outer)&-opens
		depth += 2*opens - 1
		if depth-1 < 64 {
			continue
		}
		if depth > 0 || wrong&1 != 0 {
			return 0, 0
		}
		return brackets ^ (brackets - 1), at + 1
	}
	v.kinds, v.depth = kinds, depth
	if wrong&1 != 0 {
		return 0, 0
	}
	return ^uint64(0), 0
}

// longEscapes reports whether all bytes behind a backslash are the u of an escape of six bytes.
func longEscapes(data []byte, i int, at uint64) bool {
	for ; at != 0; at &= at - 1 {
		u := i + bits.TrailingZeros64(at)
		if u >= len(data) || data[u] != 'u' {
			return false
		}
		if _, ok := hex4(data, u+1); !ok {
			return false
		}
	}
	return true
}

// wideDigits returns which of the 64 bytes at b are digits, and which of these are zeros.
//
//go:noescape
func wideDigits(b *byte) (digits, zeros uint64)

// manyScalars is from how many scalars in a block notIntegers is faster than validScalar.
const manyScalars = 4

// notIntegers returns the scalars of a block that may be something else than an integer in digits
// alone. run are the bytes of all scalars.
func notIntegers(block *[wideBlock]byte, scalars, run uint64) uint64 {
	digits, zeros := wideDigits(&block[0])
	if run&^digits != 0 {
		return scalars
	}
	last := uint64(1) << bits.Len64(^run) // the run that may go on in the next block
	return scalars & (zeros&(run>>1) | last)
}

// validScalar reports whether the run of bytes at k of the block at i is a scalar. run are the
// bytes of all runs.
func validScalar(data []byte, i, k int, run uint64) bool {
	size := bits.TrailingZeros64(^(run >> k))
	i += k
	if size <= 8 && k+size < wideBlock && len(data)-i >= 8 && shortScalar(binary.LittleEndian.Uint64(data[i:]), size) {
		return true
	}
	r := Reader{data: data}
	end := r.value(i, 1)
	return end > 0 && endsScalar[r.at(end)]
}

// shortScalar reports whether the first bytes of w, 1 to 8 of them, are true, false, null, or an
// integer in digits alone. It has no branches, which a processor could not predict.
func shortScalar(w uint64, size int) bool {
	const (
		isTrue  = 't' | 'r'<<8 | 'u'<<16 | 'e'<<24
		isFalse = 'f' | 'a'<<8 | 'l'<<16 | 's'<<24 | 'e'<<32
		isNull  = 'n' | 'u'<<8 | 'l'<<16 | 'l'<<24
	)
	shift := uint(64-8*size) & 63
	text := w << shift >> shift
	digits := w<<shift ^ '0'*ones<<shift // each byte is a digit's value, and those before are 0
	noDigits := (digits | (digits + (0x80-10)*ones)) & high
	integer := bit(noDigits == 0) & (bit(text&0xff != '0') | bit(text == '0')) // no zero leads
	return (bit(text == isTrue)|bit(text == isNull))&bit(size == 4)|bit(text == isFalse)&bit(size == 5)|integer != 0
}

func bit(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}

// endsScalar are the bytes that may stand behind a scalar in a container.
var endsScalar = [256]bool{',': true, ']': true, '}': true, ' ': true, '\n': true, '\r': true, '\t': true}
