// Package lifecycle follows one streamed response of OpenAI's Responses API and can end it early as
// the API prescribes. The relay (internal/relay) uses it for streams that it ends itself.
//
// OpenAI's clients build a response from its events, so an early end must fit what they have
// received. It needs the same id, the next sequence numbers, and a done event for whatever is open.
// So a [Response] keeps the open items and the finished ones until the stream has ended.
package lifecycle

import (
	"bytes"
	"slices"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// Response is the state of a response by the events that the client has received. The zero Response
// has received none. It is for one goroutine.
type Response struct {
	reader   jsonscan.Reader
	event    event
	sequence int64 // the number of the next event
	begin    []byte
	items    []item
	kept     int
	lossy    bool
	ended    bool
}

// item is an output item. Its slices are JSON.
type item struct {
	index int64
	// raw is the item as it was added, and done as it was finished; nil: it is open.
	raw, done []byte
	parts     []part
	texts     []text
}

// part is a part of an item: of its content or of its summary.
type part struct {
	// kind is the beginning of the types of its events, such as content_part.
	kind     string
	position int64
	raw      []byte
	done     bool
}

// text is a text that deltas write: of a part, or of the item itself.
type text struct {
	row      *textKind
	position int64
	itemID   []byte
	// value is what stands between the quotes of the JSON string.
	value []byte
	done  bool
}

// textKind is how a kind of text is named.
type textKind struct {
	// events is the beginning of the types of its events, and member its member in the done event
	// and in the part or item.
	events, member string
	// ofItem says that the text is a member of its item, not of a part.
	ofItem bool
	// index is the member with the position of the part.
	index string
}

var textKinds = []textKind{
	{events: "output_text", member: "text", index: "content_index"},
	{events: "refusal", member: "refusal", index: "content_index"},
	{events: "reasoning_text", member: "text", index: "content_index"},
	{events: "reasoning_summary_text", member: "text", index: "summary_index"},
	{events: "function_call_arguments", member: "arguments", ofItem: true},
	{events: "custom_tool_call_input", member: "input", ofItem: true},
	{events: "mcp_call_arguments", member: "arguments", ofItem: true},
}

// event has the members of an event that matter. Its slices are parts of the event's data.
type event struct {
	kind                       []byte // the type without "response."
	sequence, output, position int64
	itemID, delta, whole       []byte // without their quotes; nil: there is none
	item, part, response       []byte
}

// See reads the data of the next event that the client receives. Data that is no event of the
// Responses API counts as an event and changes nothing else.
func (r *Response) See(data []byte) {
	if r.ended {
		return
	}
	r.sequence++
	if !r.read(data) {
		return
	}
	r.sequence = max(r.sequence, r.event.sequence+1)
	switch e := &r.event; string(e.kind) {
	case "created", "queued", "in_progress":
		r.begin = append(r.begin[:0], e.response...)
	case "completed", "incomplete", "failed":
		r.ended, r.begin, r.items = true, nil, nil
	default:
		if !r.lossy {
			r.change()
		}
	}
}

// Sequence returns the sequence number of the event after the last one.
func (r *Response) Sequence() int64 { return r.sequence }

// Kept returns how many bytes the response keeps of its items.
func (r *Response) Kept() int { return r.kept }

// Forget drops the items, to save their memory. End then leaves out their done events.
func (r *Response) Forget() { r.lossy, r.items, r.kept = true, nil, 0 }

// read reads an event, and reports whether it is one of the Responses API.
func (r *Response) read(data []byte) bool {
	r.event = event{sequence: -1}
	r.reader.Reset(data)
	for more := r.reader.Open('{'); more; more = r.reader.More('{') {
		r.member(data)
	}
	kind, ok := bytes.CutPrefix(r.event.kind, []byte("response."))
	r.event.kind = kind
	return ok && r.reader.Valid()
}

func (r *Response) member(data []byte) {
	e, j := &r.event, &r.reader
	object := func() []byte {
		at := j.Value()
		if at.To > at.From && data[at.From] == '{' {
			return data[at.From:at.To]
		}
		return nil
	}
	switch string(j.Name()) {
	case "type":
		e.kind = j.Text()
	case "sequence_number":
		e.sequence = r.number()
	case "output_index":
		e.output = r.number()
	case "content_index", "summary_index":
		e.position = r.number()
	case "item_id":
		e.itemID, _ = j.RawText()
	case "delta":
		e.delta, _ = j.RawText()
	case "text", "refusal", "arguments", "input":
		e.whole, _ = j.RawText()
	case "item":
		e.item = object()
	case "part":
		e.part = object()
	case "response":
		e.response = object()
	default:
		j.Skip()
	}
}

// number reads any value and returns it if it is an integer, and -1 if not.
func (r *Response) number() int64 {
	n, ok := r.reader.Int()
	if !ok {
		return -1
	}
	return n
}

// change changes the items by the event.
func (r *Response) change() {
	e := &r.event
	if string(e.kind) == "output_item.added" && e.item != nil {
		r.items = append(r.items, item{index: e.output, raw: r.keep(nil, e.item)})
		return
	}
	i := slices.IndexFunc(r.items, func(i item) bool { return i.index == e.output })
	if i < 0 || r.items[i].done != nil {
		return
	}
	to := &r.items[i]
	prefix, suffix, _ := bytes.Cut(e.kind, []byte("."))
	switch {
	case string(e.kind) == "output_item.done" && e.item != nil:
		to.done, to.parts, to.texts = r.keep(nil, e.item), nil, nil
	case bytes.HasSuffix(prefix, []byte("_part")) && e.part != nil:
		r.changePart(to, string(prefix), string(suffix) == "done")
	default:
		r.changeText(to, prefix, string(suffix))
	}
}

func (r *Response) changePart(to *item, kind string, done bool) {
	e := &r.event
	i := slices.IndexFunc(to.parts, func(p part) bool { return p.kind == kind && p.position == e.position })
	if i < 0 {
		i = len(to.parts)
		to.parts = append(to.parts, part{kind: kind, position: e.position})
	}
	p := &to.parts[i]
	p.raw, p.done = r.keep(nil, e.part), done
}

func (r *Response) changeText(to *item, events []byte, suffix string) {
	e := &r.event
	row := slices.IndexFunc(textKinds, func(k textKind) bool { return k.events == string(events) })
	if row < 0 {
		return
	}
	kind := &textKinds[row]
	i := slices.IndexFunc(to.texts, func(t text) bool { return t.row == kind && t.position == e.position })
	if i < 0 {
		i = len(to.texts)
		to.texts = append(to.texts, text{row: kind, position: e.position, itemID: r.keep(nil, e.itemID)})
	}
	switch t := &to.texts[i]; suffix {
	case "delta":
		t.value = r.keep(t.value, e.delta)
	case "done":
		t.done = true
		if e.whole != nil {
			t.value = r.keep(t.value[:0], e.whole)
		}
	}
}

// keep appends a copy of b to dst and counts it.
func (r *Response) keep(dst, b []byte) []byte {
	r.kept += len(b)
	return append(dst, b...)
}
