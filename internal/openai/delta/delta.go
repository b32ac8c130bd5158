// Package delta reads what the data of one event of a stream says, in words: text, reasoning, a refusal, a fragment of a tool
// call. [Reader] reads chunks of chats and completions and events of the Responses API; [Answer] reads the same of an answer that
// did not stream, and says where each text stands in it.
//
// Nothing is kept from one event to the next, and on the usual path nothing is allocated or copied. Data that is not understood
// says nothing.
package delta

import "bytes"

// Kind is what sort of text a delta adds to.
type Kind uint8

// The kinds of text.
const (
	Text Kind = iota
	Reasoning
	Refusal
	ToolCall
)

// Delta is what an event adds to one text of one choice. Its slices belong to the reader and to the data it read: they hold until
// its next Read, or until the data changes.
type Delta struct {
	// Choice is the choice's index, its place in the list when it has none, and -1 when that is no number. Of the Responses API it is
	// 0: the output items of an answer are one choice here.
	Choice int
	Kind   Kind
	// Text is what is added: never empty but for a tool call that is merely named. Escapes are undone; half a surrogate pair becomes
	// U+FFFD. Bytes that are no UTF-8 stay as the engine wrote them, since the rest of a character may come with the next event. Of
	// a tool call it is a fragment of the arguments, as the JSON text that they are.
	Text []byte
	// Low and High are the halves of surrogate pairs that the text begins and ends with, 0: it does not. Clients that join strings of UTF-16
	// see a pair where one event ends with its high half and the next begins with its low one.
	Low, High rune
	// Tool tells the tool calls of a choice apart: their index, of the Responses API the output_index of the item.
	Tool int
	// ID and Name are of a tool call's first fragment, else nil.
	ID, Name []byte
}

// Reader reads one event after the other. The zero Reader is ready.
type Reader struct {
	deltas   []Delta
	at       []Span // by delta: where its text stands
	also     []Span // see Ending.Also
	finished []int
	event    event
	texts    // of the last event
}

// event is what is read of an event of the Responses API before it is known to be one: its type may come last.
type event struct {
	typ      []byte
	delta    Delta
	output   int
	item     Delta
	itemType []byte
}

// Read reads the data of an event. What it gives holds until the next call. It is not ok when the data is no JSON object.
func (r *Reader) Read(data []byte) (deltas []Delta, ok bool) {
	r.reset(data)
	if r.json.Kind() != '{' {
		return nil, false
	}
	r.members()
	if !r.json.Valid() {
		r.deltas, r.finished = r.deltas[:0], r.finished[:0]
		return nil, false
	}
	r.responses()
	return r.deltas, true
}

// Finished are the indexes of the choices that the event read last has ended, with a finish_reason or as the end of a response. It
// holds until the next Read.
func (r *Reader) Finished() []int { return r.finished }

func (r *Reader) reset(data []byte) {
	r.deltas, r.at, r.also, r.finished, r.event = r.deltas[:0], r.at[:0], r.also[:0], r.finished[:0], event{}
	r.texts.reset(data)
}

// add adds the text that was read last.
func (r *Reader) add(kind Kind, text []byte) {
	if len(text) > 0 {
		r.push(Delta{Kind: kind, Text: text, Low: r.halves.Low, High: r.halves.High}, r.span)
	}
}

func (r *Reader) push(d Delta, at Span) {
	r.deltas, r.at = append(r.deltas, d), append(r.at, at)
}

