package delta

import "github.com/sluice-gateway/sluice/internal/openai/jsonscan"

type texts struct {
	json jsonscan.Reader
	data []byte
	// buf holds the strings that had escapes. When buf grows, strings that were read before stay
	// valid in the old array.
	buf []byte
}

func (s *texts) reset(data []byte) {
	s.data = data
	s.json.Reset(data)
	s.buf = s.buf[:0]
}

// text reads any value and returns its text without escapes, and nil if the value is no string.
func (s *texts) text() []byte {
	raw, ok := s.json.RawText()
	if !ok {
		return nil
	}
	if !s.json.Escaped() {
		return raw
	}
	start := len(s.buf)
	s.buf, _ = jsonscan.Unescape(s.buf, raw)
	return s.buf[start:len(s.buf):len(s.buf)]
}

// index reads any value and returns it if it can be an index, and -1 if not.
func (s *texts) index() int {
	n, ok := s.json.Int()
	if !ok || n > 1<<31-1 {
		return -1
	}
	return int(n)
}
