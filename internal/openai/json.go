package openai

import "fmt"

// scanner reads a JSON body. Its methods take the position where something must begin and return the position behind it.
// The first fault is kept, and from then on every position is -1, which every method passes on; so callers need not look
// until the end.
//
// depth is how deep a container at that place is nested: 1 for the body's own object.
type scanner struct {
	body  []byte
	fault *Error
	req   Request
	media int // bytes of content parts that are not text
}

// at is the byte at i, and 0 beyond the body (a zero byte is nowhere valid outside of strings, nor inside).
func (s *scanner) at(i int) byte {
	if uint(i) < uint(len(s.body)) {
		return s.body[i]
	}
	return 0
}

// space skips white space. (In two, so that the usual case, none, is inlined.)
func (s *scanner) space(i int) int {
	if s.at(i) > ' ' {
		return i
	}
	return s.spaces(i)
}

func (s *scanner) spaces(i int) int {
	for {
		switch s.at(i) {
		case ' ', '\n', '\r', '\t':
			i++
		default:
			return i
		}
	}
}

// syntax records a fault of the grammar at i and returns -1.
func (s *scanner) syntax(i int, want string) int {
	if s.fault == nil {
		if i >= len(s.body) {
			want = "unexpected end"
		}
		s.fault = Errorf(CodeInvalidRequest, "The request body is not valid JSON: %s at byte %d.", want, i)
	}
	return -1
}

// wrong records that the value at i is not what the field must be, and returns -1.
func (s *scanner) wrong(i int, f field, what string) int {
	if i >= len(s.body) {
		return s.syntax(i, "")
	}
	if s.fault == nil {
		s.fault = f.invalid(what)
	}
	return -1
}

// value skips any value.
func (s *scanner) value(i, depth int) int {
	switch s.at(i) {
	case '"':
		i, _ = s.str(i)
		return i
	case '{':
		return s.object(i, depth)
	case '[':
		return s.array(i, depth)
	case 't':
		return s.literal(i, "true")
	case 'f':
		return s.literal(i, "false")
	case 'n':
		return s.literal(i, "null")
	}
	return s.number(i)
}

func (s *scanner) object(i, depth int) int {
	i, more := s.first(i, depth, '}')
	for more {
		i, _ = s.str(i)
		i = s.value(s.colon(i), depth+1)
		i, more = s.next(i, '}')
	}
	return i
}

func (s *scanner) array(i, depth int) int {
	i, more := s.first(i, depth, ']')
	for more {
		i = s.value(i, depth+1)
		i, more = s.next(i, ']')
	}
	return i
}

// first opens the container whose bracket is at i and goes to its first member, or behind it when it has none.
func (s *scanner) first(i, depth int, closing byte) (member int, more bool) {
	if depth > maxDepth {
		if s.fault == nil {
			s.fault = Errorf(CodeInvalidRequest, "The request body is nested deeper than %d levels at byte %d.", maxDepth, i)
		}
		return -1, false
	}
	i = s.space(i + 1)
	if s.at(i) == closing {
		return i + 1, false
	}
	return i, true
}

// next goes from behind a member to the next one, or behind the container.
func (s *scanner) next(i int, closing byte) (member int, more bool) {
	i = s.space(i)
	switch s.at(i) {
	case ',':
		return s.space(i + 1), true
	case closing:
		return i + 1, false
	}
	if closing == '}' {
		return s.syntax(i, "expected ',' or '}'"), false
	}
	return s.syntax(i, "expected ',' or ']'"), false
}

// colon goes from behind a member's name to its value.
func (s *scanner) colon(i int) int {
	i = s.space(i)
	if s.at(i) != ':' {
		return s.syntax(i, "expected ':'")
	}
	return s.space(i + 1)
}

// name reads a member's name and goes to its value. The name is part of the body unless it has escapes.
func (s *scanner) name(i int) (name []byte, value int) {
	end, escaped := s.str(i)
	if end < 0 {
		return nil, -1
	}
	name = s.body[i+1 : end-1]
	if escaped {
		name, _ = unescape(name)
	}
	return name, s.colon(end)
}

// str skips a string, quotes included, and says whether it has escapes.
func (s *scanner) str(i int) (end int, escaped bool) {
	b := s.body
	if s.at(i) != '"' {
		return s.syntax(i, "expected a string"), false
	}
	i++
	for {
		if i = plain(b, i); i >= len(b) {
			return s.syntax(i, ""), false
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, escaped
		case c == '\\':
			n := escapeLen(b, i)
			if n == 0 {
				return s.syntax(i, "bad escape"), false
			}
			i += n
			escaped = true
		case c < 0x20:
			return s.syntax(i, "control character in a string"), false
		default:
			if i = beyondASCII(b, i); i < 0 {
				return s.notUTF8(^i), false
			}
		}
	}
}

func (s *scanner) notUTF8(i int) int {
	if s.fault == nil {
		s.fault = &Error{Code: CodeInvalidRequest, Message: fmt.Sprintf("The request body is not valid UTF-8 at byte %d.", i)}
	}
	return -1
}

// literal skips true, false or null.
func (s *scanner) literal(i int, word string) int {
	if !s.has(i, word) {
		return s.syntax(i, "expected a value")
	}
	return i + len(word)
}

func (s *scanner) has(i int, word string) bool {
	return i >= 0 && len(s.body)-i >= len(word) && string(s.body[i:i+len(word)]) == word
}

// number skips a number (RFC 8259, section 6).
func (s *scanner) number(i int) int {
	start := i
	if s.at(i) == '-' {
		i++
	}
	switch c := s.at(i); {
	case c == '0':
		i++
	case '1' <= c && c <= '9':
		i = s.digits(i)
	case i == start:
		return s.syntax(i, "expected a value")
	default:
		return s.syntax(i, "expected a digit")
	}
	if s.at(i) == '.' {
		if i = s.someDigits(i + 1); i < 0 {
			return -1
		}
	}
	if s.at(i)|0x20 == 'e' {
		i++
		if c := s.at(i); c == '+' || c == '-' {
			i++
		}
		return s.someDigits(i)
	}
	return i
}

func (s *scanner) digits(i int) int {
	b := s.body
	for uint(i) < uint(len(b)) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

func (s *scanner) someDigits(i int) int {
	end := s.digits(i)
	if end == i {
		return s.syntax(i, "expected a digit")
	}
	return end
}
