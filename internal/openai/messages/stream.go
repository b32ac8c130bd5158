package messages

import (
	"encoding/json"
	"maps"
	"strconv"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/delta"
	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
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
	// Of a tool call openTool is the number, and arguments are those that have come.
	blocks    int
	open      blockKind
	openTool  int
	arguments arguments
	// waiting are the blocks that begin after the open tool call, and waitingBytes what they count
	// of maxWaiting.
	waiting      []waitingBlock
	waitingBytes int
	// id is the id of the chat.
	id string
	// tools has the number of each tool call that has begun or waits.
	tools map[int]bool
	calls delta.Calls
	// finish is how the answer has ended, and usage what it has used so far.
	finish Finish
	usage  sse.Usage
}

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
	c.tools, c.waiting = maps.Clone(s.tools), cloneWaiting(s.waiting)
	c.calls = s.calls.Clone()
	return c
}

// AppendError appends the event that ends a stream with an error.
func AppendError(dst []byte, e *openai.Error) []byte {
	return appendEvent(dst, "error", e.MessagesBody())
}

// AppendPing appends an event that means nothing.
func AppendPing(dst []byte) []byte { return appendEvent(dst, "ping", []byte(`{"type":"ping"}`)) }

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
		s.dst = AppendError(s.dst, openai.ReportedError(e.Data))
		return
	}
	s.begin(e.Data)
	if u := s.chunk.Usage; s.chunk.HasUsage { // engines count up
		s.usage = sse.Usage{Prompt: max(s.usage.Prompt, u.Prompt), Completion: max(s.usage.Completion, u.Completion), Cached: max(s.usage.Cached, u.Cached)}
	}
	deltas, _ := s.deltas.Read(e.Data) // it was read as JSON before
	for i := range deltas {
		if deltas[i].Choice == 0 && !s.ended {
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
	var chunk struct {
		ID    rawText
		Model string
	}
	_ = json.Unmarshal(data, &chunk) // it was read as JSON before; what is missing is empty
	s.id = string(chunk.ID)
	m := newMessage(s.id, chunk.Model)
	m.Usage = usageOf(s.chunk.Usage)
	s.append("message_start", map[string]any{"type": "message_start", "message": m})
}

// delta translates a delta of the model's output.
func (s *Stream) delta(d *delta.Delta) {
	switch d.Kind {
	case delta.Reasoning:
		if s.Thinking {
			s.add(thinkingBlock, d)
		}
	case delta.ToolCall:
		s.calls.Resolve(d)
		s.add(toolBlock, d)
	case delta.Text, delta.Refusal:
		s.add(textBlock, d)
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

func (s *Stream) end() {
	s.ended = true
	if fault := openai.BrokenOff(s.finish.Reason); fault != nil {
		s.dst = AppendError(s.dst, fault)
		return
	}
	s.begin(nil)
	s.openWaiting(true)
	s.closeBlock()
	reason, sequence := s.finish.stop(len(s.tools) > 0, s.Stops)
	s.append("message_delta", map[string]any{"type": "message_delta", "usage": usageOf(s.usage),
		"delta": map[string]any{"stop_reason": reason, "stop_sequence": sequence}})
	s.append("message_stop", map[string]string{"type": "message_stop"})
}

func usageOf(u sse.Usage) usage {
	cached := min(u.Cached, u.Prompt)
	return usage{Input: u.Prompt - cached, Cached: cached, Output: u.Completion}
}

func (s *Stream) append(name string, event any) {
	s.dst = appendEvent(s.dst, name, openai.Encode(event))
}

func appendEvent(dst []byte, name string, data []byte) []byte {
	dst = append(append(append(dst, "event: "...), name...), '\n')
	return sse.AppendData(dst, data)
}

// appendDelta appends a piece of the last block. It allocates nothing but dst, because there is one
// such event for each token.
func (s *Stream) appendDelta(kind, field string, text []byte) {
	b := s.dst
	b = append(b, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":"...)
	b = strconv.AppendInt(b, int64(s.blocks-1), 10)
	b = append(append(b, `,"delta":{"type":"`...), kind...)
	b = append(append(append(b, `","`...), field...), `":`...)
	s.dst = append(jsonscan.AppendQuoted(b, text), "}}\n\n"...)
}
