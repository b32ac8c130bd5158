package realtime

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// fields are the members of an event.
type fields = map[string]any

// event is an event of OpenAI's protocol, which goes to the client as it is.
type event struct{ members fields }

func newEvent(kind string, members fields) event {
	members["type"] = kind
	return event{members}
}

// itemAdded says that the client's item joins the conversation.
type itemAdded struct{ item fields }

// responseBegins says that a response with this id begins, and what its client has it carry.
type responseBegins struct {
	id       string
	metadata map[string]json.RawMessage
}

// openAIEvents translates messages of Sluice's own protocol into events of OpenAI's. The socket
// uses it with its lock held, except for beta, which does not change.
type openAIEvents struct {
	// beta says that the client expects the names of the protocol's first version.
	beta bool
	// active says that the client speaks OpenAI's protocol.
	active atomic.Bool

	sent     int64 // events
	id       string
	metadata map[string]json.RawMessage
	output   []*outputItem
	out      []fields
	// last is the id of the last item of the conversation, and lastOutput that of the last one that
	// can stand before the next item of the response. Empty: there is none.
	last, lastOutput string
}

// outputItem is an item of a response.
type outputItem struct {
	id, callID, name string
	// previous is the id of the item before it.
	previous   string
	call, done bool
	text       []byte
}

// itemBegins tells that an item has joined the conversation. previous is the id of the item before
// it.
func (o *openAIEvents) itemBegins(item fields, previous string) {
	kind := "conversation.item.added"
	if o.beta {
		kind = "conversation.item.created"
	}
	o.emit(kind, fields{"item": item, "previous_item_id": orNull(previous)})
}

// itemEnds tells that an item is final. The first version of the protocol has no such event.
func (o *openAIEvents) itemEnds(item fields, previous string) {
	if !o.beta {
		o.emit("conversation.item.done", fields{"item": item, "previous_item_id": orNull(previous)})
	}
}

// orNull returns an id as the client sees it.
func orNull(id string) any {
	if id == "" {
		return nil
	}
	return id
}

// textEvent returns the type of an event about text.
func (o *openAIEvents) textEvent(change string) string {
	if o.beta {
		return "response.text." + change
	}
	return "response.output_text." + change
}

// translate returns the events that stand for a message. They are valid until the next call.
func (o *openAIEvents) translate(message any) []fields {
	o.out = o.out[:0]
	switch m := message.(type) {
	case event:
		o.add(m.members)
	case itemAdded:
		previous := o.last
		o.last, _ = m.item["id"].(string)
		o.itemBegins(m.item, previous)
		o.itemEnds(m.item, previous)
	case responseBegins:
		o.id, o.metadata, o.output, o.lastOutput = m.id, m.metadata, nil, o.last
		o.emit("response.created", fields{"response": o.response("in_progress", nil, nil)})
	case tokenMessage:
		if m.Kind != "reasoning" {
			o.token(m.Delta)
		}
	case toolCallMessage:
		o.toolCall(&m)
	case finalMessage:
		o.final(&m)
	case errorMessage:
		o.failed(&m)
	}
	return o.out
}

func (o *openAIEvents) add(members fields) {
	o.sent++
	members["event_id"] = fmt.Sprint("event_", o.sent)
	o.out = append(o.out, members)
}

func (o *openAIEvents) emit(kind string, members fields) {
	members["type"] = kind
	o.add(members)
}

// about returns the members that all events about an item have.
func (o *openAIEvents) about(index int) fields {
	return fields{"response_id": o.id, "item_id": o.output[index].id, "output_index": index}
}

// open opens an item and returns its index. It stands behind the items of the response before it,
// and before those that the client has created meanwhile.
func (o *openAIEvents) open(item *outputItem) int {
	index := len(o.output)
	item.id, item.previous = fmt.Sprint("item_", o.id, "_", index), o.lastOutput
	if o.last == o.lastOutput {
		o.last = item.id
	}
	o.lastOutput = item.id
	o.output = append(o.output, item)
	o.emit("response.output_item.added", fields{"response_id": o.id, "output_index": index, "item": o.view(item, "in_progress")})
	o.itemBegins(o.view(item, "in_progress"), item.previous)
	return index
}

// view returns an item as the client sees it.
func (o *openAIEvents) view(item *outputItem, status string) fields {
	f := fields{"id": item.id, "object": "realtime.item", "status": status}
	if item.call {
		f["type"], f["call_id"], f["name"], f["arguments"] = "function_call", item.callID, item.name, string(item.text)
		return f
	}
	kind := "output_text"
	if o.beta {
		kind = "text"
	}
	content := []fields{}
	if status != "in_progress" {
		content = append(content, fields{"type": kind, "text": string(item.text)})
	}
	f["type"], f["role"], f["content"] = "message", "assistant", content
	return f
}

