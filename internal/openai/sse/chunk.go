package sse

import (
	"bytes"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// maxChoices is how many choices of one chunk are told apart; OpenAI allows 128. More are read and not listed.
const maxChoices = 4096

// Usage is what a request has used so far, in tokens.
type Usage struct {
	Prompt     int64 // of the prompt, cached ones included
	Completion int64
	Cached     int64 // of the prompt, found in the prefix cache
}

// Choice is what a chunk says of one choice. A chunk lists those it has something of.
type Choice struct {
	// Index is the choice's own; -1 when it is no number.
	Index int64
	// Finish is why the choice ended, part of the data that was read; empty: it goes on.
	Finish []byte
	// Token says that the chunk carries some of the answer: text, reasoning, a refusal, a tool call. A role alone is none.
	Token bool
}

// Chunk is what a gateway has to know of an event's data. It is read into again and again, and then allocates nothing.
type Chunk struct {
	// Token says that there is some of the answer in it. Events of the Responses API have it without choices.
	Token bool
	// Error says that the engine tells of a failure.
	Error bool
	// Bad says, of an event that a Tracker has seen, that its data is no JSON object, or not whole.
	Bad bool
	// Last says that it is the event which ends a stream of the Responses API, whole or cut short by a limit.
	Last     bool
	HasUsage bool
	Usage    Usage
	Choices  []Choice

	typ   []byte // type of a Responses event
	delta bool   // a Responses event with a delta that is not empty
	r     jsonscan.Reader
}

// Read reads the data of a chat.completion.chunk, a text_completion or an event of the Responses API. It says whether the
// data is a JSON object; of anything else the chunk is empty.
func (c *Chunk) Read(data []byte) bool {
	choices := c.Choices[:0]
	*c = Chunk{Choices: choices}
	c.r.Reset(data)
	if c.r.Kind() != '{' {
		return false
	}
	c.members()
	if !c.r.Valid() {
		*c = Chunk{Choices: choices}
		return false
	}
	c.events()
	for i := range c.Choices {
		c.Token = c.Token || c.Choices[i].Token
	}
	return true
}

func (c *Chunk) members() {
	r := &c.r
	for more := r.Open('{'); more; more = r.More('{') {
		switch string(r.Name()) {
		case "choices":
			c.choices()
		case "usage":
			c.usage()
		case "type":
			c.typ = r.Text()
		case "delta":
			c.delta = c.filled()
		case "response":
			c.response()
		case "error":
			if !r.Null() {
				c.Error = true
				r.Skip()
			}
		case "object":
			c.Error = string(r.Text()) == "error" || c.Error
		default:
			r.Skip()
		}
	}
}

// filled reads a value and says whether it has content: a string, a list or an object that is not empty.
func (c *Chunk) filled() bool {
	r := &c.r
	switch r.Kind() {
	case '"':
		raw, _ := r.RawText()
		return len(raw) > 0
	case '[', '{':
		at := r.Value()
		// Between brackets of an empty one there can be white space, but engines write none.
		return at.To-at.From > len("[]")
	}
	r.Skip()
	return false
}

func (c *Chunk) choices() {
	r := &c.r
	if r.Kind() != '[' {
		r.Skip()
		return
	}
	at := int64(0)
	for more := r.Open('['); more; more = r.More('[') {
		choice := Choice{Index: at} // for who leaves it out
		at++
		if r.Kind() != '{' {
			r.Skip()
			continue
		}
		c.choice(&choice)
		if len(c.Choices) < maxChoices {
			c.Choices = append(c.Choices, choice)
		}
	}
}

func (c *Chunk) choice(to *Choice) {
	r := &c.r
	for more := r.Open('{'); more; more = r.More('{') {
		switch string(r.Name()) {
		case "index":
			n, ok := r.Int()
			if !ok {
				n = -1
			}
			to.Index = n
		case "finish_reason":
			to.Finish = r.Text()
		case "text":
			to.Token = c.filled() || to.Token
		case "delta":
			to.Token = c.deltaOf() || to.Token
		default:
			r.Skip()
		}
	}
}

// deltaOf reads a choice's delta and says whether it carries a token.
func (c *Chunk) deltaOf() (token bool) {
	r := &c.r
	if r.Kind() != '{' {
		r.Skip()
		return false
	}
	for more := r.Open('{'); more; more = r.More('{') {
		switch string(r.Name()) {
		case "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call", "audio":
			token = c.filled() || token
		default:
			r.Skip()
		}
	}
	return token
}

func (c *Chunk) usage() {
	r := &c.r
	if r.Kind() != '{' {
		r.Skip()
		return
	}
	c.HasUsage = true
	for more := r.Open('{'); more; more = r.More('{') {
		switch string(r.Name()) {
		case "prompt_tokens", "input_tokens":
			c.Usage.Prompt, _ = r.Int()
		case "completion_tokens", "output_tokens":
			c.Usage.Completion, _ = r.Int()
		case "prompt_tokens_details", "input_tokens_details":
			c.cached()
		default:
			r.Skip()
		}
	}
}

func (c *Chunk) cached() {
	r := &c.r
	if r.Kind() != '{' {
		r.Skip()
		return
	}
	for more := r.Open('{'); more; more = r.More('{') {
		if string(r.Name()) == "cached_tokens" {
			c.Usage.Cached, _ = r.Int()
		} else {
			r.Skip()
		}
	}
}

// response reads the response inside an event of the Responses API.
func (c *Chunk) response() {
	r := &c.r
	if r.Kind() != '{' {
		r.Skip()
		return
	}
	for more := r.Open('{'); more; more = r.More('{') {
		if string(r.Name()) == "usage" {
			c.usage()
		} else {
			r.Skip()
		}
	}
}

// events reads what the type of a Responses event means.
func (c *Chunk) events() {
	name, ok := bytes.CutPrefix(c.typ, []byte("response."))
	switch {
	case string(c.typ) == "error":
		c.Error = true
	case !ok:
	case string(name) == "completed", string(name) == "incomplete":
		c.Last = true
	case string(name) == "failed":
		c.Error = true
	case bytes.HasSuffix(name, []byte(".delta")):
		c.Token = c.delta
	}
}
