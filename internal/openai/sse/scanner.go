package sse

import "errors"

// DefaultLimit is the size of the largest event that is taken by default, 8 MiB. The last event of a Responses stream
// repeats the whole answer: 128k tokens in a script that is written as \u escapes are above 1 MiB, and reasoning and
// logprobs come on top. Only a stream that has such an event ever holds so much.
const DefaultLimit = 8 << 20

// ErrTooLarge is what a scanner fails with when an event is larger than its limit.
var ErrTooLarge = errors.New("sse: event larger than the limit")

// keepBuffer is how large a buffer is kept for the next event that is not whole in its chunk.
const keepBuffer = 32 << 10

// Scanner cuts a stream of bytes into events. The zero value is ready for a new stream.
//
//	scanner.Feed(chunk)
//	for scanner.Next() {
//		use(scanner.Event())
//	}
//	if err := scanner.Err(); err != nil {
//		return err
//	}
//
// How the stream is cut into chunks makes no difference to its events. It is for one goroutine.
type Scanner struct {
	// Limit is the size of the largest event in bytes. 0: DefaultLimit.
	Limit int

	event Event
	err   error
	chunk []byte // of the last Feed, what has not been given out
	buf   []byte // the event that began in an earlier chunk
	data  []byte // room for data of several lines
	given bool   // buf holds the event that was given out
	begun bool   // something of the stream has been given out
	ended bool
	end   boundary
}

// Feed takes the next bytes of the stream. They must not change until Next is false; what is needed of them later is
// copied by then.
func (s *Scanner) Feed(chunk []byte) {
	s.chunk = chunk
	s.end.lf = -1
}

// End says that there are no more bytes. Next may yield one more event after that; it is Cut, unless what it lacked was
// only the second half of a line end.
func (s *Scanner) End() { s.ended = true }

// Next goes to the next event that is complete. It is false when more bytes are needed, at the end, and after an error.
func (s *Scanner) Next() bool {
	if s.given {
		s.given = false
		if cap(s.buf) > keepBuffer {
			s.buf = nil
		}
		s.buf = s.buf[:0]
	}
	if cap(s.data) > keepBuffer {
		s.data = nil
	}
	if s.err != nil {
		return false
	}
	n := s.end.find(s.chunk)
	whole := n >= 0
	if !whole {
		n = len(s.chunk)
	}
	if n+len(s.buf) > s.limit() {
		s.err, s.buf, s.chunk = ErrTooLarge, nil, nil
		return false
	}
	raw := s.take(n, whole)
	if whole {
		s.give(raw)
		return true
	}
	return s.last()
}

// Event is the event that Next went to. It holds until Next or Feed is called.
func (s *Scanner) Event() *Event { return &s.event }

// Err is ErrTooLarge after an event that was too large, else nil.
func (s *Scanner) Err() error { return s.err }

// Buffered is how many bytes the scanner holds, in all.
func (s *Scanner) Buffered() int { return cap(s.buf) + cap(s.data) }

func (s *Scanner) limit() int {
	if s.Limit == 0 {
		return DefaultLimit
	}
	return s.Limit
}

// take takes n bytes of the chunk, and joins them to what is there of the same event.
func (s *Scanner) take(n int, whole bool) []byte {
	raw := s.chunk[:n:n]
	s.chunk = s.chunk[n:]
	s.end.lf -= n
	if whole && len(s.buf) == 0 {
		return raw
	}
	if need := len(s.buf) + n; need > cap(s.buf) { // append alone would copy a large event four times as often
		s.buf = append(make([]byte, 0, max(need, 2*cap(s.buf))), s.buf...)
	}
	s.buf = append(s.buf, raw...)
	s.given = whole
	return s.buf
}

// last gives out what is left at the end of the stream.
func (s *Scanner) last() bool {
	if !s.ended || len(s.buf) == 0 {
		return false
	}
	s.given = true
	s.give(s.buf)
	if !s.end.blank {
		s.event.Cut, s.event.plain = true, false
	}
	return true
}

func (s *Scanner) give(raw []byte) {
	lines := raw
	if !s.begun && len(raw) >= len(bom) && string(raw[:len(bom)]) == bom {
		lines = raw[len(bom):]
	}
	s.begun = true
	s.data = s.event.parse(lines, s.data)
	if len(lines) != len(raw) {
		s.event.Raw, s.event.plain = raw, false
	}
}

// boundary finds where events end. It remembers what it has seen of an event's line, for that may end in another chunk.
//
// A blank line that ends with CR may go on with LF. An event waits for that byte, because it belongs to it, unless the line
// before ended with CR alone: that is a stream that does not write LF, and its events must not be late by one. Should an LF
// come after all, it is the first byte of the next event and means nothing there.
type boundary struct {
	lf    int  // see breakAt
	text  bool // the line has begun
	cr    bool // the last byte was a CR: an LF belongs to it
	lone  bool // the last line end was a CR alone
	blank bool // that CR ended a blank line
}

// find gives the length of what belongs to the event in b; -1 when its end is not there.
func (d *boundary) find(b []byte) int {
	for i := 0; i < len(b); {
		if d.cr {
			d.cr = false
			d.lone = b[i] != '\n'
			if !d.lone {
				i++
			}
			if d.blank {
				d.blank = false
				return i
			}
			continue
		}
		n := breakAt(b, i, &d.lf)
		d.text = d.text || n > i
		if n == len(b) {
			return -1
		}
		i = n + 1
		if d.line(b[n]) {
			return i
		}
	}
	return -1
}

// line notes the end of a line, and says whether the event ends there.
func (d *boundary) line(end byte) bool {
	blank := !d.text
	d.text = false
	if end == '\n' {
		d.lone = false
		return blank
	}
	d.cr = true
	d.blank = blank && !d.lone
	return blank && d.lone
}
