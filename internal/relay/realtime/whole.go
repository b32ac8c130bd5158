package realtime

import (
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
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
	var chunk sse.Chunk
	if !chunk.Read(a.Body) || len(chunk.Choices) == 0 {
		t.fault = openai.Errorf(openai.CodeUpstreamError, "The engine's answer is no chat completion.")
		return nil
	}
	t.finish = string(chunk.Choices[0].Finish)
	deltas, _ := t.reader.ReadAnswer(a.Body)
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
