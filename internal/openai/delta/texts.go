package delta

import (
	"bytes"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// Span is where a value stands in what was read: from its first byte to behind its last, the quotes of a string included. The zero Span
// is no value.
type Span struct{ From, To int }

// texts reads the strings of one JSON text.
type texts struct {
	js  jsonscan.Reader
	buf []byte // those that had escapes; when it grows, what was read before stays where it was
	// Of the last one: where it stands, and the halves of pairs that it begins and ends with.
	span      Span
	low, high rune
}

func (s *texts) reset(data []byte) {
	s.js.Reset(data)
	s.buf = s.buf[:0]
}

// name reads the name of a member.
func (s *texts) name() []byte { return s.decode(s.js.Name()) }

// text reads a string; of anything else it is nil.
func (s *texts) text() []byte {
	if s.js.Kind() != '"' {
		s.js.Skip()
		return nil
	}
	s.span.From = s.js.Pos()
	raw := s.js.Text()
	s.span.To = s.js.Pos()
	s.low, s.high = 0, 0
	return s.decode(raw)
}

// value reads any value and says where it stands.
func (s *texts) value() Span {
	s.js.Kind()
	from := s.js.Pos()
	s.js.Skip()
	return Span{from, s.js.Pos()}
}

// index reads an index; -1: it is no number, or none that an index can be.
func (s *texts) index() int {
	n, ok := s.js.Int()
	if !ok || n > 1<<31-1 {
		return -1
	}
	return int(n)
}

func (s *texts) decode(raw []byte) []byte {
	first := bytes.IndexByte(raw, '\\')
	if first < 0 {
		return raw
	}
	start := len(s.buf)
	if first == 0 && raw[1] == 'u' && lowHalf(hex(raw)) {
		s.low = hex(raw)
	}
	s.buf, s.high = unescape(append(s.buf, raw[:first]...), raw[first:])
	return s.buf[start:len(s.buf):len(s.buf)]
}
