package grpcapi

import (
	"net/http"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// Answer implements relay.Sink. The answer is an engine's refusal, or a whole answer of an engine
// that does not stream.
func (s *sink) Answer(a *relay.Answer) error {
	s.engineAnswered = true
	if a.Status >= http.StatusMultipleChoices {
		s.refusal = errorOf(a.EngineError())
		return nil
	}
	if !s.chunk.Read(a.Body) || len(s.chunk.Choices) == 0 {
		s.refusal = errorOf(openai.Errorf(openai.CodeUpstreamError, "The engine's answer cannot be read."))
		return nil
	}
	deltas, _ := s.deltas.ReadAnswer(a.Body)
	return s.sendDeltas(deltas)
}

// choice is one choice of a chat.completion.
type choice struct {
	Index   int     `json:"index"`
	Message message `json:"message"`
	Finish  string  `json:"finish_reason"`
}

// message is the message of a choice.
type message struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	Refusal   *string    `json:"refusal"`
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
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
