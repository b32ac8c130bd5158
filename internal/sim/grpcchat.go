package sim

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
)

// errTimeUp is why a call ends whose timeout_ms has passed.
var errTimeUp = errors.New("timeout_ms has passed")

// inference answers the call Stream of llm.v1.Inference as chat answers a chat.
func (c *call) inference() error {
	var start llmv1.StartRequest
	if err := c.receive(&start); err != nil {
		return err
	}
	req, err := chatOf(&start)
	if err != nil {
		return err
	}
	answers, err := c.chatAnswers(req)
	if err != nil {
		return err
	}
	if ms := start.GetTimeoutMs(); ms > 0 {
		ctx, cancel := context.WithTimeoutCause(c.r.Context(), time.Duration(ms)*time.Millisecond, errTimeUp)
		defer cancel()
		c.r = c.r.WithContext(ctx)
	}
	if err := c.accept(); err != nil {
		return err
	}
	g := c.generate([]prompt{template(req.Tools, req.Messages)}, answers)
	defer g.close()
	s := &inferenceStream{call: c, gen: g, id: start.GetRequestId(), finish: make([]string, len(answers))}
	if s.id == "" {
		s.id = c.id("")
	}
	return s.run()
}

// chatOf is the chat that is asked for.
func chatOf(start *llmv1.StartRequest) (*chatRequest, error) {
	req := new(chatRequest)
	if len(start.GetRequest()) > 0 {
		if len(start.GetMessages()) > 0 {
			return nil, badRequest("request", "messages must be empty beside request")
		}
		c := call{body: start.GetRequest()}
		if err := c.decode(req); err != nil {
			return nil, err
		}
	}
	for _, text := range start.GetMessages() {
		m, err := messageOf(text)
		if err != nil {
			return nil, err
		}
		req.Messages = append(req.Messages, m)
	}
	if start.GetModel() != "" {
		req.Model = start.GetModel()
	}
	if most := int(start.GetMaxTokens()); most != 0 {
		req.MaxTokens = &most
	}
	return req, nil
}

// messageOf reads one of the request's messages: a message written as JSON, or what the user says.
func messageOf(text string) (message, error) {
	var shape struct {
		Role    *string         `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	isObject := strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "{")
	if !isObject || json.Unmarshal([]byte(text), &shape) != nil || shape.Role == nil || shape.Content == nil {
		return message{Role: "user", Content: content(text)}, nil
	}
	var m message
	c := call{body: []byte(text)}
	return m, c.decode(&m)
}

// inferenceStream renders a chat as chunks of llm.v1.
type inferenceStream struct {
	call   *call
	gen    *generation
	id     string
	finish []string // of each choice; empty: it goes on
	ended  string
}

func (s *inferenceStream) run() error {
	c := s.call
	err := s.gen.stream(c.r.Context(), s)
	if err != nil && errors.Is(context.Cause(c.r.Context()), errTimeUp) {
		err = s.cutShort()
	}
	if err != nil {
		return err
	}
	u := s.gen.usage()
	final := &llmv1.FinalResult{
		FinishReason: s.ended, Model: c.model(), OutputTokens: int32(u.CompletionTokens), InputTokens: int32(u.PromptTokens),
		CachedTokens: int32(u.PromptDetails.CachedTokens),
	}
	if len(s.finish) > 1 {
		final.FinishReasons = s.finish
	}
	if err := c.say(&llmv1.StreamChunk{RequestId: s.id, Payload: &llmv1.StreamChunk_Final{Final: final}}); err != nil {
		return err
	}
	c.status(status.New(codes.OK, ""))
	return c.finish()
}

// cutShort ends what goes on when the time is up. It is an error when there is nothing yet.
func (s *inferenceStream) cutShort() error {
	if s.gen.usage().CompletionTokens == 0 {
		e := &apiError{status: http.StatusRequestTimeout, kind: "TimeoutError", message: "timeout_ms has passed."}
		s.call.status(e.chunk().Status())
		return errDone
	}
	for i := range s.finish {
		if s.finish[i] == "" {
			s.finish[i], s.ended = "length", "length"
		}
	}
	return nil
}

// token implements sink.
func (s *inferenceStream) token(n, i int) error {
	a := s.gen.choices[n].answer
	p := a.at(i)
	d := &llmv1.TokenDelta{Choice: int32(n)}
	switch {
	case p.head:
		t := a.calls[p.call-1]
		d.Kind, d.ToolCall = llmv1.TokenDelta_TOOL_CALL, &llmv1.ToolCall{Index: int32(p.call - 1), Id: t.id, Name: t.name}
	case p.call > 0:
		d.Kind, d.ToolCall = llmv1.TokenDelta_TOOL_CALL, &llmv1.ToolCall{Index: int32(p.call - 1), Arguments: p.text}
	default:
		d.Text = p.text
	}
	return s.call.say(&llmv1.StreamChunk{RequestId: s.id, Payload: &llmv1.StreamChunk_Delta{Delta: d}})
}

// last implements sink.
func (s *inferenceStream) last(n int) error {
	s.finish[n], s.ended = s.gen.choices[n].answer.finish, s.gen.choices[n].answer.finish
	return nil
}
