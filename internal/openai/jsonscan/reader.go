package jsonscan

// MaxDepth is how many levels of objects and lists a text may have.
const MaxDepth = 256

// Span is where a value stands in a text: from the offset of its first byte to the offset behind
// its last byte. The span of a string includes the quotes. The zero Span is no value.
type Span struct{ From, To int }

// Reader reads one JSON text. A caller reads the values in their order; each method skips white
// space before the value that it reads. The zero Reader is ready for [Reader.Reset].
//
// The first fault ends the text: after it, Kind is 0, Open, More and Valid are false, and every
// other method returns nothing. So a caller may read on without looking, and ask Valid at the end.
//
// A Reader is for one goroutine. The slices that it returns are part of the text, unless the method
// says otherwise.
type Reader struct {
	// RequireUTF8 makes a string that is not valid UTF-8 a fault. It is set before Reset, which
	// keeps it. The package comment says who sets it, and why.
	RequireUTF8 bool

	// looked says that the whole text was looked at, and utf8 that it is UTF-8.
	looked, utf8 bool

	escaped bool
	reason  Reason
	depth   int // of the container that is open; 0: none
	data    []byte
	pos     int
	faultAt int
}

// Reset starts the reading of another text.
func (r *Reader) Reset(data []byte) {
	*r = Reader{RequireUTF8: r.RequireUTF8, data: data}
}

// isUTF8 reports whether the text is UTF-8. To look at all of it once costs less than to look at
// each string.
func (r *Reader) isUTF8() bool {
	if !r.looked {
		r.looked, r.utf8 = true, validUTF8(r.data)
	}
	return r.utf8
}

// Seek moves the reader to the offset of a value. The depth is counted from there.
func (r *Reader) Seek(offset int) { r.pos, r.depth = offset, 0 }

// SeekMember moves the reader to the offset of a member of the outermost container. The text before
// must have been read, if only in another text that begins with the same bytes.
func (r *Reader) SeekMember(offset int) { r.pos, r.depth = offset, 1 }

// Enter enters the object whose bracket is the next byte, and moves the reader to the offset of the
// value of its first member. The caller has read what is between, which is valid.
func (r *Reader) Enter(value int) { r.pos, r.depth = value, r.depth+1 }

// Pos returns the offset behind the value that was read last. After Kind it is the offset of the
// next value, after Open and More the offset of the next member.
func (r *Reader) Pos() int { return r.pos }

// Valid reports whether the text was read to its end without a fault. Data behind the text's value
// is a fault.
func (r *Reader) Valid() bool {
	if r.reason == NoFault && r.Kind() == 0 && r.pos == len(r.data) {
		return true
	}
	r.fail(TrailingData, r.pos)
	return false
}

// Stop ends the reading, as a fault would. A caller that has found a fault of its own calls it, so
// that its loops over members end. Fault returns no fault then.
func (r *Reader) Stop() {
	if r.reason == NoFault {
		r.reason = stopped
	}
	r.pos = len(r.data)
}

// Fault returns the first fault of the text and its offset. The reason is NoFault when there is
// none.
func (r *Reader) Fault() (reason Reason, offset int) {
	if r.reason == stopped {
		return NoFault, 0
	}
	return r.reason, r.faultAt
}

// Kind returns the first byte of the next value, which tells its type, and 0 at the end of the
// text.
func (r *Reader) Kind() byte {
	for ; r.pos < len(r.data); r.pos++ {
		switch c := r.data[r.pos]; c {
		case ' ', '\n', '\r', '\t':
		default:
			return c
		}
	}
	return 0
}

// Open enters the container that starts with bracket, '{' or '[', and reports whether it has a
// member. Any other value is a fault.
//
//	for more := r.Open('{'); more; more = r.More('{') {
//		name := r.Name()
//		… // read one value
//	}
func (r *Reader) Open(bracket byte) bool {
	i := r.space(r.pos)
	if r.at(i) != bracket {
		r.fail(ExpectedValue, i)
		return false
	}
	i, more := r.first(i, r.depth+1, bracket+2) // ] is [ + 2 and } is { + 2
	if i < 0 {
		return false
	}
	r.pos = i
	if more {
		r.depth++
	}
	return more
}

