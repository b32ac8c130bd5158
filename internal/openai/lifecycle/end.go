package lifecycle

import (
	"bytes"
	"encoding/json"
	"maps"
)

// End is how a response ends early.
type End struct {
	// Status is the status of the response: "incomplete" or "failed".
	Status string
	// Reason is why the response is incomplete: "max_output_tokens" or "content_filter". Empty: it
	// is not incomplete.
	Reason string
	// Error is the error object of a response that has failed. nil: it has not.
	Error json.RawMessage
	// Usage is what the response has used; nil: null.
	Usage any
	// ID, Model and Created, a Unix time in seconds, stand in a response that the engine has not
	// begun.
	ID, Model string
	Created   int64
}

// Event is an event that ends a response or a part of it.
type Event struct {
	Type string
	// Data is the data of the event.
	Data []byte
}

type object = map[string]any

// Events returns the events that a client has to receive so that the response ends now. These are
// the first event if the client has none, a done event for each open text, part and item, and the
// last event. It returns nothing for a response that has ended. The response has ended then.
func (r *Response) Events(end End) []Event {
	if r.ended {
		return nil
	}
	w := writer{sequence: r.sequence}
	response := object{}
	if json.Unmarshal(r.begin, &response) != nil || len(response) == 0 {
		response = object{"id": end.ID, "object": "response", "created_at": end.Created, "model": end.Model, "status": "in_progress",
			"output": []any{}, "error": nil, "incomplete_details": nil, "usage": nil, "parallel_tool_calls": true, "tool_choice": "auto", "tools": []any{}}
		w.add("created", object{"response": maps.Clone(response)})
	}
	output := make([]any, 0, len(r.items))
	for i := range r.items {
		it := &r.items[i]
		if it.done == nil {
			w.closeItem(it)
		}
		output = append(output, json.RawMessage(it.done))
	}
	response["status"], response["error"], response["usage"], response["output"] = end.Status, end.Error, end.Usage, output
	if r.lossy {
		delete(response, "output") // the clients have the items
	}
	if end.Reason != "" {
		response["incomplete_details"] = object{"reason": end.Reason}
	}
	w.add(end.Status, object{"response": response})
	r.ended, r.begin, r.items, r.kept, r.sequence = true, nil, nil, 0, w.sequence
	return w.events
}

// writer writes events with their sequence numbers.
type writer struct {
	sequence int64
	events   []Event
}

func (w *writer) add(kind string, members object) {
	members["type"], members["sequence_number"] = "response."+kind, w.sequence
	w.sequence++
	w.events = append(w.events, Event{Type: "response." + kind, Data: marshal(members)})
}

// closeItem closes an open item and everything in it. The item is then incomplete.
func (w *writer) closeItem(it *item) {
	whole := object{}
	_ = json.Unmarshal(it.raw, &whole) // it was read as an object
	content := map[string][]any{}
	for i := range it.texts {
		if t := &it.texts[i]; t.row.ofItem {
			whole[t.row.member] = w.closeText(it, t)
		} else if it.part(t) == nil {
			w.closeText(it, t)
		}
	}
	for i := range it.parts {
		p := &it.parts[i]
		list := "content"
		if p.kind == "reasoning_summary_part" {
			list = "summary"
		}
		content[list] = append(content[list], w.closePart(it, p, whole["id"]))
	}
	for list, parts := range content {
		whole[list] = parts
	}
	whole["status"] = "incomplete"
	w.add("output_item.done", object{"output_index": it.index, "item": whole})
	it.done = marshal(whole)
}

func (w *writer) closeText(it *item, t *text) json.RawMessage {
	value := quoted(t.value)
	if t.done {
		return value
	}
	members := object{"output_index": it.index, "item_id": quoted(t.itemID), t.row.member: value}
	if !t.row.ofItem {
		members[t.row.index] = t.position
	}
	if t.row.events == "output_text" {
		members["logprobs"] = []any{}
	}
	w.add(t.row.events+".done", members)
	return value
}

// closePart closes a part and its text, and returns the part.
func (w *writer) closePart(it *item, p *part, itemID any) any {
	if p.done {
		return json.RawMessage(p.raw)
	}
	whole := object{}
	_ = json.Unmarshal(p.raw, &whole) // it was read as an object
	for i := range it.texts {
		if t := &it.texts[i]; it.part(t) == p {
			whole[t.row.member] = w.closeText(it, t)
		}
	}
	index := "content_index"
	if p.kind == "reasoning_summary_part" {
		index = "summary_index"
	}
	w.add(p.kind+".done", object{"output_index": it.index, "item_id": itemID, index: p.position, "part": whole})
	return whole
}

// part returns the part that a text belongs to. nil: there is none.
func (it *item) part(t *text) *part {
	if t.row.ofItem {
		return nil
	}
	for i := range it.parts {
		p := &it.parts[i]
		if summary := p.kind == "reasoning_summary_part"; p.position == t.position && summary == (t.row.index == "summary_index") {
			return p
		}
	}
	return nil
}

// quoted returns the JSON string with this content. An engine may have been stopped within a
// character.
func quoted(content []byte) json.RawMessage {
	return append(append([]byte{'"'}, bytes.ToValidUTF8(content, []byte("\ufffd"))...), '"')
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // it consists of what was JSON before, of strings and of numbers
		panic(err)
	}
	return b
}
