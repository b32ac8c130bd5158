package messages

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// block is one block of the content of a message: text, an image, a call of a tool, its result, or
// reasoning.
type block struct {
	Type   string          `json:"type"`
	Text   *string         `json:"text"`
	Source json.RawMessage `json:"source"`
	// Of a tool_use.
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
	// Of a tool_result.
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	Thinking  string          `json:"thinking"`
}

// UnmarshalJSON implements json.Unmarshaler, see unmarshalSpelled.
func (b *block) UnmarshalJSON(raw []byte) error {
	type plain block
	return unmarshalSpelled(raw, (*plain)(b), "type", "text", "source", "id", "name", "input", "tool_use_id", "content", "thinking")
}

// source is where an image or a document is.
type source struct {
	Type      string `json:"type"`
	MediaType string `json:"media_type"`
	Data      string `json:"data"`
	URL       string `json:"url"`
}

// UnmarshalJSON implements json.Unmarshaler, see unmarshalSpelled.
func (s *source) UnmarshalJSON(raw []byte) error {
	type plain source
	return unmarshalSpelled(raw, (*plain)(s), "type", "media_type", "data", "url")
}

// message is a message of the Messages API.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// UnmarshalJSON implements json.Unmarshaler, see unmarshalSpelled.
func (m *message) UnmarshalJSON(raw []byte) error {
	type plain message
	return unmarshalSpelled(raw, (*plain)(m), "role", "content")
}

// misspelled is the error for a field that is spelled like the one that it names, but for its case.
type misspelled string

func (m misspelled) Error() string { return string(m) + " is spelled in another case" }

// unmarshalSpelled reads an object whose fields these are. encoding/json would also read a field
// that is spelled in another case, such as URL. The scan of the request does not know such a field,
// and so nobody would have judged what it holds.
func unmarshalSpelled(raw []byte, into any, fields ...string) error {
	var r jsonscan.Reader
	r.Reset(raw)
	if r.Kind() == '{' {
		for more := r.Open('{'); more; more = r.More('{') {
			name := r.Name()
			for _, field := range fields {
				if string(name) != field && strings.EqualFold(string(name), field) {
					return misspelled(field)
				}
			}
			r.Skip()
		}
	}
	return json.Unmarshal(raw, into)
}

// readFault is the fault of a value at a place that cannot be read. form says what is wrong with
// the value if no field of it is.
func readFault(at string, err error, form string) *openai.Error {
	var wrong *json.UnmarshalTypeError
	var spelled misspelled
	switch {
	case errors.As(err, &spelled):
		return openai.Invalid(at+"."+string(spelled), "must be spelled in lower case")
	case errors.As(err, &wrong) && wrong.Field != "":
		return openai.Invalid(at+"."+wrong.Field, "must be a string")
	}
	return openai.Invalid(at, form)
}

