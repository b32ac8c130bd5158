package openai

import (
	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
	"github.com/sluice-gateway/sluice/internal/prefix"
)

// Chain returns the beginnings of the prompt, in the order in which models read it: the tools, the
// instructions of a response, then the messages as they come. It is the zero Chain for a request
// without a prompt and for an endpoint that does not generate text. body must be the bytes that
// were scanned.
//
// Texts are hashed as they stand inside of their JSON strings, with escapes, because that costs
// least. So a client that escapes the same text in another way has another chain. Of a message the
// chain has the role, the content, and the fields that templates print: name, tool_calls,
// tool_call_id, function_call, reasoning and reasoning_content. A part that is no text is hashed as
// it stands and counts prefix.MediaBytes. A completion's prompt may be a list of tokens, which is
// hashed as JSON. Of several prompts the chain has the first.
//
// cache_salt and previous_response_id make the chain one of another namespace. Messages after the
// 4,096th are one text.
//
// Home ends with the text of user message number userMessages, and with the prompt if there are
// fewer. For 0 it ends where the first instructions end, and with the prompt if there are none.
func (r *Request) Chain(body []byte, userMessages int) prefix.Chain {
	r.mustBe(body)
	if len(r.messages) == 0 {
		return prefix.Chain{}
	}
	c := chaining{body: body}
	c.Reset()
	c.root("cache_salt", r.salt)
	c.root("previous_response_id", r.previous)
	for _, m := range r.messages {
		if m.lane == laneTools {
			c.message(m, prefix.MarkTools)
		}
	}
	home := homing{left: userMessages}
	for _, m := range r.messages {
		if m.lane == laneInstructions {
			c.message(m, prefix.MarkSystem)
			home.instructed = true
		}
	}
	c.End()
	last := r.lastEnds()
	for i, m := range r.messages {
		if r.rest.form != formNone && i >= r.restAt {
			break
		}
		switch m.lane {
		case laneMessages:
			if i > last {
				c.End()
			}
			home.before(m.role, &c.Builder)
			c.Mark(marks[m.role])
			c.text(m.text)
			home.after(m.role, &c.Builder)
		case laneField:
			c.Mark(prefix.MarkField)
			c.text(m.text)
		}
	}
	if r.rest.form != formNone {
		c.message(message{text: r.rest}, prefix.MarkOther)
	}
	chain := c.Chain()
	chain.Home = home.at(&c.Builder)
	return chain
}

// homing finds Chain.Home.
type homing struct {
	// left is how many user messages are still part of it.
	left int
	// instructed means that instructions are part of it.
	instructed bool
	found      bool
	hash       uint64
}

// before is told of a message that begins.
func (h *homing) before(role role, b *prefix.Builder) {
	switch {
	case role == roleSystem:
		h.instructed = true
	case h.left <= 0 && h.instructed:
		h.end(b)
	}
}

// after is told of a message whose text was written.
func (h *homing) after(role role, b *prefix.Builder) {
	if role != roleUser {
		return
	}
	if h.left--; h.left == 0 {
		h.end(b)
	}
}

// end ends Home here, unless it has ended before.
func (h *homing) end(b *prefix.Builder) {
	if !h.found {
		h.hash, h.found = b.Sum(), true
	}
}

// at returns Home when the whole prompt was written.
func (h *homing) at(b *prefix.Builder) uint64 {
	h.end(b)
	return h.hash
}

// lastEnds returns the index of a message with text. The message and those behind it have all the
// ends that a chain keeps, so no end before needs to be computed.
func (r *Request) lastEnds() int {
	texts, count := 0, len(r.messages)
	if r.rest.form != formNone {
		count = r.restAt
	}
	for i := count - 1; i > 0; i-- {
		m := &r.messages[i]
		if m.lane == laneMessages && m.text.form != formParts && m.text.end > m.text.start {
			if texts++; texts == prefix.MaxEnds {
				return i
			}
		}
	}
	return 0
}

// marks are the marks of messages by their roles.
var marks = [...]prefix.Mark{
	roleOther:     prefix.MarkOther,
	roleSystem:    prefix.MarkSystem,
	roleUser:      prefix.MarkUser,
	roleAssistant: prefix.MarkAssistant,
	roleTool:      prefix.MarkTool,
}

type chaining struct {
	prefix.Builder
	body []byte
}

// root writes the value of a field that makes a namespace.
func (c *chaining) root(field string, t text) {
	if t.end > t.start {
		c.Root(field, c.body[t.start:t.end])
	}
}

// message ends the message before and writes another one.
func (c *chaining) message(m message, mark prefix.Mark) {
	c.End()
	c.Mark(mark)
	c.text(m.text)
}

// text writes a text, or the parts of a content list as one text.
func (c *chaining) text(t text) {
	switch t.form {
	case formParts:
	case formNested:
		c.nested(t)
		return
	default:
		c.Text(c.body[t.start:t.end])
		return
	}
	var r jsonscan.Reader // Scan has validated the body
	r.Reset(c.body)
	r.Seek(int(t.start))
	for more := r.Open('['); more; more = r.More('[') {
		part, media := partText(&r)
		raw := c.body[part.start:part.end]
		switch {
		case media:
			c.Media(prefix.Digest(raw))
		case part.form == formNested:
			c.nested(part)
		default:
			c.Text(raw)
		}
	}
}

// nested writes JSON as one text, but for the parts inside that are no text.
func (c *chaining) nested(t text) {
	from := t.start
	eachMedia(c.body, t, func(media text) {
		c.Text(c.body[from:media.start])
		c.Media(prefix.Digest(c.body[media.start:media.end]))
		from = media.end
	}, nil)
	c.Text(c.body[from:t.end])
}