// OpenOrSkip is Open for a value of any type. A value that does not start with bracket is read, and
// has no members.
func (r *Reader) OpenOrSkip(bracket byte) bool {
	if r.at(r.space(r.pos)) != bracket {
		r.Skip()
		return false
	}
	return r.Open(bracket)
}

// More moves to the next member of the container that starts with bracket and reports true. At the
// end of the container it moves behind the container and reports false.
func (r *Reader) More(bracket byte) bool {
	if r.at(r.pos) == ',' && r.at(r.pos+1) > ' ' { // as engines and most clients write it
		r.pos++
		return true
	}
	i, more := r.next(r.pos, bracket+2)
	if i < 0 {
		return false
	}
	r.pos = i
	if !more {
		r.depth--
	}
	return more
}

// RawName reads the name of an object's member and moves to the member's value. It returns what
// stands between the quotes; Escaped reports whether that has escapes. Open or More came before.
func (r *Reader) RawName() []byte {
	from := r.pos
	end, escaped := r.str(from)
	r.escaped = escaped
	value := r.colon(end)
	if value < 0 {
		return nil
	}
	r.pos = value
	return r.data[from+1 : end-1]
}

// Name is RawName without escapes. A name that had escapes is a new slice.
func (r *Reader) Name() []byte {
	from := r.pos
	end, escaped := r.str(from)
	value := r.colon(end)
	if value < 0 {
		return nil
	}
	r.pos = value
	if escaped {
		return unescaped(r.data[from+1 : end-1])
	}
	return r.data[from+1 : end-1]
}

// RawText reads any value. If the value is a string, RawText returns what stands between its
// quotes; Escaped reports whether that has escapes. If not, ok is false.
func (r *Reader) RawText() (raw []byte, ok bool) {
	if r.Kind() != '"' {
		r.Skip()
		return nil, false
	}
	from := r.pos
	end, escaped := r.str(from)
	if end < 0 {
		return nil, false
	}
	r.pos, r.escaped = end, escaped
	return r.data[from+1 : end-1], true
}

// Text is RawText without escapes, and nil for a value that is no string. A text that had escapes
// is a new slice.
func (r *Reader) Text() []byte {
	if r.Kind() != '"' {
		r.Skip()
		return nil
	}
	from := r.pos
	end, escaped := r.str(from)
	if end < 0 {
		return nil
	}
	r.pos = end
	if escaped {
		return unescaped(r.data[from+1 : end-1])
	}
	return r.data[from+1 : end-1]
}

// Escaped reports whether what RawName or RawText read last has escapes.
func (r *Reader) Escaped() bool { return r.escaped }

// Null reads a null, if the next value starts like one, and reports whether it has read one.
func (r *Reader) Null() bool {
	if r.Kind() != 'n' {
		return false
	}
	end := r.literal(r.pos, "null")
	if end < 0 {
		return false
	}
	r.pos = end
	return true
}

// Bool reads true or false, if the next value starts like one of them. If not, it reads nothing and
// ok is false.
func (r *Reader) Bool() (value, ok bool) {
	c := r.Kind()
	if c != 't' && c != 'f' {
		return false, false
	}
	r.Skip()
	return c == 't', r.reason == NoFault
}

// Int reads any value. It returns the value if that is an integer of 0 to 10^15 - 1, far above any
// count of tokens, written in digits alone. If not, ok is false.
func (r *Reader) Int() (n int64, ok bool) {
	at := r.Value()
	digits := r.data[at.From:at.To]
	if len(digits) == 0 || len(digits) > 15 {
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

// Value reads any value and returns where it stands.
func (r *Reader) Value() Span {
	from := r.space(r.pos)
	end := r.whole(from, r.depth+1)
	if end < 0 {
		return Span{}
	}
	r.pos = end
	return Span{From: from, To: end}
}

// Skip reads any value.
func (r *Reader) Skip() {
	var end int
	switch r.Kind() {
	case '"':
		end, _ = r.str(r.pos)
	case 'n':
		end = r.literal(r.pos, "null")
	default:
		end = r.whole(r.pos, r.depth+1)
	}
	if end >= 0 {
		r.pos = end
	}
}
