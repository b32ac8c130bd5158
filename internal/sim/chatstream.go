package sim

import (
	"slices"
	"strconv"
	"time"
)

// chatStream renders a chat, or a stream of the same form, as chunks.
type chatStream struct {
	handler    *handler
	generation *generation
	options    *sampling
	// head is the beginning of every event.
	head []byte
	// buf is reused for every event.
	buf []byte
	// roleSent tells, by choice, whether the role was sent.
	roleSent []bool
}

func newChatStream(c *handler, g *generation, opts *sampling, id string) *chatStream {
	return &chatStream{
		handler: c, generation: g, options: opts, roleSent: make([]bool, len(g.choices)),
		head: chunkHead(id, "chat.completion.chunk", c.modelName()),
	}
}

// chunkHead returns the beginning that all chunks of a response share, up to their choices.
func chunkHead(id, object, model string) []byte {
	b := appendString([]byte(`data: {"id":`), id)
	b = append(b, `,"object":"`+object+`","created":`...)
	b = strconv.AppendInt(b, time.Now().Unix(), 10)
	b = append(b, `,"model":`...)
	b = appendString(b, model)
	return append(b, `,"choices":[`...)
}

// run sends the headers and the whole stream.
func (s *chatStream) run() error { return s.handler.stream(s.generation, s, s.options, s.head) }

// stream sends the headers, the chunks of a generation, its usage if the request asked for it, and
// the end marker. head is the beginning of every event.
func (h *handler) stream(g *generation, chunks sink, opts *sampling, head []byte) error {
	if err := h.startEvents(); err != nil {
		return err
	}
	if err := g.stream(h.r.Context(), chunks); err != nil {
		return err
	}
	if opts.StreamOptions.IncludeUsage {
		b := slices.Concat(head, []byte(`],"usage":`))
		if err := h.sendEvent(append(appendUsage(b, g.usage()), "}\n\n"...)); err != nil {
			return err
		}
	}
	if err := h.sendEvent([]byte("data: [DONE]\n\n")); err != nil {
		return err
	}
	return h.closeBody()
}

// token implements sink. Like vLLM, it sends the role with the first token and not before.
func (s *chatStream) token(n, i int) error {
	a := s.generation.choices[n].answer
	p := a.token(i)
	if !s.roleSent[n] {
		s.roleSent[n] = true
		role := `"role":"assistant","content":""`
		if p.opensCall {
			role = `"role":"assistant","content":null`
		}
		if err := s.send(append(s.delta(n), role...), ""); err != nil {
			return err
		}
	}
	b := s.delta(n)
	switch {
	case p.opensCall:
		b = appendCallHead(b, p.call-1, a.calls[p.call-1])
	case p.call > 0:
		b = appendArguments(b, p.call-1, p.text)
	default:
		b = appendString(append(b, `"content":`...), p.text)
	}
	return s.send(b, "")
}

// appendCallHead appends the delta that opens a tool call.
func appendCallHead(b []byte, index int, t toolCall) []byte {
	b = strconv.AppendInt(append(b, `"tool_calls":[{"index":`...), int64(index), 10)
	b = appendString(append(b, `,"id":`...), t.id)
	b = appendString(append(b, `,"type":"function","function":{"name":`...), t.name)
	return append(b, `,"arguments":""}}]`...)
}

// appendArguments appends the delta that continues a tool call.
func appendArguments(b []byte, index int, text string) []byte {
	b = strconv.AppendInt(append(b, `"tool_calls":[{"index":`...), int64(index), 10)
	b = appendString(append(b, `,"function":{"arguments":`...), text)
	return append(b, "}}]"...)
}

// finish implements sink.
func (s *chatStream) finish(n int) error {
	return s.send(s.delta(n), s.generation.choices[n].answer.finish)
}

// delta begins a chunk of choice n.
func (s *chatStream) delta(n int) []byte {
	b := s.buf[:0]
	b = append(b, s.head...)
	b = strconv.AppendInt(append(b, `{"index":`...), int64(n), 10)
	return append(b, `,"delta":{`...)
}

// send completes a chunk and sends it.
func (s *chatStream) send(b []byte, finish string) error {
	s.buf = appendChunkEnd(append(b, '}'), finish, s.options, s.generation)
	return s.handler.sendEvent(s.buf)
}

// appendChunkEnd ends a chunk of one choice. finish is empty except for the last chunk of the
// choice.
func appendChunkEnd(b []byte, finish string, opts *sampling, g *generation) []byte {
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	if finish == "" {
		b = append(b, "null}]"...)
	} else {
		b = append(b, `"`+finish+`"}]`...)
	}
	if opts.StreamOptions.ContinuousUsage {
		b = appendUsage(append(b, `,"usage":`...), g.usage())
	}
	return append(b, "}\n\n"...)
}
