package openai

// turn is a message that a cache key may take in.
type turn struct {
	text
	role role
}

// text is where a message's text is in the body.
type text struct {
	start, end uint32
	form       form
}

type role uint8

const (
	roleOther role = iota
	roleSystem
	roleUser
)

type form uint8

const (
	formNone    form = iota // no content, or null
	formRaw                 // JSON that is not text: taken as it is
	formPlain               // inside of a string without escapes: the text itself
	formEscaped             // inside of a string with escapes
	formParts               // an array of content parts
)

// conversation reads the messages of a chat, or the input of a response when it is a list.
func (s *scanner) conversation(i int) int {
	if s.at(i) != '[' {
		return s.value(i, 2) // the engine's to refuse
	}
	i, more := s.first(i, 2, ']')
	for more {
		i = s.message(i)
		i, more = s.next(i, ']')
	}
	return i
}

// message reads a message: an object with a role and a content. Of a field that is there twice the last one counts, as
// in all parsers that take it at all.
func (s *scanner) message(i int) int {
	const depth = 3
	if s.at(i) != '{' {
		return s.value(i, depth)
	}
	var t turn
	i, more := s.first(i, depth, '}')
	for more {
		var name []byte
		name, i = s.name(i)
		switch string(name) {
		case "role":
			t.role, i = s.role(i, depth+1)
		case "content":
			t.text, i = s.content(i, depth+1)
		default:
			i = s.value(i, depth+1)
		}
		i, more = s.next(i, '}')
	}
	if t.role == roleUser || t.role == roleSystem && s.req.Endpoint == Chat {
		s.keep(t)
	}
	return i
}

// input reads the input of a response: a string, which is one message of the user, or a list of items.
func (s *scanner) input(i int) int {
	if s.at(i) != '"' {
		return s.conversation(i)
	}
	t, end := s.content(i, 2)
	s.keep(turn{text: t, role: roleUser})
	return end
}

// instructions reads the instructions of a response, which stand for its system prompt.
func (s *scanner) instructions(i int) int {
	t, end := s.content(i, 2)
	if t.form != formNone {
		s.keep(turn{text: t, role: roleSystem})
	}
	return end
}

func (s *scanner) keep(t turn) {
	if s.req.turns == nil {
		s.req.turns = make([]turn, 0, 8)
	}
	s.req.turns = append(s.req.turns, t)
}

// role reads the role of a message.
func (s *scanner) role(i, depth int) (role, int) {
	word, i := s.word(i, depth)
	switch string(word) {
	case "system", "developer":
		return roleSystem, i
	case "user":
		return roleUser, i
	}
	return roleOther, i
}

// word reads a string that may be one of a few short words; it is empty for a longer one, and for any other value.
func (s *scanner) word(i, depth int) ([]byte, int) {
	if s.at(i) != '"' {
		return nil, s.value(i, depth)
	}
	end, escaped := s.str(i)
	if end < 0 || end-i > 128 {
		return nil, end
	}
	raw := s.body[i+1 : end-1]
	if escaped {
		raw, _ = unescape(raw)
	}
	return raw, end
}

// content reads the content of a message.
func (s *scanner) content(i, depth int) (text, int) {
	start := i
	switch s.at(i) {
	case '"':
		return s.inside(i, depth)
	case 'n':
		return text{}, s.literal(i, "null")
	case '[':
		more := false
		for i, more = s.first(i, depth, ']'); more; i, more = s.next(i, ']') {
			var part text
			if part, i = s.part(i, depth+1); part.form == formRaw {
				s.media += int(part.end - part.start)
			}
		}
		return span(start, i, formParts), i
	}
	i = s.value(i, depth)
	return span(start, i, formRaw), i
}

// part reads one part of a content array: the text of a part that is text, the JSON of any other.
func (s *scanner) part(i, depth int) (text, int) {
	start := i
	if s.at(i) != '{' {
		i = s.value(i, depth)
		return span(start, i, formRaw), i
	}
	var t text
	isText := false
	i, more := s.first(i, depth, '}')
	for more {
		var name []byte
		name, i = s.name(i)
		switch string(name) {
		case "type":
			var word []byte
			word, i = s.word(i, depth+1)
			isText = string(word) == "text" || string(word) == "input_text" || string(word) == "output_text"
		case "text":
			t, i = s.inside(i, depth+1)
		default:
			i = s.value(i, depth+1)
		}
		i, more = s.next(i, '}')
	}
	if isText && t.form != formNone {
		return t, i
	}
	return span(start, i, formRaw), i
}

// inside reads a string and tells where its text is; any other value has none.
func (s *scanner) inside(i, depth int) (text, int) {
	if s.at(i) != '"' {
		return text{}, s.value(i, depth)
	}
	end, escaped := s.str(i)
	form := formPlain
	if escaped {
		form = formEscaped
	}
	return span(i+1, end-1, form), end
}

func span(start, end int, f form) text { return text{uint32(start), uint32(end), f} }
