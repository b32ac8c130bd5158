package openai

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strconv"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// scanner reads the JSON body of a request.
//
// fault is the first fault of a field. After it the reader is stopped, so that every loop over
// members ends. The reader keeps the faults of the JSON itself.
type scanner struct {
	json       jsonscan.Reader
	body       []byte
	fault      *Error
	req        Request
	mediaBytes int // bytes of content parts that are not text
	// unbounded says that one of the bounds of the output is noLimit.
	unbounded bool
	found     mediaURLs
	embedded  int  // offset of what is embedded; 0: there is none
	areURLs   bool // whether the texts that are embedded are URLs
}

// scanJSON reads a JSON body.
func scanJSON(e Endpoint, body []byte) (Request, *Error) {
	s := scanner{body: body}
	s.json.RequireUTF8 = true
	s.json.Reset(body)
	s.req.Endpoint, s.req.Size = e, len(body)
	switch s.json.Kind() {
	case '{':
		s.fields()
	case 0:
		if s.json.Pos() == len(body) {
			return Request{}, Errorf(CodeInvalidRequest, "The request body is empty.")
		}
		fallthrough
	default:
		if bytes.HasPrefix(body, []byte("\ufeff")) {
			return Request{}, Errorf(CodeInvalidRequest, "The request body begins with a byte order mark, which JSON does not allow.")
		}
		return Request{}, Errorf(CodeInvalidRequest, "The request body must be a JSON object.")
	}
	if s.fault == nil && !s.json.Valid() {
		s.fault = jsonFault(s.json.Fault())
	}
	if s.fault == nil {
		if s.areURLs && s.embedded > 0 {
			s.json.Seek(s.embedded)
			s.sources("input", maxItemDepth)
		}
		s.fault = s.req.noteMedia(&s.found)
	}
	if s.fault != nil {
		return Request{}, s.fault
	}
	if !e.Generates() { // the others have media in parts of messages
		s.dataURLs()
	}
	s.req.promptBytes = len(body) - s.mediaBytes
	s.req.Stream = s.req.Stream && !e.BesideResponses() // such an answer is never a stream
	if s.unbounded {
		s.req.MaxTokens = 0 // engines differ in which of several bounds they obey
	}
	return s.req, nil
}

// jsonFault returns the error for a body that is not JSON, or not such JSON as is accepted.
func jsonFault(reason jsonscan.Reason, offset int) *Error {
	switch reason {
	case jsonscan.TooDeep:
		return Errorf(CodeInvalidRequest, "The request body is nested deeper than %d levels at byte %d.",
			jsonscan.MaxDepth, offset)
	case jsonscan.NotUTF8:
		return Errorf(CodeInvalidRequest, "The request body is not valid UTF-8 at byte %d.", offset)
	}
	return Errorf(CodeInvalidRequest, "The request body is not valid JSON: %v at byte %d.", reason, offset)
}

// fail records the fault of a field and stops the reader. A fault that was recorded before stays.
func (s *scanner) fail(fault *Error) {
	if reason, _ := s.json.Fault(); s.fault == nil && reason == jsonscan.NoFault {
		s.fault = fault
	}
	s.json.Stop()
}

// invalid records that the next value is not what the field must be. A body that ends here is a
// fault of the JSON instead.
func (s *scanner) invalid(f field, what string) {
	if s.json.Kind() == 0 {
		s.json.Skip()
	}
	s.fail(f.invalid(what))
}

// fields reads the members of the body's object. For each option of Sluice's own it records what
// Strip has to remove. That is the member and, if another member stays before it, what separates
// the two. If none stays before it, it is what separates the member from the next one. If no member
// stays, Strip removes all that is between the braces.
func (s *scanner) fields() {
	var buffer [32][]byte
	names := buffer[:0]
	s.req.insertAt = uint32(s.json.Pos()) + 1 // behind the brace
	stays, end := false, 0                    // of the members so far: whether one stays, where the last one ends
	for more := s.json.Open('{'); more; {
		start := s.json.Pos()
		name := s.json.Name()
		if !s.isNew(names, name, start) {
			return
		}
		names = append(names, name)
		f := jsonField(s.req.Endpoint, name)
		switch f {
		case fieldGuarded:
			s.guard(guardOf(name))
		case fieldMedia:
			s.sources(sourceField(name), maxItemDepth)
		default:
			s.field(f)
		}
		before := end
		end = s.json.Pos()
		more = s.json.More('{')
		switch {
		case !f.own():
			stays = true
		case stays:
			s.req.remove(before, end)
		default:
			s.req.remove(start, s.json.Pos())
		}
	}
	if s.req.empty = !stays; s.req.empty && s.req.cutCount > 0 {
		s.req.cutCount = 0
		s.req.remove(int(s.req.insertAt), s.json.Pos()-1)
	}
}

