package realtime

import (
	"encoding/json"
	"slices"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// In OpenAI's protocol the items of a conversation may stand in any order. A user may write before
// a tool has answered, or ask for a response although a tool never answers. Chat completions want
// the answers of tools right behind the message with the calls, and an answer for each call. So a
// response gets the messages arranged, and the conversation keeps them as they came.

// chatMessage is what arranging has to know of a message.
type chatMessage struct {
	Role   string `json:"role"`
	CallID string `json:"tool_call_id"`
	Calls  []struct {
		ID string `json:"id"`
	} `json:"tool_calls"`
}

// arranged is a message with the answers of its tool calls, by the index of the call.
type arranged struct {
	raw     json.RawMessage
	calls   int
	answers map[int]json.RawMessage
}

// callPlace is the place of a tool call: the index of its message, and its index there.
type callPlace struct{ message, call int }

// arrange returns the messages with each answer of a tool behind the message of its call. A call
// without an answer is left out. An answer without a call stays where it is.
func arrange(messages []json.RawMessage) []json.RawMessage {
	list := make([]arranged, 0, len(messages))
	open := map[string]callPlace{}
	for _, raw := range messages {
		var m chatMessage
		_ = json.Unmarshal(raw, &m) // what cannot be read has no calls
		if at, ok := open[m.CallID]; ok && m.Role == "tool" {
			delete(open, m.CallID)
			list[at.message].answers[at.call] = raw
			continue
		}
		for i, c := range m.Calls {
			open[c.ID] = callPlace{len(list), i}
		}
		list = append(list, arranged{raw, len(m.Calls), map[int]json.RawMessage{}})
	}
	var all []json.RawMessage
	for i := range list {
		all = list[i].appendTo(all)
	}
	return all
}

// appendTo appends the message and the answers of its calls.
func (a *arranged) appendTo(all []json.RawMessage) []json.RawMessage {
	if len(a.answers) == a.calls {
		all = append(all, a.raw)
	} else if raw := a.withoutUnanswered(); raw != nil {
		all = append(all, raw)
	}
	for i := range a.calls {
		if answer, ok := a.answers[i]; ok {
			all = append(all, answer)
		}
	}
	return all
}

// withoutUnanswered returns the message without the calls that have no answer. nil: nothing of the
// message is left.
func (a *arranged) withoutUnanswered() json.RawMessage {
	var m map[string]json.RawMessage
	var calls []json.RawMessage
	_ = json.Unmarshal(a.raw, &m) // it was read before
	_ = json.Unmarshal(m["tool_calls"], &calls)
	i := -1
	calls = slices.DeleteFunc(calls, func(json.RawMessage) bool {
		i++
		_, answered := a.answers[i]
		return !answered
	})
	if delete(m, "tool_calls"); len(calls) > 0 {
		m["tool_calls"] = openai.Encode(calls)
	} else if m["content"] == nil || isNull(m["content"]) {
		return nil
	}
	return openai.Encode(m)
}
