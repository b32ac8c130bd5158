package messages

import (
	"encoding/json"
	"slices"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/delta"
)

// The blocks of the Messages API come one after the other: a client refuses a piece of a block that
// has stopped. An engine may send the pieces of several tool calls in turns. So a tool call stays
// open until its arguments are whole, and what belongs to other blocks waits until then.

// maxWaiting bounds the blocks that wait for the end of a tool call, in bytes. It is as much as may
// wait for a slow client.
const maxWaiting = 4 << 20

type blockKind uint8

const (
	noBlock blockKind = iota
	textBlock
	thinkingBlock
	toolBlock
)

// waitingBlock is a block that begins when the tool call that is open has its arguments.
type waitingBlock struct {
	kind blockKind
	tool int
	head outBlock
	text []byte
}

// size returns what the block counts of maxWaiting: its texts, and what it takes besides them.
func (w *waitingBlock) size() int { return 256 + len(w.head.ID) + len(w.head.Name) + len(w.text) }

func (s *Stream) add(kind blockKind, d *delta.Delta) {
	switch {
	case s.open == kind && s.openTool == d.Tool:
		s.appendPiece(d.Text)
		s.openWaiting(false)
	case s.isUnfinished():
		s.wait(kind, d)
	case kind == toolBlock && s.tools[d.Tool]: // its block has stopped with whole arguments, which nothing can follow
	default:
		s.beginBlock(kind, d.Tool, s.head(kind, d))
		s.appendPiece(d.Text)
	}
}

// head returns the beginning of the block of a delta.
func (s *Stream) head(kind blockKind, d *delta.Delta) outBlock {
	switch kind {
	case thinkingBlock:
		return outBlock{Type: "thinking", Thinking: new(string), Signature: new(string)}
	case textBlock:
		return outBlock{Type: "text", Text: new(string)}
	}
	if s.tools == nil {
		s.tools = map[int]bool{}
	}
	s.tools[d.Tool] = true
	id := string(d.ID)
	if id == "" {
		id = toolID(s.id, d.Tool)
	}
	return outBlock{Type: "tool_use", ID: id, Name: string(d.Name), Input: json.RawMessage("{}")}
}

// isUnfinished reports whether a tool call is open whose arguments are not whole.
func (s *Stream) isUnfinished() bool { return s.open == toolBlock && !s.arguments.whole() }

// beginBlock ends the block that is open, and begins the next one.
func (s *Stream) beginBlock(kind blockKind, tool int, head outBlock) {
	s.closeBlock()
	s.append("content_block_start", map[string]any{"type": "content_block_start", "index": s.blocks, "content_block": head})
	s.open, s.openTool, s.arguments = kind, tool, arguments{}
	s.blocks++
}

func (s *Stream) appendPiece(text []byte) {
	switch s.open {
	case thinkingBlock:
		s.appendDelta("thinking_delta", "thinking", text)
	case textBlock:
		s.appendDelta("text_delta", "text", text)
	case toolBlock:
		if len(text) > 0 {
			s.arguments.read(text)
			s.appendDelta("input_json_delta", "partial_json", text)
		}
	}
}

// closeBlock ends the block that is open.
func (s *Stream) closeBlock() {
	if s.open != noBlock {
		s.append("content_block_stop", map[string]any{"type": "content_block_stop", "index": s.blocks - 1})
		s.open = noBlock
	}
}

// wait keeps a delta until the tool call that is open has its arguments. A stream of which too much
// waits ends with an error.
func (s *Stream) wait(kind blockKind, d *delta.Delta) {
	at := s.findWaiting(kind, d.Tool)
	if at < 0 {
		if kind == toolBlock && s.tools[d.Tool] {
			return // its block has stopped with whole arguments
		}
		at = len(s.waiting)
		s.waiting = append(s.waiting, waitingBlock{kind: kind, tool: d.Tool, head: s.head(kind, d)})
		s.waitingBytes += s.waiting[at].size()
	}
	s.waiting[at].text = append(s.waiting[at].text, d.Text...)
	if s.waitingBytes += len(d.Text); s.waitingBytes > maxWaiting {
		s.ended, s.waiting = true, nil
		s.dst = AppendError(s.dst, openai.Errorf(openai.CodeUpstreamError, "The engine's tool calls take turns for more than 4 MiB."))
	}
}

// findWaiting returns the index of the waiting block that a delta belongs to, or -1. Texts belong
// together only if nothing was between them.
func (s *Stream) findWaiting(kind blockKind, tool int) int {
	if kind == toolBlock {
		return slices.IndexFunc(s.waiting, func(w waitingBlock) bool { return w.kind == kind && w.tool == tool })
	}
	if last := len(s.waiting) - 1; last >= 0 && s.waiting[last].kind == kind {
		return last
	}
	return -1
}

// openWaiting begins the waiting blocks in order, up to a tool call whose arguments are not whole.
// all says that nothing more comes, so that it begins all of them.
func (s *Stream) openWaiting(all bool) {
	for len(s.waiting) > 0 && (all || !s.isUnfinished()) {
		w := &s.waiting[0]
		s.beginBlock(w.kind, w.tool, w.head)
		s.appendPiece(w.text)
		s.waitingBytes -= w.size()
		s.waiting = s.waiting[1:]
	}
	if len(s.waiting) == 0 {
		s.waiting = nil // its array and texts
	}
}

// cloneWaiting returns a copy of waiting blocks whose texts can grow apart from the originals.
func cloneWaiting(waiting []waitingBlock) []waitingBlock {
	c := slices.Clone(waiting)
	for i := range c {
		c[i].text = slices.Clip(c[i].text)
	}
	return c
}

// arguments says whether the pieces of a call's arguments, which are a JSON object, are whole. It
// only counts brackets outside of strings.
type arguments struct {
	depth                    int
	begun, inString, escaped bool
}

func (a *arguments) whole() bool { return a.begun && a.depth <= 0 }

// read reads the next piece.
func (a *arguments) read(text []byte) {
	for _, c := range text {
		switch {
		case a.escaped:
			a.escaped = false
		case a.inString:
			a.inString, a.escaped = c != '"', c == '\\'
		case c == '"':
			a.inString = true
		case c == '{', c == '[':
			a.begun = true
			a.depth++
		case c == '}', c == ']':
			a.depth--
		}
	}
}