type chatMessage struct {
	Role       string     `json:"role"`
	Content    any        `json:"content"`
	Reasoning  string     `json:"reasoning_content,omitempty"`
	ToolCalls  []toolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`

	// more are further messages that belong to this one.
	more []chatMessage
}

type toolCall struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// part is a part of the content of a message of a chat.
type part struct {
	Type  string    `json:"type"`
	Text  string    `json:"text,omitempty"`
	Image *imageURL `json:"image_url,omitempty"`
}

type imageURL struct {
	URL string `json:"url"`
}

// conversation translates the system prompt and the messages.
func (o *Options) conversation(fields, chat object) *openai.Error {
	var all []chatMessage
	if raw, ok := fields["system"]; ok {
		blocks, fault := readBlocks("system", raw)
		if fault != nil {
			return fault
		}
		texts, fault := textsOf("system", blocks)
		if fault != nil {
			return fault
		}
		texts = slices.DeleteFunc(texts, func(text string) bool { return openai.IsAttribution([]byte(text)) })
		if len(texts) > 0 {
			all = append(all, chatMessage{Role: "system", Content: join(texts)})
		}
	}
	messages := 0
	const form = "must be a list of messages that is not empty"
	fault := elements("messages", fields["messages"], form, func(at string, decode func(any) error) *openai.Error {
		messages++
		some, fault := chatMessages(at, decode)
		all = appendMessages(all, some)
		return fault
	})
	switch {
	case fault != nil:
		return fault
	case messages == 0:
		return openai.Invalid("messages", form)
	}
	for i := range all {
		all[i].unite()
	}
	chat["messages"] = openai.Encode(all)
	return nil
}

// elements reads a list at a place of the request. form is what is wrong with anything else.
func elements(at string, list json.RawMessage, form string, read func(at string, decode func(any) error) *openai.Error) *openai.Error {
	var fault *openai.Error
	err := openai.Elements(list, func(i int, decode func(any) error) error {
		if fault = read(fmt.Sprintf("%s.%d", at, i), decode); fault != nil {
			return fault
		}
		return nil
	})
	switch {
	case fault != nil:
		return fault
	case errors.Is(err, openai.ErrTooLong):
		return openai.Invalid(at, err.Error())
	case err != nil:
		return openai.Invalid(at, form)
	}
	return nil
}

func chatMessages(at string, decode func(any) error) ([]chatMessage, *openai.Error) {
	var m message
	if err := decode(&m); err != nil {
		return nil, readFault(at, err, "must be an object with a role and a content")
	}
	if m.Role != "user" && m.Role != "system" && m.Role != "assistant" {
		return nil, openai.Invalid(at+".role", "must be user or assistant")
	}
	blocks, fault := readBlocks(at+".content", m.Content)
	switch {
	case fault != nil:
		return nil, fault
	case m.Role == "assistant":
		return assistantMessage(at+".content", blocks)
	case m.Role == "system":
		texts, fault := textsOf(at+".content", blocks)
		return []chatMessage{{Role: "system", Content: join(texts)}}, fault
	}
	return userMessages(at+".content", blocks)
}

// appendMessages appends the translation of a message. Messages of one role that follow each other
// are one turn, as in the Messages API: the templates of some models, such as Gemma's, refuse two.
// The results of tools come first in a turn of the user, because they answer the message before it.
//
// A system message at the beginning belongs to the system prompt. The templates of many models,
// such as Qwen's, refuse a system message anywhere else. So the text of such a message goes to the
// user's turn. It stands in the tags in which Claude Code itself writes it for servers that know no
// such messages.
func appendMessages(all, some []chatMessage) []chatMessage {
	for _, m := range some {
		if len(all) == 0 {
			all = append(all, m)
			continue
		}
		last := &all[len(all)-1]
		if m.Role == "system" && last.Role != "system" {
			text, _ := m.Content.(string)
			m = chatMessage{Role: "user", Content: "<system-reminder>\n" + text + "\n</system-reminder>"}
		}
		switch {
		case m.Role == "tool" && last.Role == "user":
			all = slices.Insert(all, len(all)-1, m)
		case m.Role != "tool" && m.Role == last.Role:
			last.more = append(last.more, m)
		default:
			all = append(all, m)
		}
	}
	return all
}

// unite makes one message of those that belong to it. It reads each of them once, because a body
// may have 100,000.
func (m *chatMessage) unite() {
	if len(m.more) == 0 {
		return
	}
	var texts, thoughts []string
	var parts []part
	var calls []toolCall
	for _, one := range slices.Insert(m.more, 0, *m) {
		switch content := one.Content.(type) {
		case string:
			if content != "" {
				texts, parts = append(texts, content), append(parts, part{Type: "text", Text: content})
			}
		case []part:
			parts = append(parts, content...)
		}
		if one.Reasoning != "" {
			thoughts = append(thoughts, one.Reasoning)
		}
		calls = append(calls, one.ToolCalls...)
	}
	m.Reasoning, m.ToolCalls, m.Content = join(thoughts), calls, parts
	switch {
	case len(parts) == 0 && len(calls) > 0:
		m.Content = nil
	case len(texts) == len(parts):
		m.Content = join(texts)
	}
}

// readBlocks reads a content: a string, which is one block of text, or a list of blocks.
func readBlocks(at string, raw json.RawMessage) ([]block, *openai.Error) {
	var text string
	if len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &text) == nil {
		return []block{{Type: "text", Text: &text}}, nil
	}
	blocks := []block{}
	fault := elements(at, raw, "must be a string or a list of blocks", func(at string, decode func(any) error) *openai.Error {
		var b block
		fault := b.read(at, decode)
		blocks = append(blocks, b)
		return fault
	})
	return blocks, fault
}

// read reads a block, which has all that its type needs.
func (b *block) read(at string, decode func(any) error) *openai.Error {
	if err := decode(b); err != nil {
		return readFault(at, err, "must be an object")
	}
	switch {
	case b.Type == "":
		return openai.Invalid(at+".type", "is missing")
	case b.Type == "text" && b.Text == nil:
		return openai.Invalid(at+".text", "is missing")
	case b.Type == "tool_use" && b.ID == "":
		return openai.Invalid(at+".id", "is missing")
	case b.Type == "tool_use" && b.Name == "":
		return openai.Invalid(at+".name", "is missing")
	case b.Type == "tool_result" && b.ToolUseID == "":
		return openai.Invalid(at+".tool_use_id", "is missing")
	}
	return nil
}

// textsOf returns the texts of blocks that must be texts.
func textsOf(at string, blocks []block) (texts []string, fault *openai.Error) {
	for i, b := range blocks {
		if b.Type != "text" {
			return nil, unsupported(at, i, b.Type)
		}
		texts = append(texts, *b.Text)
	}
	return texts, nil
}

// unsupported is the error for a block that cannot be translated.
func unsupported(at string, i int, kind string) *openai.Error {
	return openai.Invalid(fmt.Sprintf("%s.%d.type", at, i), "must be one that chat completions have, and not "+kind)
}

// userMessages translates a message of the user. Each result of a tool is a message of its own,
// before the rest. Images in results go into the rest, because a result is a text in a chat.
func userMessages(at string, blocks []block) (all []chatMessage, fault *openai.Error) {
	var parts []part
	for i, b := range blocks {
		if b.Type != "tool_result" {
			p, fault := partOf(at, i, b)
			if fault != nil {
				return nil, fault
			}
			parts = append(parts, p)
			continue
		}
		result, images, fault := toolResult(fmt.Sprintf("%s.%d.content", at, i), b)
		if fault != nil {
			return nil, fault
		}
		all, parts = append(all, result), append(parts, images...)
	}
	if len(parts) > 0 || len(all) == 0 {
		all = append(all, chatMessage{Role: "user", Content: contentOf(parts)})
	}
	return all, nil
}

func toolResult(at string, b block) (m chatMessage, images []part, fault *openai.Error) {
	var texts []string
	if len(b.Content) > 0 && string(b.Content) != "null" {
		blocks, fault := readBlocks(at, b.Content)
		if fault != nil {
			return m, nil, fault
		}
		for i, inner := range blocks {
			p, fault := partOf(at, i, inner)
			switch {
			case fault != nil:
				return m, nil, fault
			case p.Image != nil:
				images = append(images, p)
			default:
				texts = append(texts, p.Text)
			}
		}
	}
	return chatMessage{Role: "tool", ToolCallID: b.ToolUseID, Content: join(texts)}, images, nil
}

// partOf translates a block that the user may send beside the results of tools.
func partOf(at string, i int, b block) (part, *openai.Error) {
	var source source
	if len(b.Source) > 0 {
		if err := json.Unmarshal(b.Source, &source); err != nil {
			return part{}, readFault(fmt.Sprintf("%s.%d.source", at, i), err, "must be an object")
		}
	}
	switch {
	case b.Type == "text":
		return part{Type: "text", Text: *b.Text}, nil
	case b.Type == "image" && source.Type == "base64":
		return part{Type: "image_url", Image: &imageURL{"data:" + source.MediaType + ";base64," + source.Data}}, nil
	case b.Type == "image" && source.Type == "url":
		return part{Type: "image_url", Image: &imageURL{source.URL}}, nil
	case b.Type == "document" && source.Type == "text":
		return part{Type: "text", Text: source.Data}, nil
	case (b.Type == "image" || b.Type == "document") && source.Type == "":
		return part{}, openai.Invalid(fmt.Sprintf("%s.%d.source.type", at, i), "is missing")
	case b.Type == "document" && source.Type == "base64":
		return part{}, openai.Invalid(fmt.Sprintf("%s.%d.source.type", at, i), "must be text: chat completions have no documents, such as PDF")
	case b.Type == "image", b.Type == "document":
		return part{}, openai.Invalid(fmt.Sprintf("%s.%d.source.type", at, i), "must be one that chat completions have, and not "+source.Type)
	}
	return part{}, unsupported(at, i, b.Type)
}

// contentOf returns parts as a string if they are one text, which every template of a chat knows.
func contentOf(parts []part) any {
	switch {
	case len(parts) == 0:
		return ""
	case len(parts) == 1 && parts[0].Type == "text":
		return parts[0].Text
	}
	return parts
}

// assistantMessage translates a message of the model. Reasoning that is encrypted is left out.
func assistantMessage(at string, blocks []block) ([]chatMessage, *openai.Error) {
	m := chatMessage{Role: "assistant"}
	var texts, thoughts []string
	for i, b := range blocks {
		switch b.Type {
		case "text":
			texts = append(texts, *b.Text)
		case "thinking":
			thoughts = append(thoughts, b.Thinking)
		case "redacted_thinking":
		case "tool_use":
			arguments := string(b.Input)
			if len(b.Input) == 0 || arguments == "null" {
				arguments = "{}"
			}
			m.ToolCalls = append(m.ToolCalls, toolCall{b.ID, "function", function{b.Name, arguments}})
		default:
			return nil, unsupported(at, i, b.Type)
		}
	}
	m.Reasoning = join(thoughts)
	if len(texts) > 0 || len(m.ToolCalls) == 0 {
		m.Content = join(texts)
	}
	return []chatMessage{m}, nil
}
