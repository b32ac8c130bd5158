package sim

import (
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// responseStream renders the events of the Responses API. Each output item is opened, filled and
// closed before the next.
type responseStream struct {
	*response
	// sequenceNumber is the sequence_number of the next event.
	sequenceNumber int
	// index is the index of the open output item; -1 before the first.
	index int
	// output are the finished output items.
	output []any
	// open is the output item that is being filled; nil if there is none.
	open *openItem
	// buf is reused for every delta.
	buf []byte
}

// openItem is the output item that is being filled.
type openItem struct {
	id   string
	call toolCall // zero for a message
	text strings.Builder
}

func newResponseStream(r *response) *responseStream {
	return &responseStream{response: r, index: -1, output: []any{}}
}

// run sends the headers and the whole stream. Like vLLM, it sends the first two events at once.
func (s *responseStream) run() error {
	if err := s.handler.startEvents(); err != nil {
		return err
	}
	for _, name := range []string{"response.created", "response.in_progress"} {
		if err := s.sendEvent(name, map[string]any{"response": s.object("in_progress", []any{})}); err != nil {
			return err
		}
	}
	if err := s.generation.stream(s.handler.r.Context(), s); err != nil {
		return err
	}
	return s.handler.closeBody()
}

// token implements sink.
func (s *responseStream) token(_, i int) error {
	p := s.answer().token(i)
	if p.opensCall {
		if err := s.closeItem("completed"); err != nil {
			return err
		}
		return s.openCall(s.answer().calls[p.call-1])
	}
	if s.open == nil {
		if err := s.openMessage(); err != nil {
			return err
		}
	}
	s.open.text.WriteString(p.text)
	return s.delta(p)
}

// finish implements sink.
func (s *responseStream) finish(int) error {
	if err := s.closeItem(s.status()); err != nil {
		return err
	}
	return s.sendEvent("response."+s.status(), map[string]any{"response": s.object(s.status(), s.output)})
}

// openMessage opens an output item for text.
func (s *responseStream) openMessage() error {
	s.open = &openItem{id: s.itemID("")}
	s.index++
	if err := s.sendEvent("response.output_item.added", s.withIndex(map[string]any{"item": s.message("in_progress", "")})); err != nil {
		return err
	}
	return s.sendEvent("response.content_part.added", s.withContentIndex(map[string]any{"part": textPart("")}))
}

func (s *responseStream) openCall(t toolCall) error {
	s.open = &openItem{id: s.itemID(t.id), call: toolCall{id: t.id, name: t.name}}
	s.index++
	return s.sendEvent("response.output_item.added", s.withIndex(map[string]any{"item": s.functionCall("in_progress", s.open.call)}))
}

// delta sends the event for one token. This event is frequent, so it is built by appending.
func (s *responseStream) delta(p piece) error {
	name := "response.output_text.delta"
	if p.call > 0 {
		name = "response.function_call_arguments.delta"
	}
	b := s.buf[:0]
	b = append(b, "event: "+name+"\ndata: {\"type\":\""+name+"\",\"sequence_number\":"...)
	b = strconv.AppendInt(b, int64(s.sequenceNumber), 10)
	b = strconv.AppendInt(append(b, `,"output_index":`...), int64(s.index), 10)
	b = appendString(append(b, `,"item_id":`...), s.open.id)
	if p.call == 0 {
		b = append(b, `,"content_index":0,"logprobs":[]`...)
	}
	b = appendString(append(b, `,"delta":`...), p.text)
	b = append(b, "}\n\n"...)
	s.buf = b
	s.sequenceNumber++
	return s.handler.sendEvent(s.buf)
}

// closeItem closes the open item, if there is one.
func (s *responseStream) closeItem(status string) error {
	if s.open == nil {
		return nil
	}
	defer func() { s.open = nil }()
	text := s.open.text.String()
	if s.open.call.id != "" {
		s.open.call.arguments = text
		return s.closeCallItem()
	}
	if err := s.sendEvent("response.output_text.done", s.withContentIndex(map[string]any{"text": text, "logprobs": []any{}})); err != nil {
		return err
	}
	if err := s.sendEvent("response.content_part.done", s.withContentIndex(map[string]any{"part": textPart(text)})); err != nil {
		return err
	}
	return s.finishItem(s.message(status, text))
}

// closeCallItem closes the open item of a tool call.
func (s *responseStream) closeCallItem() error {
	t := s.open.call
	err := s.sendEvent("response.function_call_arguments.done", s.withIndex(map[string]any{
		"item_id": s.open.id, "name": t.name, "arguments": t.arguments,
	}))
	if err != nil {
		return err
	}
	return s.finishItem(s.functionCall("completed", t))
}

// finishItem sends the last event of an item and adds the item to the output.
func (s *responseStream) finishItem(item any) error {
	s.output = append(s.output, item)
	return s.sendEvent("response.output_item.done", s.withIndex(map[string]any{"item": item}))
}

// withIndex adds the index of the open item to an event.
func (s *responseStream) withIndex(event map[string]any) map[string]any {
	event["output_index"] = s.index
	return event
}

// withContentIndex adds the position of the text part of the open item to an event.
func (s *responseStream) withContentIndex(event map[string]any) map[string]any {
	event["item_id"], event["content_index"] = s.open.id, 0
	return s.withIndex(event)
}

func (s *responseStream) sendEvent(name string, event map[string]any) error {
	event["type"], event["sequence_number"] = name, s.sequenceNumber
	s.sequenceNumber++
	return s.handler.sendEvent([]byte("event: " + name + "\ndata: " + string(openai.Encode(event)) + "\n\n"))
}