func (o *openAIEvents) token(text string) {
	index := len(o.output) - 1
	if index < 0 || o.output[index].call {
		index = o.open(&outputItem{})
		part := o.about(index)
		part["content_index"], part["part"] = 0, fields{"type": "text", "text": ""}
		o.emit("response.content_part.added", part)
	}
	o.output[index].text = append(o.output[index].text, text...)
	delta := o.about(index)
	delta["content_index"], delta["delta"] = 0, text
	o.emit(o.textEvent("delta"), delta)
}

func (o *openAIEvents) toolCall(m *toolCallMessage) {
	index := slices.IndexFunc(o.output, func(item *outputItem) bool { return item.call && item.callID == m.ID })
	if index < 0 {
		index = o.open(&outputItem{call: true, callID: m.ID, name: m.Name})
	}
	if m.Arguments != "" {
		o.output[index].text = append(o.output[index].text, m.Arguments...)
		delta := o.about(index)
		delta["call_id"], delta["delta"] = m.ID, m.Arguments
		o.emit("response.function_call_arguments.delta", delta)
	}
	if m.Done {
		o.close(index, "completed")
	}
}

// close closes an item that is open.
func (o *openAIEvents) close(index int, status string) {
	item := o.output[index]
	if item.done {
		return
	}
	item.done = true
	text := o.about(index)
	if item.call {
		text["call_id"], text["name"], text["arguments"] = item.callID, item.name, string(item.text)
		o.emit("response.function_call_arguments.done", text)
	} else {
		part := o.about(index)
		text["content_index"], text["text"] = 0, string(item.text)
		o.emit(o.textEvent("done"), text)
		part["content_index"], part["part"] = 0, fields{"type": "text", "text": string(item.text)}
		o.emit("response.content_part.done", part)
	}
	o.itemEnds(o.view(item, status), item.previous)
	o.emit("response.output_item.done", fields{"response_id": o.id, "output_index": index, "item": o.view(item, status)})
}

// response returns the response as the client sees it.
func (o *openAIEvents) response(status string, details, usage any) fields {
	output := []fields{}
	for _, item := range o.output {
		output = append(output, o.view(item, itemStatus(status)))
	}
	return fields{"id": o.id, "object": "realtime.response", "status": status, "status_details": details, "output": output,
		"output_modalities": []string{"text"}, "usage": usage, "metadata": o.metadata}
}

// itemStatus returns the status of the items of a response that ends with this status.
func itemStatus(response string) string {
	if response == "completed" {
		return response
	}
	return "incomplete"
}

// end closes all items and ends the response.
func (o *openAIEvents) end(status string, details, usage any) {
	for i := range o.output {
		o.close(i, itemStatus(status))
	}
	o.emit("response.done", fields{"response": o.response(status, details, usage)})
	o.id, o.output = "", nil
}

// final ends a response that was successful, cut short, cancelled or broken off by its engine.
func (o *openAIEvents) final(m *finalMessage) {
	status, reason, finish := "completed", "", ""
	if m.Finish != nil {
		finish = *m.Finish
	}
	switch finish {
	case "length":
		status, reason = "incomplete", "max_output_tokens"
	case "content_filter":
		status, reason = "incomplete", finish
	case finishCancelled:
		status, reason = finishCancelled, "client_cancelled"
	}
	var details any
	if reason != "" {
		details = fields{"type": status, "reason": reason}
	}
	if fault := openai.BrokenOff(finish); fault != nil {
		status, details = "failed", failedDetails(fault.Type(), string(fault.Code), fault.Message)
	}
	o.end(status, details, usageView(&m.Usage))
}

// failedDetails are the details of a response that has failed.
func failedDetails(kind, code, message string) fields {
	return fields{"type": "failed", "error": fields{"type": kind, "code": code, "message": message}}
}

// usageView returns a usage as the client sees it.
func usageView(u *usage) fields {
	f := fields{"output_tokens": u.Completion, "output_token_details": fields{"text_tokens": u.Completion, "audio_tokens": 0}}
	if u.Estimated {
		f["estimated"] = true
	}
	if u.Prompt != nil {
		f["input_tokens"], f["total_tokens"] = *u.Prompt, *u.Total
		f["input_token_details"] = fields{"cached_tokens": u.Details.Cached, "text_tokens": *u.Prompt, "audio_tokens": 0}
	}
	return f
}

// failed ends a response that has failed, and tells the error.
func (o *openAIEvents) failed(m *errorMessage) {
	var read struct{ Type, Code, Message string }
	_ = json.Unmarshal(m.Error, &read) // it was just made
	if m.RequestID != "" && m.RequestID == o.id {
		o.end("failed", failedDetails(read.Type, read.Code, read.Message), nil)
	}
	o.emit("error", fields{"error": m.Error})
}

// openAIError returns an error as the client sees it. eventID is that of the client's event.
func openAIError(fault *openai.Error, eventID string) fields {
	f := fields{"type": fault.Type(), "code": cmp.Or(string(fault.Code), "invalid_request"), "message": fault.Message, "param": nil, "event_id": nil}
	if fault.Param != "" {
		f["param"] = fault.Param
	}
	if eventID != "" {
		f["event_id"] = eventID
	}
	return f
}
