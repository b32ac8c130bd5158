package sim

import (
	"strconv"
	"strings"
)

// responseStream renders the events of the Responses API. Each output item is opened, filled and closed before the next.
type responseStream struct {
	*response
	number int // sequence_number of the next event
	index  int // of the open output item; -1: none yet
	output []any
	open   *openItem
	buf    []byte
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

// run sends the whole stream, the headers first. The first two events come at once, as with vLLM.
func (s *responseStream) run() error {
	if err := s.call.stream(); err != nil {
		return err
	}
	for _, name := range []string{"response.created", "response.in_progress"} {
		if err := s.tell(name, map[string]any{"response": s.object("in_progress", []any{})}); err != nil {
			return err
		}
	}
	if err := s.gen.stream(s.call.r.Context(), s); err != nil {
		return err
	}
	return s.call.finish()
}

// token implements sink.
func (s *responseStream) token(_, i int) error {
	p := s.answer().at(i)
	if p.head {
		if err := s.shut("completed"); err != nil {
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

// last implements sink.
func (s *responseStream) last(int) error {
	if err := s.shut(s.status()); err != nil {
		return err
	}
	return s.tell("response."+s.status(), map[string]any{"response": s.object(s.status(), s.output)})
}

func (s *responseStream) openMessage() error {
	s.open = &openItem{id: s.itemID("")}
	s.index++
	if err := s.tell("response.output_item.added", s.at(map[string]any{"item": s.message("in_progress", "")})); err != nil {
		return err
	}
	return s.tell("response.content_part.added", s.in(map[string]any{"part": textPart("")}))
}

func (s *responseStream) openCall(t toolCall) error {
	s.open = &openItem{id: s.itemID(t.id), call: toolCall{id: t.id, name: t.name}}
	s.index++
	return s.tell("response.output_item.added", s.at(map[string]any{"item": s.functionCall("in_progress", s.open.call)}))
}

// delta is the one event that is made for every token, so it is put together by hand.
func (s *responseStream) delta(p piece) error {
	name := "response.output_text.delta"
	if p.call > 0 {
		name = "response.function_call_arguments.delta"
	}
	b := s.buf[:0]
	b = append(b, "event: "+name+"\ndata: {\"type\":\""+name+"\",\"sequence_number\":"...)
	b = strconv.AppendInt(b, int64(s.number), 10)
	b = strconv.AppendInt(append(b, `,"output_index":`...), int64(s.index), 10)
	b = appendString(append(b, `,"item_id":`...), s.open.id)
	if p.call == 0 {
		b = append(b, `,"content_index":0,"logprobs":[]`...)
	}
	b = appendString(append(b, `,"delta":`...), p.text)
	b = append(b, "}\n\n"...)
	s.buf = b
	s.number++
	return s.call.event(s.buf)
}

// shut closes the open item, if there is one.
func (s *responseStream) shut(status string) error {
	if s.open == nil {
		return nil
	}
	defer func() { s.open = nil }()
	text := s.open.text.String()
	if s.open.call.id != "" {
		s.open.call.arguments = text
		return s.shutCall()
	}
	if err := s.tell("response.output_text.done", s.in(map[string]any{"text": text, "logprobs": []any{}})); err != nil {
		return err
	}
	if err := s.tell("response.content_part.done", s.in(map[string]any{"part": textPart(text)})); err != nil {
		return err
	}
	return s.done(s.message(status, text))
}

func (s *responseStream) shutCall() error {
	t := s.open.call
	err := s.tell("response.function_call_arguments.done", s.at(map[string]any{
		"item_id": s.open.id, "name": t.name, "arguments": t.arguments,
	}))
	if err != nil {
		return err
	}
	return s.done(s.functionCall("completed", t))
}

func (s *responseStream) done(item any) error {
	s.output = append(s.output, item)
	return s.tell("response.output_item.done", s.at(map[string]any{"item": item}))
}

// at adds the place of the open item, in that of its text part.
func (s *responseStream) at(event map[string]any) map[string]any {
	event["output_index"] = s.index
	return event
}

func (s *responseStream) in(event map[string]any) map[string]any {
	event["item_id"], event["content_index"] = s.open.id, 0
	return s.at(event)
}

// tell sends an event.
func (s *responseStream) tell(name string, event map[string]any) error {
	event["type"], event["sequence_number"] = name, s.number
	s.number++
	return s.call.event([]byte("event: " + name + "\ndata: " + string(marshal(event)) + "\n\n"))
}
