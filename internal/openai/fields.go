package openai

import "bytes"

// scanJSON reads a JSON body.
func scanJSON(e Endpoint, body []byte) (Request, *Error) {
	s := scanner{body: body}
	s.req.Endpoint, s.req.Size = e, len(body)
	i := s.space(0)
	if i == len(body) {
		return Request{}, Errorf(CodeInvalidRequest, "The request body is empty.")
	}
	if body[i] != '{' {
		return Request{}, Errorf(CodeInvalidRequest, "The request body must be a JSON object.")
	}
	i = s.space(s.fields(i))
	if s.fault == nil && i < len(body) {
		s.syntax(i, "unexpected data behind the object")
	}
	if s.fault == nil && s.req.Model == "" {
		s.fault = fieldModel.invalid("is missing")
	}
	if s.fault != nil {
		return Request{}, s.fault
	}
	s.req.prompt = len(body) - s.media
	return s.req, nil
}

// fields reads the members of the body's object and notes what Strip has to remove: a member and, when another one stays
// before it, what parts it from that one; otherwise what parts it from the next. (One always stays: the model.)
func (s *scanner) fields(i int) int {
	var room [32][]byte
	seen := room[:0]
	stays, last := false, 0
	i, more := s.first(i, 1, '}')
	for more {
		start := i
		var name []byte
		if name, i = s.name(i); i < 0 || !s.isNew(seen, name, start) {
			return -1
		}
		seen = append(seen, name)
		f := jsonField(s.req.Endpoint, name)
		end := s.field(f, i)
		i, more = s.next(end, '}')
		switch {
		case !f.own():
			stays = true
		case stays:
			s.req.remove(last, end)
		default:
			s.req.remove(start, i)
		}
		last = end
	}
	return i
}

// isNew refuses a name that was there before: the gateway might read one of the two and the engine the other. Names are
// compared as they read without escapes. Too many names are refused as well, because each is compared with all others.
func (s *scanner) isNew(seen [][]byte, name []byte, start int) bool {
	if known, found := disguised(name); found {
		s.fault = &Error{Code: CodeInvalidRequest, Param: known,
			Message: "A field of the request body is spelled like " + known + " but for its case; engines may take it for that."}
		return false
	}
	for _, other := range seen {
		if bytes.Equal(other, name) {
			s.fault = Errorf(CodeInvalidRequest, "The request body has the same field twice, the second time at byte %d.", start)
			s.fault.Param = jsonField(s.req.Endpoint, name).String()
			return false
		}
	}
	if len(seen) == maxFields {
		s.fault = Errorf(CodeInvalidRequest, "The request body has more than %d fields.", maxFields)
		return false
	}
	return true
}

// field reads the value of a field of the body's object.
func (s *scanner) field(f field, i int) int {
	r := &s.req
	var n int64
	switch f {
	case fieldModel:
		r.name.start = i
		r.Model, i = s.text(i, f, maxModel)
		r.name.end = i
	case fieldStream:
		r.Stream, i = s.boolean(i, f)
	case fieldStreamOptions:
		i = s.streamOptions(i)
	case fieldMaxTokens, fieldMaxCompletionTokens, fieldMaxOutputTokens:
		n, i = s.integer(i, f, maxCount)
		r.MaxTokens = max(r.MaxTokens, int(n))
	case fieldChoices:
		n, i = s.integer(i, f, maxCount)
		r.Choices = int(n)
	case fieldMessages:
		i = s.conversation(i)
	case fieldInput:
		i = s.input(i)
	case fieldInstructions:
		i = s.instructions(i)
	case fieldRequestID:
		if s.has(i, "null") {
			return i + len("null")
		}
		r.RequestID, i = s.text(i, f, maxRequestID)
	case fieldTimeout:
		n, i = s.integer(i, f, maxMillis)
		r.Timeout = millis(n)
	case fieldMaxDuration:
		n, i = s.integer(i, f, maxMillis)
		r.MaxDuration = millis(n)
	default:
		return s.value(i, 2)
	}
	return i
}

// text reads a short string that names something.
func (s *scanner) text(i int, f field, limit int) (string, int) {
	if s.at(i) != '"' {
		return "", s.wrong(i, f, "must be a string")
	}
	end, escaped := s.str(i)
	if end < 0 {
		return "", -1
	}
	raw := s.body[i+1 : end-1]
	if escaped && len(raw) <= 6*limit { // an escape takes at most six bytes for one
		var whole bool
		if raw, whole = unescape(raw); !whole {
			return "", s.wrong(i, f, "must be valid Unicode")
		}
	}
	if what := checkName(raw, limit); what != "" {
		return "", s.wrong(i, f, what)
	}
	return string(raw), end
}

// boolean reads true, false or null, which is false.
func (s *scanner) boolean(i int, f field) (bool, int) {
	switch {
	case s.has(i, "true"):
		return true, i + len("true")
	case s.has(i, "false"):
		return false, i + len("false")
	case s.has(i, "null"):
		return false, i + len("null")
	}
	return false, s.wrong(i, f, "must be a boolean")
}

// integer reads a number of digits alone, at most limit, or null, which is 0. Fractions and exponents are refused also
// where the value would be whole: engines differ in whether they take them.
func (s *scanner) integer(i int, f field, limit int64) (int64, int) {
	if s.has(i, "null") {
		return 0, i + len("null")
	}
	end := s.digits(i)
	if c := s.at(end); end == i || c == '.' || c|0x20 == 'e' {
		return 0, s.wrong(i, f, "must be an integer of 0 or more")
	}
	if s.at(i) == '0' && end-i > 1 {
		return 0, s.syntax(i, "leading zero")
	}
	n, ok := decimal(s.body[i:end], limit)
	if !ok {
		return 0, s.wrong(i, f, "is too large")
	}
	return n, end
}

// decimal reads digits up to a limit.
func decimal(digits []byte, limit int64) (int64, bool) {
	var n int64
	for _, c := range digits {
		if n = n*10 + int64(c-'0'); n > limit {
			return 0, false
		}
	}
	return n, true
}

// streamOptions reads the options of a stream: an object or null.
func (s *scanner) streamOptions(i int) int {
	if s.has(i, "null") {
		return i + len("null")
	}
	if s.at(i) != '{' {
		return s.wrong(i, fieldStreamOptions, "must be an object")
	}
	i, more := s.first(i, 2, '}')
	for more {
		var name []byte
		name, i = s.name(i)
		if string(name) == "include_usage" {
			s.req.IncludeUsage, i = s.boolean(i, fieldIncludeUsage)
		} else {
			i = s.value(i, 3)
		}
		i, more = s.next(i, '}')
	}
	return i
}
