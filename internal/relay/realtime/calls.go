package realtime

import (
	"encoding/json"
	"slices"
	"strconv"
	"sync"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// cancelledCall is the answer of a tool call that the user has cancelled.
const cancelledCall = `"The user cancelled this tool call."`

// toolCalls are the tool calls of one turn. The turn adds them while the client may already answer.
type toolCalls struct {
	mu    sync.Mutex
	list  []*toolCall // guarded by mu
	bytes int         // of answers; guarded by mu
}

// toolCall is one tool call. Its index, id and name do not change after it was added, except that a
// name may come late.
type toolCall struct {
	index     int
	id, name  string
	arguments []byte
	// answer is the content of the tool message. nil: there is none yet.
	answer json.RawMessage
}

// maxCalls bounds the tool calls of one turn, and its texts that end within a character.
const maxCalls = 1024

// findOrAdd returns the call with this index, and adds it if there is none. An engine may omit the
// id or use it twice. nil: there are too many calls.
func (c *toolCalls) findOrAdd(index int, id, name []byte) *toolCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.list {
		if call.index == index {
			if call.name == "" {
				call.name = string(name)
			}
			return call
		}
	}
	if len(c.list) == maxCalls {
		return nil
	}
	call := &toolCall{index: index, id: string(id), name: string(name)}
	if call.id == "" || c.findLocked(call.id) != nil {
		call.id = "call_" + call.id + strconv.Itoa(index)
	}
	c.list = append(c.list, call)
	return call
}

func (c *toolCalls) findLocked(id string) *toolCall {
	for _, call := range c.list {
		if call.id == id {
			return call
		}
	}
	return nil
}

// answer stores the client's answer to a call. limit bounds the answers of all calls, in bytes.
func (c *toolCalls) answer(id string, content json.RawMessage, limit int) *openai.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.findLocked(id)
	switch {
	case call == nil:
		return invalid("tool_call_id", "There is no such tool call in the last turn.")
	case call.answer != nil:
		return invalid("tool_call_id", "The tool call has been answered.")
	case c.bytes+len(content) > limit:
		return tooLarge()
	}
	c.bytes += len(content)
	call.answer = content
	return nil
}

// isOpen reports whether a call has no answer.
func (c *toolCalls) isOpen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.list, func(call *toolCall) bool { return call.answer == nil })
}

func (c *toolCalls) answers() []json.RawMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	var messages []json.RawMessage
	for _, call := range c.list {
		messages = append(messages, openai.Encode(struct {
			Role    string          `json:"role"`
			ID      string          `json:"tool_call_id"`
			Content json.RawMessage `json:"content"`
		}{"tool", call.id, call.answer}))
	}
	return messages
}
