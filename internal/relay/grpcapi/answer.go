package grpcapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// Answer implements relay.Sink. The answer is an engine's refusal, or a whole answer of an engine
// that does not stream.
func (s *sink) Answer(a *relay.Answer) error {
	s.engineAnswered = true
	if a.Status >= http.StatusMultipleChoices {
		s.refusal = refusalError(a)
		return nil
	}
	var completion struct {
		Choices []choice `json:"choices"`
	}
	if json.Unmarshal(a.Body, &completion) != nil || len(completion.Choices) == 0 {
		s.refusal = errorOf(openai.Errorf(openai.CodeUpstreamError, "The engine's answer cannot be read."))
		return nil
	}
	for i := range completion.Choices {
		if err := s.sendChoice(&completion.Choices[i]); err != nil {
			return err
		}
	}
	return nil
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

// sendChoice sends a whole choice as deltas.
func (s *sink) sendChoice(c *choice) error {
	pieces := []*pb.TokenDelta{{Kind: pb.TokenDelta_REASONING, Text: c.Message.Reasoning}}
	if c.Message.Content != nil {
		pieces = append(pieces, &pb.TokenDelta{Text: *c.Message.Content})
	}
	if c.Message.Refusal != nil {
		pieces = append(pieces, &pb.TokenDelta{Kind: pb.TokenDelta_REFUSAL, Text: *c.Message.Refusal})
	}
	for i, t := range c.Message.ToolCalls {
		call := &pb.ToolCall{Index: int32(i), Id: t.ID, Name: t.Function.Name, Arguments: t.Function.Arguments}
		pieces = append(pieces, &pb.TokenDelta{Kind: pb.TokenDelta_TOOL_CALL, ToolCall: call})
	}
	for _, p := range pieces {
		if p.Text == "" && p.ToolCall == nil {
			continue
		}
		p.Choice = clamp(int64(c.Index))
		if err := s.send(&pb.StreamChunk{Payload: &pb.StreamChunk_Delta{Delta: p}}); err != nil {
			return err
		}
	}
	s.recordFinish(c.Index, c.Finish)
	return nil
}

// refusalError returns an engine's refusal as an error of llm.v1.
func refusalError(a *relay.Answer) *pb.Error {
	engineError := openai.ParseEngineError(a.Body)
	if engineError.Message == "" {
		engineError.Message = "The engine answered with status " + strconv.Itoa(a.Status) + "."
	}
	engineError.Type = cmp.Or(engineError.Type, openai.TypeOf(a.Status))
	engineError.Code = cmp.Or(engineError.Code, string(openai.CodeOfStatus(a.Status)))
	like := openai.Error{Status: a.Status, RetryAfter: openai.ParseRetryAfter(a.Header.Get("retry-after"), time.Now())}
	return &pb.Error{
		Code: int32(a.Status), Message: engineError.Message, Type: engineError.Type, Param: engineError.Param, Name: engineError.Code,
		Retryable: like.Retryable(), RetryAfterMs: like.RetryAfterMillis(),
	}
}
