package sse

// Buffered returns how much memory the scanner holds, in bytes.
func (s *Scanner) Buffered() int { return cap(s.buf) + cap(s.data) }
