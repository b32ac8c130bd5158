package openai

import "github.com/sluice-gateway/sluice/internal/openai/jsonscan"

// message is a piece of the prompt: a message, a field of a message, the tools.
type message struct {
	text
	role role
	lane lane
	// keyed says that cache keys may include the message.
	keyed bool
}

// lane says where a piece stands in the order in which the model reads them.
type lane uint8

const (
	laneMessages     lane = iota // in the body's order, behind all others
	laneField                    // of the message before it, beside its content
	laneTools                    // before all others
	laneInstructions             // of a response, or a system prompt: before the messages
)

// maxMessages is how many messages of a request are kept one by one, so that a small body of many
// messages uses little memory.
const maxMessages = 4096

// text is where a message's text stands in the body. The zero text is none.
type text struct {
	start, end uint32
	form       form
}

// role is the role of a message, as far as chains and cache keys distinguish it.
type role uint8

const (
	roleOther  role = iota
	roleSystem      // system or developer
	roleUser
	roleAssistant
	roleTool // tool or function
)

// form says how the text stands in the body.
type form uint8

const (
	formNone    form = iota // no content, or null
	formRaw                 // JSON that is not text: used as it stands
	formPlain               // the inside of a string without escapes: the text itself
	formEscaped             // the inside of a string with escapes
	formParts               // a list of content parts
	formNested              // formRaw with parts inside, which may be no text: see eachMedia
)

// messages reads the messages of a chat, or the input of a response when the input is a list. A
// value that is no list is left to the engine to refuse.
func (s *scanner) messages() {
	count := 0
	for more := s.json.OpenOrSkip('['); more; more = s.json.More('[') {
		if count == maxMessages {
			s.req.rest, s.req.restAt = textAt(s.json.Pos(), s.json.Pos(), formRaw), len(s.req.messages)
		}
		s.message(count < maxMessages)
		count++
	}
	if count > maxMessages {
		s.req.rest.end = uint32(s.json.Pos())
	}
}

// message reads a message: an object with a role and a content. Of a field that is there twice the
// last one counts, as in all parsers that accept it at all. An item without a role, such as a call
// of a function in the input of a response, is kept as it stands. If not all is to be kept, message
// keeps what cache keys need.
func (s *scanner) message(all bool) {
	if s.json.Kind() != '{' {
		s.json.Skip()
		return
	}
	var m message
	var fields [6]text
	count, item, nested, start := 0, true, false, s.json.Pos()
	var more bool
	if o := openingOf(s.body[start:]); o.size > 0 {
		m.role, item = o.role, false
		s.json.Enter(start + o.size)
		m.text = s.content()
		more = s.json.More('{')
	} else {
		more = s.json.Open('{')
	}
	for ; more; more = s.json.More('{') {
		switch name := s.json.Name(); string(name) {
		case "role":
			m.role, item = s.role(), false
		case "content":
			m.text = s.content()
		case "name", "tool_calls", "tool_call_id", "function_call", "reasoning_content", "reasoning":
			if at := rawText(&s.json); count < len(fields) && s.body[at.start] != 'n' {
				fields[count] = at
				count++
			}
		case "output":
			nested = s.output()
		default:
			if string(lower(name)) == "content" { // for decoders that ignore case
				s.content()
			} else {
				s.json.Skip()
			}
		}
	}
	m.keyed = m.role == roleUser || m.role == roleSystem && s.req.Endpoint == Chat
	if item {
		m.text, count = textAt(start, s.json.Pos(), rawForm(nested)), 0
	}
	if all || m.keyed {
		s.keep(m)
	}
	for _, at := range fields[:count] {
		if all {
			s.keep(message{text: at, lane: laneField})
		}
	}
}

// opening is how most messages begin: with a role, up to the content. To read it token by token
// takes longer than to read a short message.
type opening struct {
	role role
	size int
}

// openingOf returns the opening of a message, and a size of 0 for any other beginning.
func openingOf(message []byte) opening {
	for _, o := range openings {
		if len(message) >= len(o.text) && string(message[:len(o.text)]) == o.text {
			return opening{o.role, len(o.text)}
		}
	}
	return opening{}
}

