package sse

import (
	"bytes"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// maxChoices is how many choices of one chunk are listed; OpenAI allows 128. Read skips further
// choices.
const maxChoices = 4096

// maxTokens is more than any response can have.
const maxTokens = 1 << 40

// Usage is what a request has used so far, in tokens.
type Usage struct {
	Prompt     int64 // of the prompt, cached tokens included
	Completion int64
	Cached     int64 // of the prompt, found in the prefix cache
}

// Choice is what a chunk says of one choice.
type Choice struct {
	// Index is the choice's index. A choice without an index has its position in the list, and one
	// whose index is no number has -1.
	Index int64
	// Finish is the finish_reason, usually a part of the data; empty: the choice goes on.
	Finish []byte
	// Token reports whether the choice carries output of the model: text, reasoning, a refusal or a
	// tool call. A role alone is no output.
	Token bool
}

// Chunk is what a gateway has to know of an event's data. A Chunk that is used for many events
// allocates nothing.
type Chunk struct {
	// Token reports whether the event carries output of the model. Events of the Responses API have
	// no choices.
	Token bool
	// Error reports whether the event is an engine's error.
	Error bool
	// Bad is set by Tracker.See: the data is no whole JSON object.
	Bad bool
	// Last reports whether the event is the last one of a stream of the Responses API: the answer
	// is complete, or a limit has cut it short.
	Last bool
	// Finish is the finish_reason that the end of a response of the Responses API amounts to: stop,
	// length or content_filter. Empty: the response goes on, or it is of another API.
	Finish string
	// HasUsage reports whether there is a usage, and Told whether its counts can be believed. That
	// is so if the count of the prompt is there, none is something else than a number of tokens,
	// and an engine has counted them.
	HasUsage, Told bool
	Usage          Usage
	// UsageAt is where the usage of a chunk stands in the data. The zero Span: it has none.
	UsageAt jsonscan.Span
	// Choices are the choices that the chunk says something of.
	Choices []Choice

	eventType []byte // the type of an event of the Responses API
	state     []byte // the status of a response of the Responses API
	cause     []byte // why such a response is incomplete
	whole     bool   // the data is such a response, and no event
	hasDelta  bool   // the event has a delta that is not empty
	total     int64  // of a usage, in tokens; 0: none is told
	oddCount  bool   // something else than a count of an engine stands in the place of one
	json      jsonscan.Reader
}

// Read reads the data of a chat.completion.chunk, of a text_completion or of an event of the
// Responses API, or a whole answer. It reports whether the data is a JSON object; of anything else
// the chunk is empty.
func (c *Chunk) Read(data []byte) bool {
	choices := c.Choices[:0]
	*c = Chunk{Choices: choices}
	c.json.Reset(data)
	if c.json.Kind() != '{' {
		return false
	}
	c.members()
	if !c.json.Valid() {
		*c = Chunk{Choices: choices}
		return false
	}
	c.Told = c.Told && !c.oddCount
	c.events()
	for i := range c.Choices {
		c.Token = c.Token || c.Choices[i].Token
	}
	return true
}

// OnlyTotal returns the total of a usage that tells nothing else; 0: there is none such.
func (c *Chunk) OnlyTotal() int64 {
	if c.Told || c.oddCount || c.Usage != (Usage{}) {
		return 0
	}
	return c.total
}

// OnlyError reports whether the data is an error and nothing else: neither choices nor a response
// of the Responses API, which tells its own error.
func (c *Chunk) OnlyError() bool { return c.Error && !c.whole && len(c.Choices) == 0 }

// EndsResponse reports whether the data is a response of the Responses API that has ended, or the
// event that ends one. The engine counts no more tokens of it.
func (c *Chunk) EndsResponse() bool {
	if !c.whole {
		return c.Last || string(c.eventType) == "response.failed"
	}
	switch string(c.state) {
	case "completed", "incomplete", "failed", "cancelled":
		return true
	}
	return false
}

func (c *Chunk) members() {
	r := &c.json
	for more := r.Open('{'); more; more = r.More('{') {
		switch string(r.Name()) {
		case "choices":
			c.choices()
		case "usage":
			r.Kind() // moves to the value
			c.UsageAt.From = r.Pos()
			c.usage()
			c.UsageAt.To = r.Pos()
		case "type":
			c.eventType = r.Text()
		case "delta":
			c.hasDelta = c.filled()
		case "response":
			c.response()
		case "error":
			if !r.Null() {
				c.Error = true
				r.Skip()
			}
		case "object":
			kind := r.Text()
			c.Error, c.whole = string(kind) == "error" || c.Error, string(kind) == "response"
		case "status":
			c.state = r.Text()
		case "incomplete_details":
			c.details()
		default:
			r.Skip()
		}
	}
}

// filled reads any value and reports whether it is a string, a list or an object that is not empty.
func (c *Chunk) filled() bool {
	r := &c.json
	switch r.Kind() {
	case '"':
		raw, _ := r.RawText()
		return len(raw) > 0
	case '[', '{':
		at := r.Value()
		// White space between the brackets would count as content, but engines write none.
		return at.To-at.From > len("[]")
	}
	r.Skip()
	return false
}

func (c *Chunk) choices() {
	r := &c.json
	position := int64(0)
	for more := r.OpenOrSkip('['); more; more = r.More('[') {
		choice := Choice{Index: position}
		position++
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
	r := &c.json
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

// deltaOf reads a choice's delta and reports whether it carries output of the model.
func (c *Chunk) deltaOf() (token bool) {
	r := &c.json
	for more := r.OpenOrSkip('{'); more; more = r.More('{') {
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
	r := &c.json
	if r.Kind() != '{' {
		r.Skip()
		return
	}
	c.HasUsage = true
	for more := r.Open('{'); more; more = r.More('{') {
		switch string(r.Name()) {
		case "prompt_tokens", "input_tokens":
			c.Told = c.count(&c.Usage.Prompt) || c.Told
		case "completion_tokens", "output_tokens":
			c.count(&c.Usage.Completion)
		case "prompt_tokens_details", "input_tokens_details":
			c.cached()
		case "total_tokens":
			c.readTotal()
		case "estimated": // another Sluice says that no engine has counted the tokens
			estimated, _ := r.Bool()
			c.oddCount = c.oddCount || estimated
		default:
			r.Skip()
		}
	}
}

// readTotal reads the total, which matters only where nothing else is told. So any value is
// accepted.
func (c *Chunk) readTotal() {
	if n, ok := c.json.Int(); ok && n <= maxTokens {
		c.total = n
	}
}

// count reads a number of tokens, and reports whether there is one. The larger one counts of a
// number that has two names, because some servers write both, and 0 under one of them.
func (c *Chunk) count(to *int64) bool {
	if c.json.Null() {
		return false
	}
	n, ok := c.json.Int()
	if !ok || n > maxTokens {
		c.oddCount = true
		return false
	}
	*to = max(*to, n)
	return true
}

func (c *Chunk) cached() {
	r := &c.json
	for more := r.OpenOrSkip('{'); more; more = r.More('{') {
		if string(r.Name()) == "cached_tokens" {
			c.count(&c.Usage.Cached)
		} else {
			r.Skip()
		}
	}
}

// response reads the response inside an event of the Responses API.
func (c *Chunk) response() {
	r := &c.json
	for more := r.OpenOrSkip('{'); more; more = r.More('{') {
		switch string(r.Name()) {
		case "usage":
			c.usage()
		case "incomplete_details":
			c.details()
		default:
			r.Skip()
		}
	}
}

// details reads why a response of the Responses API is incomplete.
func (c *Chunk) details() {
	r := &c.json
	for more := r.OpenOrSkip('{'); more; more = r.More('{') {
		if string(r.Name()) == "reason" {
			c.cause = r.Text()
		} else {
			r.Skip()
		}
	}
}

// finishOf returns the finish_reason that a status of the Responses API amounts to.
func (c *Chunk) finishOf(status []byte) string {
	switch {
	case string(status) == "completed":
		return "stop"
	case string(status) != "incomplete":
		return ""
	case string(c.cause) == "content_filter":
		return "content_filter"
	}
	return "length"
}

// events sets what the type of an event of the Responses API means.
func (c *Chunk) events() {
	name, ok := bytes.CutPrefix(c.eventType, []byte("response."))
	switch {
	case c.whole:
		c.Finish = c.finishOf(c.state)
	case string(c.eventType) == "error":
		c.Error = true
	case !ok:
	case string(name) == "completed", string(name) == "incomplete":
		c.Last, c.Finish = true, c.finishOf(name)
	case string(name) == "failed":
		c.Error = true
	case bytes.HasSuffix(name, []byte(".delta")):
		c.Token = c.hasDelta
	}
}
