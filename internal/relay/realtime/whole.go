package realtime

import (
	"encoding/json"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/delta"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// maxEngineMessage bounds what is passed on of an engine's error message, in bytes.
const maxEngineMessage = 4 << 10

// Answer implements relay.Sink. The engine has refused, or has answered without a stream.
func (t *turn) Answer(a *relay.Answer) error {
	if a.Status >= 300 {
		t.fault = faultOf(a)
		return nil
	}
	var whole struct {
		Choices []struct {
			Index   int    `json:"index"`
			Finish  string `json:"finish_reason"`
			Message struct {
				Content   string `json:"content"`
				Reasoning string `json:"reasoning_content"`
				Refusal   string `json:"refusal"`
				Calls     []struct {
					ID       string `json:"id"`
					Function struct {
						Name      string `json:"name"`
						Arguments string `json:"arguments"`
					} `json:"function"`
				} `json:"tool_calls"`
			} `json:"message"`
		} `json:"choices"`
	}
	if json.Unmarshal(a.Body, &whole) != nil || len(whole.Choices) == 0 {
		t.fault = openai.Errorf(openai.CodeUpstreamError, "The engine's answer is no chat completion.")
		return nil
	}
	c := whole.Choices[0]
	t.finish = c.Finish
	deltas := []delta.Delta{
		{Kind: delta.Reasoning, Text: []byte(c.Message.Reasoning)},
		{Kind: delta.Text, Text: []byte(c.Message.Content)},
		{Kind: delta.Refusal, Text: []byte(c.Message.Refusal)},
	}
	for i, call := range c.Message.Calls {
		deltas = append(deltas, delta.Delta{Kind: delta.ToolCall, Tool: i, ID: []byte(call.ID), Name: []byte(call.Function.Name),
			Text: []byte(call.Function.Arguments)})
	}
	for i := range deltas {
		if err := t.deliver(&deltas[i]); err != nil {
			return err
		}
	}
	return nil
}

// faultOf returns the refusal of an engine. Its message is for the client, as it is where answers
// pass unchanged.
func faultOf(a *relay.Answer) *openai.Error {
	fault := &openai.Error{Code: openai.CodeUpstreamError, Status: a.Status, Message: "The engine refused the request."}
	if a.Status < 500 {
		fault.Code = openai.CodeInvalidRequest
	}
	engineError := openai.ParseEngineError(a.Body)
	if engineError.Message != "" {
		fault.Message = engineError.Message[:min(len(engineError.Message), maxEngineMessage)]
	}
	if engineError.Code != "" && !isInvalidName(engineError.Code) {
		fault.Code = openai.Code(engineError.Code)
	}
	if !isInvalidName(engineError.Param) {
		fault.Param = engineError.Param
	}
	return fault
}