// isNew refuses a name that was there before: the gateway might read one of the two fields and the
// engine the other. It also refuses too many names, because each is compared with all others.
func (s *scanner) isNew(names [][]byte, name []byte, start int) bool {
	if known, found := disguised(s.req.Endpoint, name); found {
		s.fail(&Error{Code: CodeInvalidRequest, Param: known, Message: "A field of the request body is spelled like " +
			known + " but for its case; engines may take it for that."})
		return false
	}
	for _, other := range names {
		if bytes.Equal(other, name) {
			fault := Errorf(CodeInvalidRequest, "The request body has the same field twice, the second time at byte %d.", start)
			fault.Param = jsonField(s.req.Endpoint, name).String()
			s.fail(fault)
			return false
		}
	}
	if len(names) == maxFields {
		s.fail(Errorf(CodeInvalidRequest, "The request body has more than %d fields.", maxFields))
		return false
	}
	return true
}

// field reads the value of a field of the body's object.
func (s *scanner) field(f field) {
	r := &s.req
	switch f {
	case fieldModel:
		r.Model, r.modelAt = s.name(f, maxModel)
	case fieldStream:
		r.Stream = s.boolean(f)
	case fieldBackground:
		r.Background = s.boolean(f) // engines take "true", "on" and 1 for true
	case fieldStreamOptions:
		s.streamOptions()
	case fieldMaxTokens, fieldMaxCompletionTokens, fieldMaxOutputTokens, fieldPredict:
		n := int(s.integer(f, noLimit, maxCount))
		s.unbounded = s.unbounded || n == noLimit
		r.MaxTokens = max(r.MaxTokens, n)
	case fieldChoices:
		r.Choices = int(s.integer(f, 0, maxCount))
	case fieldBestOf, fieldCompletions:
		r.bestOf = max(r.bestOf, int(s.integer(f, 0, maxCount)))
	case fieldPrompt:
		s.prompts()
	case fieldMessages:
		s.messages()
	case fieldInput:
		s.input()
	case fieldInstructions:
		s.instructions()
	case fieldRequestID:
		if !s.json.Null() {
			r.RequestID, _ = s.name(f, maxRequestID)
		}
	case fieldTimeout:
		r.Timeout = millis(s.integer(f, 0, maxMillis))
	case fieldMaxDuration:
		r.MaxDuration = millis(s.integer(f, 0, maxMillis))
	case fieldConversation:
		if !s.json.Null() {
			s.invalid(f, "is not served here: no engine shares its conversations, so use previous_response_id")
		}
	default:
		s.hint(f)
	}
}

// hint reads the value of a field that is read for routing alone. No value is a fault: engines
// decide which they accept.
func (s *scanner) hint(f field) {
	r := &s.req
	switch f {
	case fieldTools, fieldFunctions:
		s.tools()
	case fieldPromptCacheKey:
		r.PromptCacheKey = s.optionalName()
	case fieldPreviousResponse:
		if !s.json.Null() {
			r.previous.start = uint32(s.json.Pos())
			r.PreviousResponseID = s.optionalName()
			r.previous.end = uint32(s.json.Pos())
		}
	case fieldCacheSalt:
		if !s.json.Null() {
			r.salt = rawText(&s.json)
		}
	case fieldSystem:
		s.instructions()
	case fieldStoredPrompt:
		s.storedPrompt()
	case fieldItems:
		s.items(maxItemDepth)
	case fieldEmbedded:
		s.embedded = s.json.Pos()
		s.items(maxItemDepth)
	case fieldModality:
		word := wordText(&s.json)
		s.areURLs = len(word) > 0 && string(word) != "text"
	case fieldTemplateKwargs:
		s.guardMembers(guardsOfTemplate)
	case fieldEngineArgs:
		s.guardMembers(guardsOfArguments)
	case fieldGoogle:
		s.guardMembers(guardsOfGoogle)
	case fieldSize:
		r.imageTokens = imageTokens(wordText(&s.json))
	default:
		s.json.Skip()
	}
}

// optionalName reads any value. It returns a good name, and nothing for every other value.
func (s *scanner) optionalName() string {
	raw, _ := s.json.RawText()
	if s.json.Escaped() && len(raw) <= 6*maxRequestID { // an escape takes at most six bytes for one
		var halves jsonscan.Halves
		if raw, halves = jsonscan.Unescape(nil, raw); halves.Any {
			return ""
		}
	}
	if checkName(raw, maxRequestID) != "" {
		return ""
	}
	return string(raw)
}

// name reads a short string that names something. at is where it stands, with its quotes.
func (s *scanner) name(f field, limit int) (name string, at jsonscan.Span) {
	if s.json.Kind() != '"' {
		s.invalid(f, "must be a string")
		return "", at
	}
	at.From = s.json.Pos()
	raw, ok := s.json.RawText()
	if !ok {
		return "", at
	}
	at.To = s.json.Pos()
	if s.json.Escaped() && len(raw) <= 6*limit { // an escape takes at most six bytes for one
		var halves jsonscan.Halves
		if raw, halves = jsonscan.Unescape(nil, raw); halves.Any {
			s.fail(f.invalid("must be valid Unicode"))
			return "", at
		}
	}
	if what := f.checkName(raw, limit); what != "" {
		s.fail(f.invalid(what))
		return "", at
	}
	return string(raw), at
}

