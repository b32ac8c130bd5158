package realtime

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// conversation has the messages so far, and the parameters of turns. It is a value: a change is
// tried on a copy, and slices and maps are not changed in place.
type conversation struct {
	model    string
	tools    json.RawMessage
	params   map[string]json.RawMessage
	messages []json.RawMessage
	// size is the size of the conversation, and limit the greatest size, in bytes.
	size, limit int
	// tooLarge says that an answer did not fit, so that the conversation cannot continue.
	tooLarge bool
}

// with returns the conversation as a start message changes it.
func (c conversation) with(m *message) (conversation, *openai.Error) {
	if m.Model != "" {
		c.model = m.Model
	}
	if m.Tools != nil {
		c.tools = m.Tools
		if string(bytes.Join(bytes.Fields(m.Tools), nil)) == "[]" {
			c.tools = nil
		}
	}
	switch {
	case m.Messages != nil:
		c.messages, c.tooLarge = m.Messages, false
	case m.Message != nil:
		c.messages = append(slices.Clip(c.messages), m.Message)
	}
	if len(c.messages) == 0 {
		return c, invalid("messages", "messages is missing: there is no conversation that could go on.")
	}
	return c.updated(m.Params)
}

// updated returns the conversation with other parameters.
func (c conversation) updated(params map[string]json.RawMessage) (conversation, *openai.Error) {
	if len(params) > 0 {
		c.params = maps.Clone(c.params)
		if c.params == nil {
			c.params = map[string]json.RawMessage{}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if fault := checkParam(name, params[name]); fault != nil {
			return c, fault
		}
		c.params[name] = params[name]
		if isNull(params[name]) {
			delete(c.params, name)
		}
	}
	return c.measure()
}

// checkParam refuses parameters that a client cannot set.
func checkParam(name string, value json.RawMessage) *openai.Error {
	switch name {
	case "model", "messages", "tools", "request_id":
		return invalid("params."+name, name+" is a field of start and no parameter.")
	case "stream", "stream_options":
		return invalid("params."+name, name+" is no parameter here: every turn is streamed, with its usage.")
	case "n":
		if !isNull(value) && string(value) != "1" {
			return invalid("params.n", "n can only be 1.")
		}
	}
	return nil
}

func (c conversation) added(messages ...json.RawMessage) (conversation, *openai.Error) {
	c.messages = append(slices.Clip(c.messages), messages...)
	return c.measure()
}

// measure returns the conversation with its size, or an error if it is too large.
func (c conversation) measure() (conversation, *openai.Error) {
	c.size = len(c.tools)
	for name, value := range c.params {
		c.size += len(name) + len(value)
	}
	for _, m := range c.messages {
		c.size += len(m)
	}
	if c.tooLarge || c.size > c.limit {
		return c, tooLarge()
	}
	return c, nil
}

func tooLarge() *openai.Error {
	return openai.Errorf(openai.CodeRequestTooLarge, "The conversation has become too large: begin a new one, with messages.")
}

// body returns the request for the next turn. Without a request id nobody can join the turn.
func (c conversation) body(requestID string) []byte {
	b := append(make([]byte, 0, c.size+256), '{')
	if c.model != "" { // else the relay names the model of the request
		b = append(append(append(b, `"model":`...), openai.Encode(c.model)...), ',')
	}
	b = append(b, `"messages":[`...)
	for i, m := range c.messages {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, m...)
	}
	b = append(b, `],"stream":true,"stream_options":{"include_usage":true}`...)
	if c.tools != nil {
		b = append(append(b, `,"tools":`...), c.tools...)
	}
	if requestID != "" {
		b = append(append(b, `,"request_id":`...), openai.Encode(requestID)...)
	}
	for _, name := range slices.Sorted(maps.Keys(c.params)) { // sorted, so that the same turn has the same body
		b = append(append(append(b, ','), openai.Encode(name)...), ':')
		b = append(b, c.params[name]...)
	}
	return append(b, '}')
}

// unforced returns the conversation without a tool_choice that forces the model to call a tool.
func (c conversation) unforced() conversation {
	switch string(c.params["tool_choice"]) {
	case "", `"auto"`, `"none"`:
		return c
	}
	c.params = maps.Clone(c.params)
	delete(c.params, "tool_choice")
	return c
}

// withoutToolSettings returns the conversation without settings of tools that mean nothing, because
// there are no tools. Clients of OpenAI's protocol send them always, and engines refuse them.
func (c conversation) withoutToolSettings() conversation {
	if c.tools != nil {
		return c
	}
	c.params = maps.Clone(c.params)
	delete(c.params, "parallel_tool_calls")
	switch string(c.params["tool_choice"]) {
	case `"auto"`, `"none"`:
		delete(c.params, "tool_choice")
	}
	return c
}

// answer is what the model has said in a turn.
type answer struct {
	text, refusal []byte
	calls         []*toolCall
}

// message returns the answer as a message of the conversation. nil: the answer is empty.
func (a *answer) message() json.RawMessage {
	type function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	type call struct {
		ID       string   `json:"id"`
		Type     string   `json:"type"`
		Function function `json:"function"`
	}
	var m struct {
		Role    string  `json:"role"`
		Content *string `json:"content"`
		Refusal string  `json:"refusal,omitempty"`
		Calls   []call  `json:"tool_calls,omitempty"`
	}
	if len(a.text)+len(a.refusal)+len(a.calls) == 0 {
		return nil
	}
	m.Role, m.Refusal = "assistant", string(a.refusal)
	if text := string(a.text); text != "" {
		m.Content = &text
	}
	for _, c := range a.calls {
		m.Calls = append(m.Calls, call{ID: c.id, Type: "function", Function: function{c.name, string(c.arguments)}})
	}
	return openai.Encode(m)
}
