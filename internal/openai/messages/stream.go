package messages

import (
	"encoding/json"
	"maps"
	"strconv"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/delta"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// Stream translates the events of one chat, in order, into those of the Messages API. It is for one
// goroutine. The usage comes with the end of the stream, so that message_start has none unless the
// engine reports it before.
type Stream struct {
	Options

	scanner sse.Scanner
	deltas  delta.Reader
	chunk   sse.Chunk
	// dst is where Append appends to.
	dst []byte

	// begun and ended say that message_start and message_stop, or an error, were appended.
	begun, ended bool
	// blocks counts the blocks that were begun. open is the kind of the last one while it is open.
	blocks int
	open   blockKind
	// id is the id of the chat.
	id string
	// tools has the index of the block of each tool call.
	tools map[int]int
	// finish is how the answer has ended, and usage what it has used so far.
	finish Finish
	usage  sse.Usage
}

// blockKind is the kind of a block.
type blockKind uint8

const (
	noBlock blockKind = iota
	textBlock
	thinkingBlock
	toolBlock
)

// Append appends the translation of whole events, which may be none. Comments stay.
func (s *Stream) Append(dst, events []byte) []byte {
	s.dst = dst
	s.scanner.Feed(events)
	for s.scanner.Next() {
		if e := s.scanner.Event(); !s.ended {
			s.event(e)
		}
	}
	dst, s.dst = s.dst, nil
	return dst
}

// Clone returns a stream that goes on as this one does. Neither changes the other.
func (s *Stream) Clone() Stream {
	c := *s
	c.scanner, c.deltas, c.chunk, c.dst = s.scanner.Clone(), delta.Reader{}, sse.Chunk{}, nil
	c.tools = maps.Clone(s.tools)
	return c
}

// AppendError appends the event that ends a stream with an error.
func AppendError(dst []byte, e *openai.Error) []byte {
	return appendEvent(dst, "error", e.MessagesBody())
}

// AppendPing appends an event that means nothing.
func AppendPing(dst []byte) []byte { return appendEvent(dst, "ping", []byte(`{"type":"ping"}`)) }

// event translates one event.
func (s *Stream) event(e *sse.Event) {
	switch {
	case e.IsDone():
		s.end()
		return
	case e.IsComment():
		s.dst = sse.AppendRaw(s.dst, e.Raw)
		return
	}
	if !s.chunk.Read(e.Data) {
		return // the relay lets no such event pass
	}
	if s.chunk.Error || string(e.Type) == "error" {
		s.ended = true
		said := openai.ParseEngineError(e.Data)
		s.dst = AppendError(s.dst, &openai.Error{Code: openai.Code(said.Code), Status: said.Status, Message: said.Message, Param: said.Param})
		return
	}
	s.begin(e.Data)
	if s.chunk.HasUsage {
		s.usage = s.chunk.Usage
	}
	deltas, _ := s.deltas.Read(e.Data) // it was read as JSON before
	for i := range deltas {
		if deltas[i].Choice == 0 {
			s.delta(&deltas[i])
		}
	}
	for _, c := range s.chunk.Choices {
		if c.Index == 0 && len(c.Finish) > 0 {
			s.readFinish(e.Data, string(c.Finish))
		}
	}
}

// begin appends message_start, unless it was appended before.
func (s *Stream) begin(data []byte) {
	if s.begun {
		return
	}
	s.begun = true
	var chunk struct{ ID, Model string }
	_ = json.Unmarshal(data, &chunk) // it was read as JSON before; what is missing is empty
	s.id = chunk.ID
	m := newMessage(chunk.ID, chunk.Model)
	m.Usage = usageOf(s.chunk.Usage)
	s.append("message_start", map[string]any{"type": "message_start", "message": m})
}

// delta translates a delta of the model's output.
func (s *Stream) delta(d *delta.Delta) {
	switch d.Kind {
	case delta.Reasoning:
		if s.Thinking {
			s.openBlock(thinkingBlock, outBlock{Type: "thinking", Thinking: new(string), Signature: new(string)})
			s.appendDelta(s.blocks-1, "thinking_delta", "thinking", d.Text)
		}
	case delta.ToolCall:
		at, known := s.tools[d.Tool]
		if !known {
			at = s.beginTool(d)
		}
		if len(d.Text) > 0 {
			s.appendDelta(at, "input_json_delta", "partial_json", d.Text)
		}
	case delta.Text, delta.Refusal:
		s.openBlock(textBlock, outBlock{Type: "text", Text: new(string)})
		s.appendDelta(s.blocks-1, "text_delta", "text", d.Text)
	}
}

// openBlock begins a block of this kind, unless the last one is open and of the same kind.
func (s *Stream) openBlock(kind blockKind, b outBlock) {
	if s.open == kind && kind != toolBlock {
		return
	}
	s.closeBlock()
	s.append("content_block_start", map[string]any{"type": "content_block_start", "index": s.blocks, "content_block": b})
	s.open = kind
	s.blocks++
}

// beginTool begins the block of a tool call and returns its index.
func (s *Stream) beginTool(d *delta.Delta) int {
	id := string(d.ID)
	if id == "" {
		id = toolID(s.id, d.Tool)
	}
	s.openBlock(toolBlock, outBlock{Type: "tool_use", ID: id, Name: string(d.Name), Input: json.RawMessage("{}")})
	if s.tools == nil {
		s.tools = map[int]int{}
	}
	s.tools[d.Tool] = s.blocks - 1
	return s.blocks - 1
}

// closeBlock ends the block that is open.
func (s *Stream) closeBlock() {
	if s.open != noBlock {
		s.append("content_block_stop", map[string]any{"type": "content_block_stop", "index": s.blocks - 1})
		s.open = noBlock
	}
}

// readFinish reads why the answer has ended. Only the first choice is an answer of the Messages
// API: the client may have asked for several, and a chunk may list them in any order. reason is the
// finish_reason of that choice.
func (s *Stream) readFinish(data []byte, reason string) {
	s.finish = Finish{Reason: reason}
	var chunk struct {
		Choices openai.List[struct {
			Index json.Number
			Finish
		}]
	}
	if json.Unmarshal(data, &chunk) != nil {
		return
	}
	for i, c := range chunk.Choices {
		if c.Index == "0" || c.Index == "" && i == 0 {
			s.finish = c.Finish
			return
		}
	}
}

// end appends the end of the stream.
func (s *Stream) end() {
	s.ended = true
	s.begin(nil)
	s.closeBlock()
	reason, sequence := s.finish.stop(len(s.tools) > 0)
	s.append("message_delta", map[string]any{"type": "message_delta", "usage": usageOf(s.usage),
		"delta": map[string]any{"stop_reason": reason, "stop_sequence": sequence}})
	s.append("message_stop", map[string]string{"type": "message_stop"})
}

func usageOf(u sse.Usage) usage {
	cached := min(u.Cached, u.Prompt)
	return usage{Input: u.Prompt - cached, Cached: cached, Output: u.Completion}
}

func (s *Stream) append(name string, event any) { s.dst = appendEvent(s.dst, name, marshal(event)) }

func appendEvent(dst []byte, name string, data []byte) []byte {
	dst = append(append(append(dst, "event: "...), name...), '\n')
	return sse.AppendData(dst, data)
}

// appendDelta appends a piece of a block. It allocates nothing but dst, because there is one such
// event for each token.
func (s *Stream) appendDelta(block int, kind, field string, text []byte) {
	b := s.dst
	b = append(b, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":"...)
	b = strconv.AppendInt(b, int64(block), 10)
	b = append(append(b, `,"delta":{"type":"`...), kind...)
	b = append(append(append(b, `","`...), field...), `":`...)
	s.dst = append(appendText(b, text), "}}\n\n"...)
}

// appendText appends a text as a JSON string. Bytes that are not UTF-8 stay, because the rest of a
// character may come with the next event.
func appendText(dst, text []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range text {
		switch {
		case c == '"', c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