// boolean reads true, false or null, which is false.
func (s *scanner) boolean(f field) bool {
	if s.json.Null() {
		return false
	}
	value, ok := s.json.Bool()
	if !ok {
		s.invalid(f, "must be a boolean")
	}
	return value
}

// integer reads a whole number from least to limit, or null, which is 0.
func (s *scanner) integer(f field, least, limit int64) int64 {
	if s.json.Null() {
		return 0
	}
	if c := s.json.Kind(); c != '-' && (c < '0' || c > '9') {
		s.invalid(f, mustBeInteger(least))
		return 0
	}
	at := s.json.Value()
	n, what := wholeNumber(s.body[at.From:at.To], least, limit)
	if what != "" {
		s.fail(f.invalid(what))
	}
	return n
}

// noLimit is the bound of the output by which clients of llama.cpp say that there is none.
const noLimit = -1

// mustBeInteger says what a field of integers from least must be.
func mustBeInteger(least int64) string {
	if least == noLimit {
		return "must be an integer of 0 or more, or -1 for no limit"
	}
	return "must be an integer of 0 or more"
}

// wholeNumber returns the value of a JSON number from least, 0 or noLimit, to limit. what says why
// the number is none, and is empty for a good one. A fraction or an exponent is accepted if the
// value is whole, because clients whose numbers are all floats send 1.0. limit must be less than
// 1<<53.
func wholeNumber(number []byte, least, limit int64) (n int64, what string) {
	if !bytes.ContainsAny(number, "-.eE") {
		n, ok := decimal(number, limit)
		if !ok {
			return 0, "is too large"
		}
		return n, ""
	}
	value, err := strconv.ParseFloat(string(number), 64) // an overflow is infinite
	switch {
	case value > float64(limit):
		return 0, "is too large"
	case err != nil, value != math.Trunc(value), value < float64(least):
		return 0, mustBeInteger(least)
	}
	return int64(value), ""
}

// Integer is an integer of a message in JSON. It accepts 1.0 as Scan does.
type Integer int64

// UnmarshalJSON implements json.Unmarshaler. A null changes nothing.
func (i *Integer) UnmarshalJSON(text []byte) error {
	var value float64
	if err := json.Unmarshal(text, &value); err != nil || string(text) == "null" {
		return err
	}
	if value != math.Trunc(value) || math.Abs(value) > maxExact {
		return &json.UnmarshalTypeError{Value: "number " + string(text), Type: reflect.TypeFor[Integer]()}
	}
	*i = Integer(value)
	return nil
}

// maxExact is the largest integer up to which a float64 holds every integer.
const maxExact = 1 << 53

// decimal returns the value of digits, if it is at most limit.
func decimal(digits []byte, limit int64) (n int64, ok bool) {
	for _, c := range digits {
		if n = n*10 + int64(c-'0'); n > limit {
			return 0, false
		}
	}
	return n, true
}

// prompts reads the prompt of a completion. It is a string, a list of tokens, or a list of prompts,
// of which each string and each list of tokens is one. The first one is kept.
func (s *scanner) prompts() {
	if s.json.Kind() != '[' {
		s.keep(message{text: stringText(&s.json)})
		return
	}
	var first text
	start := s.json.Pos()
	more := s.json.Open('[')
	if c := s.json.Kind(); more && '0' <= c && c <= '9' {
		// Most such lists are tokens alone, which are skipped faster at once.
		s.json.SeekMember(start)
		if at := s.json.Value(); !hasPrompts(s.body[at.From:at.To]) {
			s.keep(message{text: textAt(at.From, at.To, formRaw)})
			return
		}
		s.json.SeekMember(start)
		more = s.json.Open('[')
	}
	for ; more; more = s.json.More('[') {
		c := s.json.Kind()
		if c != '"' && c != '[' {
			s.json.Skip()
			continue
		}
		if s.req.prompts++; s.req.prompts > 1 {
			s.json.Skip()
		} else if c == '"' {
			first = stringText(&s.json)
		} else {
			first = rawText(&s.json)
		}
	}
	if s.req.prompts == 0 {
		first = textAt(start, s.json.Pos(), formRaw)
	}
	s.keep(message{text: first})
}

// hasPrompts reports whether a valid JSON list has a string or a list in it.
func hasPrompts(list []byte) bool {
	return len(list) > 0 && (bytes.IndexByte(list[1:], '"') >= 0 || bytes.IndexByte(list[1:], '[') >= 0)
}

// streamOptions reads the options of a stream: an object or null.
func (s *scanner) streamOptions() {
	if s.json.Null() {
		return
	}
	if s.json.Kind() != '{' {
		s.invalid(fieldStreamOptions, "must be an object")
		return
	}
	for more := s.json.Open('{'); more; more = s.json.More('{') {
		if string(s.json.Name()) == "include_usage" {
			s.req.IncludeUsage = s.boolean(fieldIncludeUsage)
		} else {
			s.json.Skip()
		}
	}
}
