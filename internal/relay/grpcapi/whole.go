package grpcapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
)

// maxAnswerBytes bounds an answer that is assembled, in bytes.
const maxAnswerBytes = 64 << 20

var errTooLarge = errors.New("llmv1: the worker's answer is too large")

// choiceBuilder assembles one choice.
type choiceBuilder struct {
	content, reasoning, refusal strings.Builder
	calls                       []toolCall
	arguments                   [][]byte // of calls
}

// readWhole reads the stream to its end and returns a chat.completion.
func (e *eventBody) readWhole() ([]byte, error) {
	var choices []*choiceBuilder
	for size := 0; ; {
		chunk, err := e.nextChunk()
		if err != nil {
			return nil, err
		}
		if f := chunk.GetFinal(); f != nil {
			e.roleSent = make([]bool, len(choices))
			return e.completion(choices, f)
		}
		d := chunk.GetDelta()
		if d == nil {
			continue
		}
		n := int(d.GetChoice())
		if n < 0 || n >= maxChoices {
			return nil, fmt.Errorf("llmv1: the worker names choice %d", n)
		}
		for len(choices) <= n {
			choices = append(choices, new(choiceBuilder))
		}
		if size += len(d.GetText()) + len(d.GetToolCall().GetArguments()); size > maxAnswerBytes {
			return nil, errTooLarge
		}
		choices[n].add(d)
	}
}

func (s *choiceBuilder) add(d *pb.TokenDelta) {
	if t := d.GetToolCall(); t != nil {
		s.addToolCall(t)
		return
	}
	switch d.GetKind() {
	case pb.TokenDelta_REASONING:
		s.reasoning.WriteString(d.GetText())
	case pb.TokenDelta_REFUSAL:
		s.refusal.WriteString(d.GetText())
	default:
		s.content.WriteString(d.GetText())
	}
}

// addToolCall adds a fragment to a tool call. An index that is out of bounds means the last tool
// call.
func (s *choiceBuilder) addToolCall(t *pb.ToolCall) {
	n := int(t.GetIndex())
	if n == len(s.calls) && n < maxChoices || len(s.calls) == 0 {
		s.calls, s.arguments = append(s.calls, toolCall{Type: "function"}), append(s.arguments, nil)
	}
	if n < 0 || n >= len(s.calls) {
		n = len(s.calls) - 1
	}
	c := &s.calls[n]
	c.ID += t.GetId()
	c.Function.Name += t.GetName()
	s.arguments[n] = append(s.arguments[n], t.GetArguments()...)
}

func (e *eventBody) completion(choices []*choiceBuilder, f *pb.FinalResult) ([]byte, error) {
	list := make([]choice, e.countChoices(f))
	for i := range list {
		list[i] = choice{Index: i, Finish: finishOf(f, i), Message: message{Role: "assistant"}}
		if i >= len(choices) {
			choices = append(choices, new(choiceBuilder))
		}
		m, s := &list[i].Message, choices[i]
		for i := range s.calls {
			s.calls[i].Function.Arguments = string(s.arguments[i])
		}
		m.Reasoning, m.ToolCalls = s.reasoning.String(), s.calls
		if text := s.content.String(); text != "" || len(s.calls) == 0 {
			m.Content = &text
		}
		if text := s.refusal.String(); text != "" {
			m.Refusal = &text
		}
	}
	return json.Marshal(map[string]any{
		"id": e.id, "object": "chat.completion", "created": time.Now().Unix(), "model": e.call.request.model,
		"choices": list, "usage": json.RawMessage(usageOf(f)),
	})
}