func (r *Reader) members() {
	for more := r.json.Open('{'); more; more = r.json.More('{') {
		switch string(r.json.Name()) {
		case "choices":
			r.choices()
		case "type":
			r.event.typ = r.text()
		case "delta":
			text := r.text()
			r.event.delta = Delta{Text: text, Low: r.halves.Low, High: r.halves.High}
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
	if r.json.Kind() != '[' {
		r.json.Skip()
		return
	}
	place := 0
	for more := r.json.Open('['); more; more = r.json.More('[') {
		if r.json.Kind() == '{' {
			r.choice(place)
		} else {
			r.json.Skip()
		}
		place++
	}
}

// choice reads a choice. Its index may come after its delta.
func (r *Reader) choice(index int) {
	first, finished := len(r.deltas), false
	for more := r.json.Open('{'); more; more = r.json.More('{') {
		switch string(r.json.Name()) {
		case "index":
			index = r.index()
		case "delta":
			r.delta()
		case "text":
			r.add(Text, r.text())
		case "finish_reason":
			finished = len(r.text()) > 0
		default:
			r.json.Skip()
		}
	}
	for i := first; i < len(r.deltas); i++ {
		r.deltas[i].Choice = index
	}
	if finished {
		r.finished = append(r.finished, index)
	}
}

func (r *Reader) delta() {
	if r.json.Kind() != '{' {
		r.json.Skip()
		return
	}
	for more := r.json.Open('{'); more; more = r.json.More('{') {
		switch string(r.json.Name()) {
		case "content":
			r.content(Text)
		case "reasoning_content", "reasoning":
			r.content(Reasoning)
		case "refusal":
			r.add(Refusal, r.text())
		case "tool_calls":
			r.calls()
		case "function_call":
			r.call(Delta{Kind: ToolCall}, true)
		case "audio", "reasoning_details":
			r.also = append(r.also, r.json.Value())
		default:
			r.json.Skip()
		}
	}
}

// content reads a string, or a list of parts as some engines write it.
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
	if r.json.Kind() != '{' {
		r.json.Skip()
		return
	}
	for more := r.json.Open('{'); more; more = r.json.More('{') {
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
	if r.json.Kind() != '[' {
		r.json.Skip()
		return
	}
	place := 0
	for more := r.json.Open('['); more; more = r.json.More('[') {
		r.call(Delta{Kind: ToolCall, Tool: place}, false)
		place++
	}
}

// call reads a fragment of a tool call. bare says that it is a function's name and arguments and nothing around them.
func (r *Reader) call(d Delta, bare bool) {
	if r.json.Kind() != '{' {
		r.json.Skip()
		return
	}
	var at Span
	if bare {
		at = r.function(&d)
	} else {
		at = r.toolCall(&d)
	}
	if len(d.Text)+len(d.ID)+len(d.Name) > 0 {
		r.push(d, at)
	}
}

func (r *Reader) toolCall(d *Delta) (arguments Span) {
	for more := r.json.Open('{'); more; more = r.json.More('{') {
		switch string(r.json.Name()) {
		case "index":
			d.Tool = r.index()
		case "id":
			d.ID = r.text()
		case "function", "custom":
			arguments = r.function(d)
		default:
			r.json.Skip()
		}
	}
	return arguments
}

func (r *Reader) function(d *Delta) (arguments Span) {
	if r.json.Kind() != '{' {
		r.json.Skip()
		return arguments
	}
	for more := r.json.Open('{'); more; more = r.json.More('{') {
		switch string(r.json.Name()) {
		case "name":
			d.Name = r.text()
		case "arguments", "input":
			d.Text = r.text()
			d.Low, d.High, arguments = r.halves.Low, r.halves.High, r.span
		default:
			r.json.Skip()
		}
	}
	return arguments
}

// item reads an output item: only a tool call's says something that no delta does.
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

// responses says what an event of the Responses API means, if it is one.
func (r *Reader) responses() {
	name, ok := bytes.CutPrefix(r.event.typ, []byte("response."))
	if !ok {
		return
	}
	switch string(name) {
	case "output_text.delta":
		r.said(Text, 0)
	case "reasoning_text.delta", "reasoning_summary_text.delta":
		r.said(Reasoning, 0)
	case "refusal.delta":
		r.said(Refusal, 0)
	case "function_call_arguments.delta", "custom_tool_call_input.delta", "mcp_call_arguments.delta":
		r.said(ToolCall, r.event.output)
	case "output_item.added":
		d := r.event.item
		if bytes.HasSuffix(r.event.itemType, []byte("_call")) && len(d.ID)+len(d.Name) > 0 {
			d.Tool = r.event.output
			r.push(d, r.span)
		}
	case "completed", "incomplete", "failed":
		r.finished = append(r.finished, 0)
	}
}

// said adds the delta of an event of the Responses API.
func (r *Reader) said(kind Kind, tool int) {
	d := r.event.delta
	if d.Kind, d.Tool = kind, tool; len(d.Text) > 0 {
		r.push(d, Span{})
	}
}
