package sim

import (
	"slices"
	"strconv"
	"time"
)

// chatStream renders a chat, and what resembles one, as chunks.
type chatStream struct {
	call *call
	gen  *generation
	opts *sampling
	head []byte // what every event begins with
	buf  []byte
	told []bool // choices whose role has been sent
}

func newChatStream(c *call, g *generation, opts *sampling, id string) *chatStream {
	return &chatStream{
		call: c, gen: g, opts: opts, told: make([]bool, len(g.choices)),
		head: chunkHead(id, "chat.completion.chunk", c.model()),
	}
}

// chunkHead is what all chunks of one response have in common, up to their choices.
func chunkHead(id, object, model string) []byte {
	b := appendString([]byte(`data: {"id":`), id)
	b = append(b, `,"object":"`+object+`","created":`...)
	b = strconv.AppendInt(b, time.Now().Unix(), 10)
	b = append(b, `,"model":`...)
	b = appendString(b, model)
	return append(b, `,"choices":[`...)
}

// run sends the whole stream, the headers first.
func (s *chatStream) run() error {
	if err := s.call.stream(); err != nil {
		return err
	}
	if err := s.gen.stream(s.call.r.Context(), s); err != nil {
		return err
	}
	return s.call.endStream(s.opts, s.head, s.gen)
}

// endStream sends the usage, when it was asked for, and the end marker.
func (c *call) endStream(opts *sampling, head []byte, g *generation) error {
	if opts.StreamOptions.IncludeUsage {
		b := slices.Concat(head, []byte(`],"usage":`))
		if err := c.event(append(appendUsage(b, g.usage()), "}\n\n"...)); err != nil {
			return err
		}
	}
	if err := c.event([]byte("data: [DONE]\n\n")); err != nil {
		return err
	}
	return c.finish()
}

// token implements sink. The role comes with the first token and not before, as with vLLM.
func (s *chatStream) token(n, i int) error {
	a := s.gen.choices[n].answer
	p := a.at(i)
	if !s.told[n] {
		s.told[n] = true
		role := `"role":"assistant","content":""`
		if p.head {
			role = `"role":"assistant","content":null`
		}
		if err := s.send(append(s.delta(n), role...), ""); err != nil {
			return err
		}
	}
	b := s.delta(n)
	switch {
	case p.head:
		b = appendCallHead(b, p.call-1, a.calls[p.call-1])
	case p.call > 0:
		b = appendArguments(b, p.call-1, p.text)
	default:
		b = appendString(append(b, `"content":`...), p.text)
	}
	return s.send(b, "")
}

// appendCallHead opens a tool call, appendArguments continues it.
func appendCallHead(b []byte, index int, t toolCall) []byte {
	b = strconv.AppendInt(append(b, `"tool_calls":[{"index":`...), int64(index), 10)
	b = appendString(append(b, `,"id":`...), t.id)
	b = appendString(append(b, `,"type":"function","function":{"name":`...), t.name)
	return append(b, `,"arguments":""}}]`...)
}

func appendArguments(b []byte, index int, text string) []byte {
	b = strconv.AppendInt(append(b, `"tool_calls":[{"index":`...), int64(index), 10)
	b = appendString(append(b, `,"function":{"arguments":`...), text)
	return append(b, "}}]"...)
}

// last implements sink.
func (s *chatStream) last(n int) error {
	return s.send(s.delta(n), s.gen.choices[n].answer.finish)
}

// delta begins a chunk for a choice.
func (s *chatStream) delta(n int) []byte {
	b := s.buf[:0]
	b = append(b, s.head...)
	b = strconv.AppendInt(append(b, `{"index":`...), int64(n), 10)
	return append(b, `,"delta":{`...)
}

// send completes the chunk and sends it.
func (s *chatStream) send(b []byte, finish string) error {
	s.buf = appendChunkEnd(append(b, '}'), finish, s.opts, s.gen)
	return s.call.event(s.buf)
}

// appendChunkEnd closes a chunk of one choice; finish is empty for all but the choice's last.
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
