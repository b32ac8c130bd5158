// Package delta reads the deltas of a model's output: text, reasoning, refusals and fragments of
// tool calls. The WebSocket (internal/relay/realtime), the gRPC service (internal/relay/grpcapi)
// and the Messages API (internal/openai/messages) use it.
//
// [Reader] reads the data of one event: a chunk of a chat or of a completion, or an event of the
// Responses API. It also reads the whole answer to a chat, as if that were one event.
//
// A Reader keeps nothing from one event to the next. For the usual event it allocates and copies
// nothing. Data that is no JSON object, or no known shape, has no deltas.
package delta

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// Kind is the kind of text that a delta adds to.
type Kind uint8

// The kinds of text.
const (
	Text Kind = iota
	Reasoning
	Refusal
	ToolCall
)

// Delta is what an event adds to one text of one choice. Its slices are part of the reader and of
// the data: they are valid until the next Read, or until the data changes.
type Delta struct {
	// Choice is the choice's index. A choice without an index has its position in the list, and one
	// whose index is no number has -1. For the Responses API it is 0: all output items of an answer
	// are one choice.
	Choice int
	Kind   Kind
	// Text is what is added, without JSON's escapes; half a surrogate pair is U+FFFD. Bytes that
	// are not UTF-8 stay, because the rest of a character may come with the next event. Of a tool
	// call Text is a fragment of the arguments, which are JSON. Text is empty only for a tool call
	// that has an ID or a Name.
	Text []byte
	// Tool distinguishes the tool calls of a choice: their index, or for the Responses API the
	// output_index of the item. Calls.Resolve distinguishes them where the engine's index does not.
	Tool int
	// ID and Name are those of the tool call, in its first fragment; else nil.
	ID, Name []byte
}

// Reader reads one event after the other. The zero Reader is ready. It is for one goroutine.
type Reader struct {
	deltas []Delta
	event  event
	// whole says that the data is a whole answer.
	whole bool

	json jsonscan.Reader
	data []byte
	// buf holds the strings that had escapes. When buf grows, strings that were read before stay
	// valid in the old array.
	buf []byte
}

// event holds the members of an event of the Responses API until its type is known, which may be
// the last member.
type event struct {
	typ      []byte
	delta    []byte
	output   int
	item     Delta
	itemType []byte
}

// Read reads the data of an event. The deltas are valid until the next call. ok is false if the
// data is no JSON object.
func (r *Reader) Read(data []byte) (deltas []Delta, ok bool) {
	r.reset(data)
	if r.json.Kind() != '{' {
		return nil, false
	}
	r.members()
	if !r.json.Valid() {
		r.deltas = r.deltas[:0]
		return nil, false
	}
	r.responses()
	return r.deltas, true
}

// ReadAnswer reads the whole answer to a chat, which has a message in the place of each delta. The
// deltas of a choice are in the order in which a stream has them. Else it is as Read.
func (r *Reader) ReadAnswer(data []byte) (deltas []Delta, ok bool) {
	r.whole = true
	deltas, ok = r.Read(data)
	r.whole = false
	slices.SortStableFunc(deltas, func(a, b Delta) int { return cmp.Or(a.Choice-b.Choice, a.Kind.rank()-b.Kind.rank()) })
	return deltas, ok
}

// rank is the position of a kind in a stream.
func (k Kind) rank() int {
	if k == Reasoning {
		return -1
	}
	return int(k)
}

func (r *Reader) reset(data []byte) {
	r.deltas, r.event = r.deltas[:0], event{}
	r.data, r.buf = data, r.buf[:0]
	r.json.Reset(data)
}

// add adds a delta of the text that was read last.
func (r *Reader) add(kind Kind, text []byte) {
	if len(text) > 0 {
		r.push(Delta{Kind: kind, Text: text})
	}
}

func (r *Reader) push(d Delta) { r.deltas = append(r.deltas, d) }

func (r *Reader) members() {
	for more := r.json.Open('{'); more; more = r.json.More('{') {
		switch string(r.json.Name()) {
		case "choices":
			r.choices()
		case "type":
			r.event.typ = r.text()
		case "delta":
			r.event.delta = r.text()
		case "output_index":
			r.event.output = r.index()
		case "item":
			r.item()
		default:
			r.json.Skip()
		}
	}
}

func (r *Reader) choices() {
	position := 0
	for more := r.json.OpenOrSkip('['); more; more = r.json.More('[') {
		if r.json.Kind() == '{' {
			r.choice(position)
		} else {
			r.json.Skip()
		}
		position++
	}
}

// choice reads a choice at the given position of the list. Its index may come after its delta.
func (r *Reader) choice(index int) {
	first := len(r.deltas)
	for more := r.json.Open('{'); more; more = r.json.More('{') {
		switch string(r.json.Name()) {
		case "index":
			index = r.index()
		case "delta":
			r.delta()
		case "message":
			if r.whole {
				r.delta()
			} else {
				r.json.Skip()
			}
		case "text":
			r.add(Text, r.text())
		default:
			r.json.Skip()
		}
	}
	for i := first; i < len(r.deltas); i++ {
		r.deltas[i].Choice = index
	}
}

