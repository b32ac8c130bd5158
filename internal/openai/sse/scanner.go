package sse

import (
	"bytes"
	"cmp"
	"errors"
)

// DefaultLimit is the default of Scanner.Limit, 8 MiB. The last event of a stream of the Responses
// API repeats the whole answer. 128k tokens in a script that is written as \u escapes are above 1
// MiB, and reasoning and logprobs come on top. Only a stream that has such an event ever holds so
// much.
const DefaultLimit = 8 << 20

// ErrTooLarge is the error of a scanner after an event that is larger than its limit.
var ErrTooLarge = errors.New("sse: event larger than the limit")

// maxKeptBuffer is the largest buffer, in bytes, that a scanner keeps for later events.
const maxKeptBuffer = 32 << 10

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
// The events do not depend on how the stream is cut into chunks. A Scanner is for one goroutine.
type Scanner struct {
	// Limit is the size of the largest event in bytes. 0: DefaultLimit.
	Limit int

	event   Event
	err     error
	chunk   []byte // the rest of the last Feed
	buf     []byte // the event that started in an earlier chunk
	data    []byte // buffer for data of several lines
	yielded bool   // buf holds the current event
	started bool   // there was an event
	ended   bool
	end     boundary
}

// Clone returns a scanner that goes on as this one does. Neither changes what the other holds. Call
// it when Next is false.
func (s *Scanner) Clone() Scanner {
	c := *s
	c.event, c.chunk, c.buf, c.data = Event{}, bytes.Clone(s.chunk), bytes.Clone(s.buf), nil
	return c
}

// Feed adds the next bytes of the stream. The caller must not change them until Next is false. By
// then the scanner has copied what it needs later.
func (s *Scanner) Feed(chunk []byte) {
	s.chunk = chunk
	s.end.lf = -1
}

// End tells the scanner that no more bytes come. Next may yield one more event after that. The
// event is Cut, unless only the second half of its last line end was missing.
func (s *Scanner) End() { s.ended = true }

// Next moves to the next event that is complete. It is false when more bytes are needed, at the
// end, and after an error.
func (s *Scanner) Next() bool {
	if s.yielded {
		s.yielded = false
		if cap(s.buf) > maxKeptBuffer {
			s.buf = nil
		}
		s.buf = s.buf[:0]
	}
	if cap(s.data) > maxKeptBuffer {
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
	if n+len(s.buf) > cmp.Or(s.Limit, DefaultLimit) {
		s.err, s.buf, s.chunk = ErrTooLarge, nil, nil
		return false
	}
	raw := s.consume(n, whole)
	if whole {
		s.yield(raw)
		return true
	}
	return s.last()
}

// Event returns the event that Next moved to. It is valid until Next or Feed is called.
func (s *Scanner) Event() *Event { return &s.event }

// Err returns ErrTooLarge after an event that was too large, else nil.
func (s *Scanner) Err() error { return s.err }

// consume removes n bytes from the chunk and joins them to what is buffered of the same event.
// whole means that the event is complete.
func (s *Scanner) consume(n int, whole bool) []byte {
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
	s.yielded = whole
	return s.buf
}

// last yields what is left at the end of the stream.
func (s *Scanner) last() bool {
	if !s.ended || len(s.buf) == 0 {
		return false
	}
	s.yielded = true
	s.yield(s.buf)
	if !s.end.blank {
		s.event.Cut, s.event.plain = true, false
	}
	return true
}

func (s *Scanner) yield(raw []byte) {
	lines := raw
	if !s.started && len(raw) >= len(bom) && string(raw[:len(bom)]) == bom {
		lines = raw[len(bom):]
	}
	s.started = true
	s.data = s.event.parse(lines, s.data)
	if len(lines) != len(raw) {
		s.event.Raw, s.event.plain = raw, false
	}
}

// boundary finds where events end. It remembers what it has seen of an event's line, because the
// line may end in another chunk.
//
// A blank line that ends with CR may go on with LF. The event waits for that byte, because the byte
// belongs to the event. The event does not wait if the line before ended with CR alone: such a
// stream writes no LF, and its events must not be late by one. Should an LF come after all, it is
// the first byte of the next event and means nothing there.
type boundary struct {
	lf    int  // see breakAt
	text  bool // the line has started
	cr    bool // the last byte was a CR: an LF belongs to it
	lone  bool // the last line end was a CR alone
	blank bool // that CR ended a blank line
}

// find returns how many bytes of b belong to the event, and -1 if the event does not end in b.
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

// line records the end of a line and reports whether the event ends there.
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
