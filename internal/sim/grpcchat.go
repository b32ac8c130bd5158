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

// errTimeout ends a call whose timeout_ms has passed.
var errTimeout = errors.New("timeout_ms has passed")

// inference answers the method Stream of llm.v1.Inference, with the answers that chat gives.
func (h *handler) inference() error {
	var start llmv1.StartRequest
	if err := h.decodeMessage(&start); err != nil {
		return err
	}
	req, err := chatRequestOf(&start)
	if err != nil {
		return err
	}
	answers, err := h.chatAnswers(req)
	if err != nil {
		return err
	}
	if ms := start.GetTimeoutMs(); ms > 0 {
		ctx, cancel := context.WithTimeoutCause(h.r.Context(), time.Duration(ms)*time.Millisecond, errTimeout)
		defer cancel()
		h.r = h.r.WithContext(ctx)
	}
	if err := h.startGRPC(); err != nil {
		return err
	}
	g := h.generate([]prompt{h.promptOf(req.CacheSalt, req.Tools, req.Messages)}, answers)
	defer g.close()
	s := &inferenceStream{handler: h, generation: g, id: start.GetRequestId(), finishReasons: make([]string, len(answers))}
	if s.id == "" {
		s.id = h.newID("")
	}
	return s.run()
}

// chatRequestOf returns the chat request that a call asks for.
func chatRequestOf(start *llmv1.StartRequest) (*chatRequest, error) {
	req := new(chatRequest)
	if len(start.GetRequest()) > 0 {
		if len(start.GetMessages()) > 0 {
			return nil, badRequest("request", "messages must be empty beside request")
		}
		h := handler{requestBody: start.GetRequest()}
		if err := h.decodeBody(req); err != nil {
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
	if limit := whole(start.GetMaxTokens()); limit != 0 {
		req.MaxTokens = &limit
	}
	return req, nil
}

// messageOf parses one message of a call: a chat message as JSON, or else the plain text of a user.
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
	h := handler{requestBody: []byte(text)}
	return m, h.decodeBody(&m)
}

// inferenceStream renders a chat as chunks of llm.v1.
type inferenceStream struct {
	handler    *handler
	generation *generation
	// id is the request_id of every chunk.
	id string
	// finishReasons are the finish reasons by choice; empty for a choice that is not complete.
	finishReasons []string
	// lastFinish is the finish reason of the choice that ended last.
	lastFinish string
}

// run sends the whole stream and the status of the call.
func (s *inferenceStream) run() error {
	h := s.handler
	err := s.generation.stream(h.r.Context(), s)
	if err != nil && errors.Is(context.Cause(h.r.Context()), errTimeout) {
		err = s.endAtTimeout()
	}
	if err != nil {
		return err
	}
	u := s.generation.usage()
	final := &llmv1.FinalResult{
		FinishReason: s.lastFinish, Model: h.modelName(), OutputTokens: int32(u.CompletionTokens), InputTokens: int32(u.PromptTokens),
		CachedTokens: int32(u.PromptDetails.CachedTokens),
	}
	if len(s.finishReasons) > 1 {
		final.FinishReasons = s.finishReasons
	}
	if err := h.sendChunk(&llmv1.StreamChunk{RequestId: s.id, Payload: &llmv1.StreamChunk_Final{Final: final}}); err != nil {
		return err
	}
	h.setStatus(status.New(codes.OK, ""))
	return h.closeBody()
}

// endAtTimeout ends the choices that are not complete when timeout_ms has passed. If no token was
// sent, the call ends with an error.
func (s *inferenceStream) endAtTimeout() error {
	if s.generation.usage().CompletionTokens == 0 {
		e := &apiError{status: http.StatusRequestTimeout, kind: "TimeoutError", message: "timeout_ms has passed."}
		s.handler.setStatus(e.chunk().Status())
		return errResponseEnded
	}
	for i := range s.finishReasons {
		if s.finishReasons[i] == "" {
			s.finishReasons[i], s.lastFinish = "length", "length"
		}
	}
	return nil
}

// token implements sink.
func (s *inferenceStream) token(n, i int) error {
	a := s.generation.choices[n].answer
	p := a.token(i)
	d := &llmv1.TokenDelta{Choice: int32(n)}
	switch {
	case p.opensCall:
		t := a.calls[p.call-1]
		d.Kind, d.ToolCall = llmv1.TokenDelta_TOOL_CALL, &llmv1.ToolCall{Index: int32(p.call - 1), Id: t.id, Name: t.name}
	case p.call > 0:
		d.Kind, d.ToolCall = llmv1.TokenDelta_TOOL_CALL, &llmv1.ToolCall{Index: int32(p.call - 1), Arguments: p.text}
	default:
		d.Text = p.text
	}
	return s.handler.sendChunk(&llmv1.StreamChunk{RequestId: s.id, Payload: &llmv1.StreamChunk_Delta{Delta: d}})
}

// finish implements sink.
func (s *inferenceStream) finish(n int) error {
	s.finishReasons[n], s.lastFinish = s.generation.choices[n].answer.finish, s.generation.choices[n].answer.finish
	return nil
}