func (r *Reader) delta() {
	reasoned := false
	for more := r.json.OpenOrSkip('{'); more; more = r.json.More('{') {
		switch string(r.json.Name()) {
		case "content":
			r.content(Text)
		case "reasoning_content", "reasoning":
			// Some engines send the same text by both names.
			if reasoned {
				r.json.Skip()
				continue
			}
			before := len(r.deltas)
			r.content(Reasoning)
			reasoned = len(r.deltas) > before
		case "refusal":
			r.add(Refusal, r.text())
		case "tool_calls":
			r.calls()
		case "function_call":
			r.call(Delta{Kind: ToolCall}, true)
		default:
			r.json.Skip()
		}
	}
}

// content reads a text: a string, or a list of parts as some engines write it.
func (r *Reader) content(kind Kind) {
	switch r.json.Kind() {
	case '"':
		r.add(kind, r.text())
	case '[':
		for more := r.json.Open('['); more; more = r.json.More('[') {
			r.part(kind)
		}
	default:
		r.json.Skip()
	}
}

func (r *Reader) part(kind Kind) {
	for more := r.json.OpenOrSkip('{'); more; more = r.json.More('{') {
		switch string(r.json.Name()) {
		case "text":
			r.add(kind, r.text())
		case "thinking":
			r.content(Reasoning)
		case "refusal":
			r.add(Refusal, r.text())
		default:
			r.json.Skip()
		}
	}
}

func (r *Reader) calls() {
	position := 0
	for more := r.json.OpenOrSkip('['); more; more = r.json.More('[') {
		r.call(Delta{Kind: ToolCall, Tool: position}, false)
		position++
	}
}

// call reads a fragment of a tool call. bare means that the value is the function itself, with its
// name and arguments.
func (r *Reader) call(d Delta, bare bool) {
	if bare {
		r.function(&d)
	} else {
		r.toolCall(&d)
	}
	if len(d.Text)+len(d.ID)+len(d.Name) > 0 {
		r.push(d)
	}
}

func (r *Reader) toolCall(d *Delta) {
	for more := r.json.OpenOrSkip('{'); more; more = r.json.More('{') {
		switch string(r.json.Name()) {
		case "index":
			d.Tool = r.index()
		case "id":
			d.ID = r.text()
		case "function", "custom":
			r.function(d)
		default:
			r.json.Skip()
		}
	}
}

func (r *Reader) function(d *Delta) {
	for more := r.json.OpenOrSkip('{'); more; more = r.json.More('{') {
		switch string(r.json.Name()) {
		case "name":
			d.Name = r.text()
		case "arguments", "input":
			if r.whole && r.json.Kind() == '{' { // as some engines write them
				at := r.json.Value()
				d.Text = r.data[at.From:at.To]
				continue
			}
			d.Text = r.text()
		default:
			r.json.Skip()
		}
	}
}

// item reads an output item. Only the item of a tool call says something that no delta says.
func (r *Reader) item() {
	if r.json.Kind() != '{' {
		r.json.Skip()
		return
	}
	r.event.item, r.event.itemType = Delta{Kind: ToolCall}, nil
	for more := r.json.Open('{'); more; more = r.json.More('{') {
		switch string(r.json.Name()) {
		case "type":
			r.event.itemType = r.text()
		case "call_id":
			r.event.item.ID = r.text()
		case "name":
			r.event.item.Name = r.text()
		default:
			r.json.Skip()
		}
	}
}

// responses adds what an event of the Responses API means, if the data is one.
func (r *Reader) responses() {
	name, ok := bytes.CutPrefix(r.event.typ, []byte("response."))
	if !ok {
		return
	}
	switch string(name) {
	case "output_text.delta":
		r.addEventDelta(Text, 0)
	case "reasoning_text.delta", "reasoning_summary_text.delta":
		r.addEventDelta(Reasoning, 0)
	case "refusal.delta":
		r.addEventDelta(Refusal, 0)
	case "function_call_arguments.delta", "custom_tool_call_input.delta", "mcp_call_arguments.delta":
		r.addEventDelta(ToolCall, r.event.output)
	case "output_item.added":
		d := r.event.item
		if bytes.HasSuffix(r.event.itemType, []byte("_call")) && len(d.ID)+len(d.Name) > 0 {
			d.Tool = r.event.output
			r.push(d)
		}
	}
}

// addEventDelta adds the delta of an event of the Responses API.
func (r *Reader) addEventDelta(kind Kind, tool int) {
	if text := r.event.delta; len(text) > 0 {
		r.push(Delta{Kind: kind, Tool: tool, Text: text})
	}
}

// text reads any value and returns its text without escapes, and nil if the value is no string.
func (r *Reader) text() []byte {
	raw, ok := r.json.RawText()
	if !ok {
		return nil
	}
	if !r.json.Escaped() {
		return raw
	}
	start := len(r.buf)
	r.buf, _ = jsonscan.Unescape(r.buf, raw)
	return r.buf[start:len(r.buf):len(r.buf)]
}

// index reads any value and returns it if it can be an index, and -1 if not.
func (r *Reader) index() int {
	n, ok := r.json.Int()
	if !ok || n > 1<<31-1 {
		return -1
	}
	return int(n)
}
