package messages

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// completion is what is read of the answer to a chat.
type completion struct {
	ID      rawText `json:"id"`
	Model   string  `json:"model"`
	Choices openai.List[struct {
		Message struct {
			Content          words                   `json:"content"`
			Refusal          string                  `json:"refusal"`
			Reasoning        words                   `json:"reasoning"`
			ReasoningContent words                   `json:"reasoning_content"`
			ToolCalls        openai.List[calledTool] `json:"tool_calls"`
		} `json:"message"`
		Finish
	}] `json:"choices"`
	// Usage is a chatUsage. An answer is whole whatever stands there.
	Usage json.RawMessage `json:"usage"`
}

type chatUsage struct {
	Prompt     count `json:"prompt_tokens"`
	Completion count `json:"completion_tokens"`
	Details    struct {
		Cached count `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// count is a number of tokens. Any other value, and a negative number, is 0.
type count int64

func (c *count) UnmarshalJSON(raw []byte) error {
	var n openai.Integer
	if json.Unmarshal(raw, &n) == nil && n > 0 {
		*c = count(n)
	}
	return nil
}

// calledTool is a tool call of an answer.
type calledTool struct {
	ID       rawText `json:"id"`
	Function struct {
		Name      string  `json:"name"`
		Arguments rawText `json:"arguments"`
	} `json:"function"`
}

// rawText is a string, or the JSON of another value: some engines write ids as numbers, and
// arguments as an object.
type rawText string

// UnmarshalJSON implements json.Unmarshaler. A null changes nothing.
func (t *rawText) UnmarshalJSON(raw []byte) error {
	switch raw[0] {
	case '"', 'n':
		return json.Unmarshal(raw, (*string)(t))
	}
	*t = rawText(raw)
	return nil
}

// words are the texts of a content: a string, or a list of parts as some engines write it.
type words struct{ text, thought string }

// UnmarshalJSON implements json.Unmarshaler. Any other value has no texts.
func (w *words) UnmarshalJSON(raw []byte) error {
	switch raw[0] {
	case '"':
		return json.Unmarshal(raw, &w.text)
	case '[':
		var text, thoughts strings.Builder
		err := openai.Each(raw, func(p answerPart) {
			text.WriteString(p.Text)
			text.WriteString(p.Refusal)
			thoughts.WriteString(string(p.Thinking))
		})
		w.text, w.thought = text.String(), thoughts.String()
		return err
	}
	return nil
}

// answerPart is a part of a content.
type answerPart struct {
	Text     string  `json:"text"`
	Refusal  string  `json:"refusal"`
	Thinking thought `json:"thinking"`
}

// thought is the reasoning of a part: a string, or a list of texts.
type thought string

type thoughtPart struct {
	Text string `json:"text"`
}

// UnmarshalJSON implements json.Unmarshaler. Any other value has no text.
func (t *thought) UnmarshalJSON(raw []byte) error {
	switch raw[0] {
	case '"':
		return json.Unmarshal(raw, (*string)(t))
	case '[':
		var all strings.Builder
		err := openai.Each(raw, func(p thoughtPart) { all.WriteString(p.Text) })
		*t = thought(all.String())
		return err
	}
	return nil
}

// all returns all texts, of a content that is reasoning.
func (w words) all() string { return w.thought + w.text }

// Finish is why a choice has ended. Some engines say which stop sequence it was.
type Finish struct {
	Reason     string          `json:"finish_reason"`
	StopReason json.RawMessage `json:"stop_reason"`
	Matched    json.RawMessage `json:"matched_stop"`
}

// usage is the usage of a message. The tokens of the prompt that were in the cache do not count as
// input.
type usage struct {
	Input  int64 `json:"input_tokens"`
	Cached int64 `json:"cache_read_input_tokens"`
	Output int64 `json:"output_tokens"`
}

// outBlock is one block of the content of an answer.
type outBlock struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature *string         `json:"signature,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
}

// outMessage is an answer of the Messages API.
type outMessage struct {
	ID           string     `json:"id"`
	Type         string     `json:"type"`
	Role         string     `json:"role"`
	Model        string     `json:"model"`
	Content      []outBlock `json:"content"`
	StopReason   *string    `json:"stop_reason"`
	StopSequence *string    `json:"stop_sequence"`
	Usage        usage      `json:"usage"`
}

// FromChat translates the answer to a chat into the answer to the request that ToChat or
// CountToChat has translated. ok is false if the answer is none to a chat, was broken off by the
// engine, or lacks the usage that was asked for.
func FromChat(body []byte, o Options) (answer []byte, ok bool) {
	var c completion
	if json.Unmarshal(body, &c) != nil || len(c.Choices) == 0 {
		return nil, false
	}
	var u chatUsage
	_ = json.Unmarshal(c.Usage, &u) // what is no usage has no counts
	if o.Counts {
		return openai.Encode(map[string]count{"input_tokens": u.Prompt}), u.Prompt > 0
	}
	choice := c.Choices[0]
	if openai.BrokenOff(choice.Reason) != nil { // the Messages API has no stop_reason for that
		return nil, false
	}
	m := newMessage(string(c.ID), c.Model)
	said := choice.Message
	// Some engines send the same reasoning by both names.
	thought := cmp.Or(said.Reasoning.all(), said.ReasoningContent.all()) + said.Content.thought
	if thought != "" && o.Thinking {
		m.Content = append(m.Content, outBlock{Type: "thinking", Thinking: &thought, Signature: new(string)})
	}
	if text := said.Content.text + said.Refusal; text != "" {
		m.Content = append(m.Content, outBlock{Type: "text", Text: &text})
	}
	for i, call := range said.ToolCalls {
		m.Content = append(m.Content, outBlock{
			Type: "tool_use", ID: cmp.Or(string(call.ID), toolID(string(c.ID), i)), Name: call.Function.Name, Input: inputOf(string(call.Function.Arguments)),
		})
	}
	m.StopReason, m.StopSequence = choice.stop(len(said.ToolCalls) > 0, o.Stops)
	m.Usage = usageOf(sse.Usage{Prompt: int64(u.Prompt), Completion: int64(u.Completion), Cached: int64(u.Details.Cached)})
	return openai.Encode(m), true
}

// newMessage returns an answer without content.
func newMessage(id, model string) outMessage {
	return outMessage{ID: "msg_" + ownID(id), Type: "message", Role: "assistant", Model: model, Content: []outBlock{}}
}

// ownID returns what tells the id of a chat from others.
func ownID(id string) string { return strings.TrimPrefix(id, "chatcmpl-") }

// toolID returns the id of a tool call for which the engine gives none. Other calls of the same
// conversation must have other ids.
func toolID(chat string, index int) string { return "toolu_" + ownID(chat) + "_" + strconv.Itoa(index) }

// inputOf returns the arguments of a call as the object that the Messages API wants. Arguments that
// are no object, because they were cut off, are its only member.
func inputOf(arguments string) json.RawMessage {
	trimmed := strings.TrimSpace(arguments)
	switch {
	case trimmed == "":
		return json.RawMessage("{}")
	case trimmed[0] == '{' && json.Valid([]byte(trimmed)):
		return json.RawMessage(trimmed)
	}
	return openai.Encode(map[string]string{"arguments": arguments})
}

// stop returns the stop_reason and the stop_sequence of an answer, which may call tools. stops are
// the client's stop sequences. Engines say "stop" also after a tool that the client has forced, and
// some name stop strings of their own.
func (f Finish) stop(callsTools bool, stops []string) (reason, sequence *string) {
	word := "end_turn"
	switch f.Reason {
	case "length":
		word = "max_tokens"
	case "tool_calls", "function_call":
		word = "tool_use"
	case "content_filter":
		word = "refusal"
	case "stop":
		if callsTools {
			word = "tool_use"
		} else if sequence = f.matched(stops); sequence != nil {
			word = "stop_sequence"
		}
	}
	return &word, sequence
}

// matched returns the stop that has ended the choice. nil: the engine names none of the stops.
func (f Finish) matched(stops []string) *string {
	for _, raw := range []json.RawMessage{f.StopReason, f.Matched} {
		var text string
		if len(raw) > 0 && json.Unmarshal(raw, &text) == nil && text != "" && slices.Contains(stops, text) {
			return &text
		}
	}
	return nil
}