// openings are as SDKs write them, with and without blanks.
var openings = [...]struct {
	text string
	role role
}{
	{`{"role":"user","content":`, roleUser},
	{`{"role":"assistant","content":`, roleAssistant},
	{`{"role":"system","content":`, roleSystem},
	{`{"role": "user", "content": `, roleUser},
	{`{"role": "assistant", "content": `, roleAssistant},
	{`{"role": "system", "content": `, roleSystem},
}

// input reads the input of a response: a string, which is one message of the user, or a list of
// items.
func (s *scanner) input() {
	if s.json.Kind() != '"' {
		s.messages()
		return
	}
	s.keep(message{text: s.content(), role: roleUser, keyed: true})
}

// instructions reads the instructions of a response, or the system prompt of the Messages API.
func (s *scanner) instructions() {
	if t := s.content(); t.form != formNone {
		s.keep(message{text: t, role: roleSystem, lane: laneInstructions, keyed: true})
	}
}

// tools reads the tools that the model may call. They are kept as they stand.
func (s *scanner) tools() {
	if s.json.Null() {
		return
	}
	start := s.json.Pos()
	s.readTools()
	s.keep(message{text: textAt(start, s.json.Pos(), formRaw), lane: laneTools})
}

func (s *scanner) keep(m message) {
	if all := s.req.messages; len(all) == cap(all) {
		// The rest of the body may have as many messages for its length.
		more := len(all) * (len(s.body) - s.json.Pos()) / s.json.Pos()
		s.req.messages = append(make([]message, 0, len(all)+8+min(more, 7*len(all))), all...)
	}
	s.req.messages = append(s.req.messages, m)
}

// role reads the role of a message.
func (s *scanner) role() role {
	switch string(wordText(&s.json)) {
	case "system", "developer":
		return roleSystem
	case "user":
		return roleUser
	case "assistant":
		return roleAssistant
	case "tool", "function":
		return roleTool
	}
	return roleOther
}

// wordText reads a string that may be one of a few short words. The word is empty for a longer
// string and for any other value.
func wordText(r *jsonscan.Reader) []byte {
	raw, _ := r.RawText()
	if len(raw) > 126 { // 21 characters, each written as an escape of six bytes
		return nil
	}
	if r.Escaped() {
		raw, _ = jsonscan.Unescape(nil, raw)
	}
	return raw
}

// content reads the content of a message.
func (s *scanner) content() text {
	switch s.json.Kind() {
	case '"':
		return stringText(&s.json)
	case 'n':
		s.json.Null()
		return text{}
	case '[':
		start := s.json.Pos()
		for more := s.json.Open('['); more; more = s.json.More('[') {
			s.part(typelessMedia)
		}
		return textAt(start, s.json.Pos(), formParts)
	}
	return rawText(&s.json)
}

// output reads the output of a tool in the input of a response: a string, a list of parts, or one
// part. nested reports whether it has parts.
func (s *scanner) output() (nested bool) {
	c := s.json.Kind()
	switch {
	case s.req.Endpoint.OfResponses() && c == '[':
		for more := s.json.Open('['); more; more = s.json.More('[') {
			s.part(typelessText)
		}
	case s.req.Endpoint.OfResponses() && c == '{':
		s.part(typelessText)
	default:
		s.json.Skip()
		return false
	}
	return true
}

// part reads one part of a content list, and counts what of it is no text for the model.
func (s *scanner) part(t typeless) {
	part, media := readPart(&s.json, t, &s.found)
	switch {
	case media:
		s.media(part)
	case part.form == formNested:
		eachMedia(s.body, part, s.media, &s.found)
	}
}

// media counts a part that is no text for the model.
func (s *scanner) media(part text) {
	s.mediaBytes += int(part.end - part.start)
	s.req.mediaParts++
}

// eachMedia tells of the parts inside of a valid formNested that are no text for the model. These
// are the parts of the content of a tool's result, or of its output. urls is that of readPart.
func eachMedia(body []byte, t text, found func(media text), urls *mediaURLs) {
	var r jsonscan.Reader
	r.Reset(body)
	r.Seek(int(t.start))
	part := func() {
		if part, media := readPart(&r, typelessText, urls); media {
			found(part)
		}
	}
	for more := r.Open('{'); more; more = r.More('{') {
		name := string(r.Name())
		switch c := r.Kind(); {
		case c == '[' && (name == "content" || name == "output"):
			for more := r.Open('['); more; more = r.More('[') {
				part()
			}
		case c == '{' && name == "output":
			part()
		default:
			r.Skip()
		}
	}
}

