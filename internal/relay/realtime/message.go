package realtime

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// message is a message from the client. Fields that its type does not have are empty.
type message struct {
	Type      string `json:"type"`
	RequestID string `json:"request_id"`

	Model    string                     `json:"model"`
	Messages []json.RawMessage          `json:"messages"`
	Message  json.RawMessage            `json:"message"`
	Params   map[string]json.RawMessage `json:"params"`
	Tools    json.RawMessage            `json:"tools"`
	Credit   *openai.Integer            `json:"credit"`

	ToolCallID string          `json:"tool_call_id"`
	Content    json.RawMessage `json:"content"`
	Tokens     openai.Integer  `json:"tokens"`
}

// Types of messages from the client.
const (
	typeStart      = "start"
	typePause      = "pause"
	typeResume     = "resume"
	typeCancel     = "cancel"
	typeUpdate     = "update"
	typeToolResult = "tool_result"
	typeToolCancel = "tool_cancel"
	typeCredit     = "credit"
)

const (
	// maxID bounds names that clients choose, in bytes.
	maxID = 256
	// maxCredit bounds the credit of one message, in messages.
	maxCredit = 1 << 31
)

// fieldsOf returns the fields that a message of this type may have beside its type. ok is false if
// there is no such type.
func fieldsOf(kind string) (fields []string, ok bool) {
	switch kind {
	case typeStart:
		return []string{"request_id", "model", "messages", "message", "params", "tools", "credit"}, true
	case typePause, typeResume, typeCancel:
		return []string{"request_id"}, true
	case typeUpdate:
		return []string{"params"}, true
	case typeToolResult:
		return []string{"tool_call_id", "content"}, true
	case typeToolCancel:
		return []string{"tool_call_id"}, true
	case typeCredit:
		return []string{"tokens"}, true
	}
	return nil, false
}

// readMessage reads a message. The fault is for the client.
func readMessage(data []byte) (message, *openai.Error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil || fields == nil {
		return message{}, notJSON(err)
	}
	var kind string
	if raw, ok := fields["type"]; !ok || json.Unmarshal(raw, &kind) != nil {
		return message{}, invalid("type", "A message must have a type, a string.")
	}
	known, ok := fieldsOf(kind)
	if !ok {
		return message{}, invalid("type", "There is no message of this type.")
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if name != "type" && !slices.Contains(known, name) {
			if isInvalidName(name) {
				name = ""
			}
			return message{}, invalid(name, "A message of type "+kind+" takes only these fields: "+strings.Join(known, ", ")+".")
		}
	}
	var m message
	if err := json.Unmarshal(data, &m); err != nil {
		return message{}, notJSON(err)
	}
	return m, m.check()
}

// notJSON returns the error for a message that cannot be read. It does not repeat what was sent.
func notJSON(err error) *openai.Error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return openai.Errorf(openai.CodeInvalidRequest, "The message is not valid JSON at byte %d.", syntax.Offset)
	case errors.As(err, &kind) && kind.Field != "":
		return invalid(kind.Field, kind.Field+" has the wrong type.")
	}
	return invalid("", "A message must be a JSON object.")
}

// invalid returns the error for a bad field.
func invalid(param, text string) *openai.Error {
	return &openai.Error{Code: openai.CodeInvalidRequest, Param: param, Message: text}
}

// check checks the values of the fields.
func (m *message) check() *openai.Error {
	if isNull(m.Message) {
		m.Message = nil
	}
	if isNull(m.Tools) {
		m.Tools = nil
	}
	if isInvalidName(m.RequestID) {
		return invalid("request_id", "request_id must be at most 256 bytes without control characters.")
	}
	switch m.Type {
	case typeStart:
		return m.checkStart()
	case typeUpdate:
		if m.Params == nil {
			return invalid("params", "params is missing.")
		}
	case typeToolResult, typeToolCancel:
		if m.ToolCallID == "" {
			return invalid("tool_call_id", "tool_call_id is missing.")
		}
		if c := firstByte(m.Content); m.Type == typeToolResult && c != '"' && c != '[' {
			return invalid("content", "content must be a text or a list of parts.")
		}
	case typeCredit:
		if m.Tokens < 1 || m.Tokens > maxCredit {
			return invalid("tokens", "tokens must be from 1 to 2147483648.")
		}
	}
	return nil
}

func (m *message) checkStart() *openai.Error {
	switch {
	case m.Messages != nil && m.Message != nil:
		return invalid("message", "A start has either messages or a message.")
	case m.Messages != nil && len(m.Messages) == 0:
		return invalid("messages", "messages must not be empty.")
	case m.Message != nil && firstByte(m.Message) != '{':
		return invalid("message", "message must be an object.")
	case m.Tools != nil && firstByte(m.Tools) != '[':
		return invalid("tools", "tools must be a list.")
	case m.Credit != nil && (*m.Credit < 0 || *m.Credit > maxCredit):
		return invalid("credit", "credit must be from 0 to 2147483648.")
	}
	for _, each := range m.Messages {
		if firstByte(each) != '{' {
			return invalid("messages", "messages must be objects.")
		}
	}
	return nil
}

// isInvalidName reports whether a name is too long or has control characters.
func isInvalidName(name string) bool {
	return len(name) > maxID || strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f })
}

func isNull(raw json.RawMessage) bool { return string(raw) == "null" }

// firstByte returns the first byte of a JSON value, which tells its kind. 0: there is no value.
func firstByte(raw json.RawMessage) byte {
	if raw = bytes.TrimLeft(raw, " \t\r\n"); len(raw) > 0 {
		return raw[0]
	}
	return 0
}

// Messages to the client.
type (
	tokenMessage struct {
		Type      string `json:"type"`
		RequestID string `json:"request_id"`
		Delta     string `json:"delta"`
		Choice    int    `json:"choice,omitempty"`
		Kind      string `json:"kind,omitempty"`
	}
	toolCallMessage struct {
		Type      string `json:"type"`
		RequestID string `json:"request_id"`
		ID        string `json:"id"`
		Index     int    `json:"index"`
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
		Done      bool   `json:"done"`
		Choice    int    `json:"choice,omitempty"`
	}
	finalMessage struct {
		Type      string  `json:"type"`
		RequestID string  `json:"request_id"`
		Finish    *string `json:"finish_reason"`
		Usage     usage   `json:"usage"`
	}
	usage struct {
		Prompt     *int64       `json:"prompt_tokens,omitempty"`
		Completion int64        `json:"completion_tokens"`
		Total      *int64       `json:"total_tokens,omitempty"`
		Details    *usageDetail `json:"prompt_tokens_details,omitempty"`
		Estimated  bool         `json:"estimated,omitempty"`
	}
	usageDetail struct {
		Cached int64 `json:"cached_tokens"`
	}
	heartbeatMessage struct {
		Type      string `json:"type"`
		RequestID string `json:"request_id"`
		Phase     string `json:"phase"`
		Position  int    `json:"position,omitempty"`
		Waited    int64  `json:"waited_ms"`
		Note      string `json:"note,omitempty"`
	}
	errorMessage struct {
		Type      string          `json:"type"`
		RequestID string          `json:"request_id,omitempty"`
		Error     json.RawMessage `json:"error"`
	}
)

// newError returns an error message. With a request id it says that the turn has ended.
func newError(requestID string, fault *openai.Error) errorMessage {
	return errorMessage{Type: "error", RequestID: requestID, Error: fault.EventObject()}
}
