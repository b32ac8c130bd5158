package grpcapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// Answer implements relay.Sink: an engine's refusal, or a whole answer of an engine that does not stream.
func (s *sink) Answer(a *relay.Answer) error {
	s.engine = true
	if a.Status >= http.StatusMultipleChoices {
		s.refusal = refusalOf(a)
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
		if err := s.choice(&completion.Choices[i]); err != nil {
			return err
		}
	}
	return nil
}

// choice is one answer of a chat.completion.
type choice struct {
	Index   int     `json:"index"`
	Message message `json:"message"`
	Finish  string  `json:"finish_reason"`
}

// message is what the assistant says in it.
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

// choice sends a whole answer as pieces.
func (s *sink) choice(c *choice) error {
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
	s.finished(c.Index, c.Finish)
	return nil
}

// refusalOf returns an engine's refusal in the words of llm.v1.
func refusalOf(a *relay.Answer) *pb.Error {
	said := openai.ParseEngineError(a.Body)
	if said.Message == "" {
		said.Message = "The engine answered with status " + strconv.Itoa(a.Status) + "."
	}
	if said.Type == "" {
		said.Type = openai.TypeOf(a.Status)
	}
	like := openai.Error{Status: a.Status, RetryAfter: retryAfter(a.Header)}
	return &pb.Error{
		Code: int32(a.Status), Message: said.Message, Type: said.Type, Param: said.Param, Name: said.Code,
		Retryable: like.Retryable(), RetryAfterMs: like.RetryAfterMillis(),
	}
}

// retryAfter reads the header in whole seconds; a date means nothing here.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseInt(h.Get("Retry-After"), 10, 32)
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