// rawForm returns formRaw, or formNested for JSON with parts inside.
func rawForm(nested bool) form {
	if nested {
		return formNested
	}
	return formRaw
}

// typeless says whether a part without a type is media, as in the content of a message, or text, as
// the output of a shell.
type typeless bool

const typelessMedia, typelessText typeless = true, false

// partText reads one part of the content of a message, see readPart.
func partText(r *jsonscan.Reader) (t text, media bool) {
	return readPart(r, typelessMedia, nil)
}

// readPart reads one part of a content list: the text of a part that is text, the JSON of any
// other. media says that the part is no text for the model: it has one of the types of media, or
// none and typeless says so. A part of an unknown type may be text in a field that is not known
// here. A part with a list of parts as its content is formNested. readPart adds the URLs of images,
// sounds, videos and documents to urls, unless that is nil.
func readPart(r *jsonscan.Reader, none typeless, urls *mediaURLs) (t text, media bool) {
	if r.Kind() != '{' {
		return rawText(r), false
	}
	start := r.Pos()
	isText, media, plain, nested := false, bool(none), false, false
	for more := r.Open('{'); more; more = r.More('{') {
		switch name := r.Name(); string(name) {
		case "type":
			word := string(wordText(r))
			isText, media = isTextType(word), isMediaType(word)
		case "text":
			t = partString(r)
		case "source":
			plain = isPlainSource(r, urls)
		case storedFile:
			urls.readID(r)
		case "content":
			nested = r.Kind() == '['
			r.Skip()
		default:
			urls.read(r, urlField(name))
		}
	}
	if isText && t.form != formNone {
		return t, false
	}
	return textAt(start, r.Pos(), rawForm(nested)), media && !plain
}

// isPlainSource reads the source of an image or a document of the Messages API, which may be any
// value. It reports whether the source is plain text. urls is that of readPart.
func isPlainSource(r *jsonscan.Reader, urls *mediaURLs) (plain bool) {
	for more := r.OpenOrSkip('{'); more; more = r.More('{') {
		switch string(lower(r.Name())) {
		case "type":
			plain = string(wordText(r)) == "text"
		case "url":
			urls.read(r, "source")
		case "content":
			sourceContent(r, urls)
		case storedFile:
			urls.readID(r)
		default:
			r.Skip()
		}
	}
	return plain
}

// sourceContent reads the content of a document of the Messages API, which may be a list of parts.
// urls is that of readPart.
func sourceContent(r *jsonscan.Reader, urls *mediaURLs) {
	for more := r.OpenOrSkip('['); more; more = r.More('[') {
		readPart(r, typelessText, urls)
	}
}

func isTextType(word string) bool {
	return word == "text" || word == "input_text" || word == "output_text"
}

// isMediaType reports whether parts of this type are images, sounds, videos or files.
func isMediaType(word string) bool {
	switch word {
	case "image_url", "input_image", "image", "image_pil", "image_embeds", "input_audio", "audio_url", "audio", "audio_embeds",
		"video_url", "video", "input_video", "file", "input_file", "document", "computer_screenshot":
		return true
	}
	return false
}

// stringText reads any value and returns where the text of a string stands. Any other value has
// none.
func stringText(r *jsonscan.Reader) text {
	t, _ := readString(r)
	return t
}

// partString is stringText for the text of a part. An attribution is an empty text.
func partString(r *jsonscan.Reader) text {
	t, raw := readString(r)
	if IsAttribution(raw) {
		t.end = t.start
	}
	return t
}

// readString is stringText, and also returns the text as it stands.
func readString(r *jsonscan.Reader) (t text, raw []byte) {
	raw, ok := r.RawText()
	if !ok {
		return text{}, nil
	}
	form := formPlain
	if r.Escaped() {
		form = formEscaped
	}
	end := r.Pos() - len(`"`)
	return textAt(end-len(raw), end, form), raw
}

// rawText reads any value and returns where it stands.
func rawText(r *jsonscan.Reader) text {
	at := r.Value()
	return textAt(at.From, at.To, formRaw)
}

func textAt(start, end int, f form) text { return text{uint32(start), uint32(end), f} }
