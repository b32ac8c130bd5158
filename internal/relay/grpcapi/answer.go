package grpcapi

import (
	"cmp"
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

// reportedError returns the error that an event reports.
func reportedError(data []byte) *pb.Error {
	e := errorOf(openai.ReportedError(data))
	e.Type, e.Name = validUTF8([]byte(e.GetType())), validUTF8([]byte(e.GetName()))
	return e
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
