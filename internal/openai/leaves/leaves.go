// Package leaves reads every string of a model's answer, together with its place. The package
// internal/relay/moderation uses it: no string of an answer may pass without being judged, whatever
// the engine calls the string.
//
// [Reader] reads one JSON object after the other: the events of a stream, or one whole answer. It
// knows no list of shapes. It walks the object and gives each string as a [Leaf] with its [Path].
// The same place in two events has the same path, so that a caller can join the pieces of a text:
//
//   - An element of choices is named by its index, or by its position if it has none.
//   - Any other element that is an object with an index is named by that index.
//   - Elements without an index are one place: clients put their texts one behind the other.
//   - An event with a "type" at its top, as those of the Responses API, is named by the type and by
//     the indexes at its top. If it has no output_index, its item names it. Some engines give an
//     item another id in each event. The choices of such an event are those of an event without a
//     type.
//
// What the reader knows about names only says what a string is for (see [Class]). A name that it
// does not know holds text.
//
// An object is unreadable if it has a member twice, an index that is no number or more than
// [MaxPaths] places. Two readers would understand different things.
package leaves

import (
	"bytes"
	"slices"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// MaxPaths bounds the places that one Reader tells apart.
const MaxPaths = 4096

// Class says what a string is for.
type Class uint8

// The classes of strings.
const (
	// Text grows from event to event. It is what the model says.
	Text Class = iota
	// Brief grows too, but is seldom continued once another text has begun. It is the id and the
	// name of a tool call, and everything outside of the model's message that is not known.
	Brief
	// Complete is whole in its event, and repeats or replaces the text of others.
	Complete
	// Meta is whole in its event, and no output of the model: an id, a name, an echo of the
	// request.
	Meta
	// Tokens are log probabilities. They repeat a text, token by token, with its alternatives.
	Tokens
	// Opaque cannot be read: audio, images, encrypted text.
	Opaque
	// Number is a list of numbers in base64, as embeddings can be.
	Number
)

// Root is the choice of a leaf that is in no element of choices.
const Root = -1

// Leaf is one string of an object. Its slices are valid until the next Read, or until the data
// changes.
type Leaf struct {
	Path *Path
	// Text is the string without JSON's escapes; half a surrogate pair is U+FFFD. Bytes that are
	// not UTF-8 stay, because the rest of a character may come with the next event.
	Text []byte
	// Low is the low surrogate that the text starts with, High the high surrogate that it ends
	// with; 0: none.
	Low, High rune
	// At is where the string stands. The zero Span means the name of a member.
	At jsonscan.Span
	// Choice is the index of the choice, or Root.
	Choice int
}

// Choice is one element of choices.
type Choice struct {
	Index int
	At    jsonscan.Span
	// Finish is the value of finish_reason. The zero Span: there is none. Finished reports whether
	// it is a text that is not empty.
	Finish   jsonscan.Span
	Finished bool
	// Member is the name of the member with the output: delta, message or text. Empty: there is
	// none.
	Member string
}

// Spare is a value that repeats a text in another form: log probabilities and token ids.
type Spare struct {
	At     jsonscan.Span
	Choice int
}

// Response has the members of a response of the Responses API that say how it has ended.
type Response struct {
	// Status and Details are the values of status and incomplete_details. The zero Span: none.
	Status, Details jsonscan.Span
	// Close is the offset of the bracket that closes the response.
	Close int
}

// Reader reads objects. The zero Reader is ready. It is for one goroutine.
type Reader struct {
	// Full makes Read return all strings. Without it, Read may leave out those of class Meta that
	// stand before the choices, if they are the same as in the event before.
	Full bool

	// Leaves are the strings of the object. The texts of each choice are in the order in which a
	// stream has them: thoughts, text, refusal, tool calls.
	Leaves []Leaf
	// Choices are the elements of choices, in their order.
	Choices []Choice
	Spares  []Spare
	// Ends reports whether the event is the last one of a response.
	Ends bool
	// Response describes a whole response of the Responses API. nil: the object is none.
	Response *Response
	// HasUsage reports whether the object tells the usage of tokens.
	HasUsage bool

	data []byte
	// prefix is what the last events began with, up to the choices. It has Meta strings only.
	// prefixPaths are its members.
	prefix      []byte
	prefixPaths []*Path
	json        jsonscan.Reader
	buf         []byte // strings that had escapes; a string stays valid when buf grows
	key         []byte // the name of the last typed root
	hasType     bool   // the object has a type at its top
	root        Path
	typedRoots  []*Path
	lastTyped   int   // the index of the typed root that was found last
	typed       *Path // the root of a typed event; nil: the event has no type, or none was seen yet
	paths       int
	objects     uint32 // counts objects, to find members that one of them has twice
	choice      int
	bad         bool
	response    Response
	output      bool
}

// Read reads an object. It returns false if the data is no JSON object, or is unreadable.
func (r *Reader) Read(data []byte) bool {
	r.reset(data)
	if r.json.Kind() != '{' {
		return false
	}
	r.root.rules, r.root.index = rulesRoot, root
	r.top(data)
	if r.hasType && !r.bad { // read again, now by the event's type
		typed, ends := r.typedRoot(data)
		r.reset(data)
		if r.typed, r.Ends, r.bad = typed, ends, typed == nil; !r.bad {
			r.object(typed)
		}
	}
	if !r.json.Valid() || r.bad {
		r.Leaves, r.Choices = r.Leaves[:0], r.Choices[:0]
		return false
	}
	if r.output && r.typed == nil {
		r.response.Close = bytes.LastIndexByte(data, '}')
		r.Response = &r.response
	}
	r.order()
	return true
}

func (r *Reader) reset(data []byte) {
	r.Leaves, r.Choices, r.Spares, r.Ends, r.Response, r.HasUsage = r.Leaves[:0], r.Choices[:0], r.Spares[:0], false, nil, false
	r.buf, r.hasType, r.typed, r.choice, r.bad, r.response, r.output = r.buf[:0], false, nil, Root, false, Response{}, false
	r.data = data
	r.json.Reset(data)
}

// order puts the texts of an object into the order of a stream.
func (r *Reader) order() {
	for i := 1; i < len(r.Leaves); i++ {
		l, before := &r.Leaves[i], &r.Leaves[i-1]
		if l.Choice != Root && l.Choice == before.Choice && l.Path.rank < before.Path.rank {
			slices.SortStableFunc(r.Leaves, func(a, b Leaf) int { return int(a.Path.rank) - int(b.Path.rank) })
			return
		}
	}
}

// fail makes the object unreadable.
func (r *Reader) fail() {
	r.bad = true
	r.json.Stop()
}

// top reads the object itself. Engines begin every event of a stream with the same bytes: those are
// compared instead of read.
func (r *Reader) top(data []byte) {
	if r.Full || len(r.prefix) == 0 || !bytes.HasPrefix(data, r.prefix) {
		r.prefix = r.prefix[:0]
		r.object(&r.root)
		return
	}
	r.objects++
	for _, p := range r.prefixPaths {
		p.seen = r.objects
	}
	r.json.SeekMember(len(r.prefix))
	r.members(&r.root, true)
}

// recordPrefix records what stands before the choices, which begin at the offset at.
func (r *Reader) recordPrefix(at int) {
	if r.Full || len(r.prefix) > 0 || r.HasUsage || r.hasType || len(r.Spares) > 0 {
		return
	}
	for i := range r.Leaves {
		if r.Leaves[i].Path.Class != Meta {
			return
		}
	}
	r.prefix, r.prefixPaths = append(r.prefix, r.data[:at]...), r.prefixPaths[:0]
	for _, c := range r.root.children {
		if c.seen == r.objects {
			r.prefixPaths = append(r.prefixPaths, c)
		}
	}
}

func (r *Reader) object(p *Path) {
	r.objects++
	r.members(p, r.json.Open('{'))
}

// members reads the members of an object. more says that there is one.
func (r *Reader) members(p *Path, more bool) {
	serial := r.objects
	for ; more; more = r.json.More('{') {
		at := r.json.Pos()
		name, kind := r.json.Name(), r.json.Kind()
		if p.rules == rulesTokens && kind != '"' && !isContainer(kind) {
			if !knownNames[string(name)] { // log probabilities can have the tokens as names
				r.Leaves = append(r.Leaves, Leaf{Path: r.nameOf(p), Text: name, Choice: r.choice})
			}
			r.json.Skip()
			continue
		}
		parent := p
		if p == r.typed && string(name) == "choices" {
			parent = &r.root
		}
		c := r.child(parent, name, kind)
		if c == nil || c.seen == serial || c.twin != nil && c.twin.seen == serial {
			r.fail()
			return
		}
		if c.role == roleChoices && p == &r.root {
			r.recordPrefix(at)
		}
		c.seen = serial
		r.member(c)
	}
}

func (r *Reader) member(c *Path) {
	if c.isNew {
		c.isNew = false
		if !c.known {
			r.Leaves = append(r.Leaves, Leaf{Path: r.nameOf(c), Text: []byte(c.name), Choice: r.choice})
		}
	}
	switch c.role {
	case roleNone:
		r.value(c)
	case roleChoices:
		r.choices(c)
	case roleIndex:
		if _, ok := r.json.Int(); !ok {
			r.fail()
		}
	case roleFinish:
		r.finish(c)
	case roleBody:
		if n := len(r.Choices); n > 0 && r.choice != Root {
			r.Choices[n-1].Member = c.name
		}
		r.value(c)
	case roleSpare:
		r.spare(c)
	case roleType:
		r.hasType = r.hasType || r.json.Kind() == '"'
		r.value(c)
	case roleStatus:
		r.response.Status = r.spanned(c)
	case roleDetails:
		r.response.Details = r.spanned(c)
	case roleOutput:
		r.output = true
		r.value(c)
	case roleUsage:
		r.HasUsage = r.HasUsage || r.json.Kind() == '{'
		r.value(c)
	}
}

func (r *Reader) value(p *Path) {
	switch r.json.Kind() {
	case '"':
		r.text(p)
	case '{':
		r.object(p)
	case '[':
		r.list(p)
	default:
		r.json.Skip()
	}
}

// text reads a string.
func (r *Reader) text(p *Path) {
	raw, ok := r.json.RawText()
	if !ok {
		return
	}
	to := r.json.Pos()
	l := Leaf{Path: p, Text: raw, At: jsonscan.Span{From: to - len(raw) - len(`""`), To: to}, Choice: r.choice}
	if r.json.Escaped() {
		start := len(r.buf)
		var halves jsonscan.Halves
		r.buf, halves = jsonscan.Unescape(r.buf, raw)
		l.Text, l.Low, l.High = r.buf[start:len(r.buf):len(r.buf)], halves.Low, halves.High
	}
	r.Leaves = append(r.Leaves, l)
}

// list reads a list. Its elements are one place, except objects with an index.
func (r *Reader) list(p *Path) {
	for more := r.json.Open('['); more; more = r.json.More('[') {
		kind := r.json.Kind()
		if kind != '{' {
			if kind == '"' || kind == '[' {
				r.element(p, -1)
			} else {
				r.json.Skip()
			}
			continue
		}
		index := -1
		if !p.collapse {
			if index = r.index(); r.bad {
				return
			}
		}
		r.element(p, index)
	}
}

// element reads an element of a list. A negative index means all elements without one.
func (r *Reader) element(p *Path, index int) {
	c := r.elementPath(p, index, r.json.Kind())
	if c == nil {
		r.fail()
		return
	}
	r.value(c)
}

// index returns the index of the object that comes next, and -1 if it has none. It reads nothing.
func (r *Reader) index() int {
	ahead, index := r.json, -1
	for more := ahead.Open('{'); more; more = ahead.More('{') {
		if string(ahead.Name()) != "index" {
			ahead.Skip()
			continue
		}
		n, ok := ahead.Int()
		if !ok || n > 1<<31-1 {
			r.fail()
			return -1
		}
		index = int(n)
		break // an object that has another index has a member twice
	}
	return index
}

// choices reads the list of choices.
func (r *Reader) choices(p *Path) {
	if r.json.Kind() != '[' {
		r.value(p)
		return
	}
	position := 0
	for more := r.json.Open('['); more; more = r.json.More('[') {
		if r.json.Kind() != '{' {
			r.element(p, -1)
			position++
			continue
		}
		index := r.index()
		if r.bad {
			return
		}
		if index < 0 {
			index = position
		}
		position++
		from := r.json.Pos()
		r.Choices = append(r.Choices, Choice{Index: index})
		r.choice = index
		r.element(p, index)
		r.choice = Root
		if r.bad {
			return
		}
		r.Choices[len(r.Choices)-1].At = jsonscan.Span{From: from, To: r.json.Pos()}
	}
}

// finish reads the finish_reason of a choice.
func (r *Reader) finish(p *Path) {
	before := len(r.Leaves)
	at := r.spanned(p)
	if len(r.Choices) == 0 || r.choice == Root {
		return
	}
	c := &r.Choices[len(r.Choices)-1]
	c.Finish, c.Finished = at, len(r.Leaves) > before && len(r.Leaves[before].Text) > 0
}

// spare reads a value that repeats a text.
func (r *Reader) spare(p *Path) {
	if r.json.Null() {
		return
	}
	r.Spares = append(r.Spares, Spare{At: r.spanned(p), Choice: r.choice})
}

// spanned reads a value and returns where it stands.
func (r *Reader) spanned(p *Path) jsonscan.Span {
	r.json.Kind()
	from := r.json.Pos()
	r.value(p)
	return jsonscan.Span{From: from, To: r.json.Pos()}
}

// typedRoot returns the root of an event with a type, and whether the event ends a response. The
// name of the root is made of the type, the indexes and the item of the event. nil: an index is no
// integer, or there are too many roots.
func (r *Reader) typedRoot(data []byte) (typed *Path, ends bool) {
	js := &r.json
	js.Reset(data)
	var typ []byte
	var parts [len(keyNames)]jsonscan.Span
	for more := js.Open('{'); more; more = js.More('{') {
		name := js.Name()
		switch i := slices.Index(keyNames[:], string(name)); {
		case string(name) == "type":
			typ = js.Text()
		case i >= 0:
			parts[i] = js.Value()
		default:
			js.Skip()
		}
	}
	r.key = append(r.key[:0], typ...)
	for i, at := range parts {
		part := data[at.From:at.To]
		switch isItem := keyNames[i] == itemName; {
		case isItem && parts[0] != (jsonscan.Span{}):
			part = nil
		case !isItem && !isIndex(part):
			return nil, false
		}
		r.key = append(append(r.key, ' '), part...)
	}
	return r.typedChild(r.key, typ), lastEvents[string(typ)]
}

// isIndex reports whether the value of an index at the top of an event has only one form, so that
// all readers take it for the same. It is an integer, or nothing.
func isIndex(value []byte) bool {
	for i, c := range value {
		if (c < '0' || c > '9') && (i > 0 || c != '-') {
			return string(value) == "null"
		}
	}
	return string(value) != "-0"
}
