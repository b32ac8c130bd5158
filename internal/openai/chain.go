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
func (r *Request) Chain(body []byte) prefix.Chain {
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
	for _, m := range r.messages {
		if m.lane == laneInstructions {
			c.message(m, prefix.MarkSystem)
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
			c.Mark(marks[m.role])
			c.text(m.text)
		case laneField:
			c.Mark(prefix.MarkField)
			c.text(m.text)
		}
	}
	if r.rest.form != formNone {
		c.message(message{text: r.rest}, prefix.MarkOther)
	}
	return c.Chain()
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

// chaining makes one chain.
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
	if t.form != formParts {
		c.Text(c.body[t.start:t.end])
		return
	}
	var r jsonscan.Reader // Scan has validated the body
	r.Reset(c.body)
	r.Seek(int(t.start))
	for more := r.Open('['); more; more = r.More('[') {
		part, media := partText(&r)
		raw := c.body[part.start:part.end]
		if media {
			c.Media(prefix.Digest(raw))
		} else {
			c.Text(raw)
		}
	}
}
