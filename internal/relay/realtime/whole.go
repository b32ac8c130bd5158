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
		t.fault = forClient(a.EngineError())
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

// forClient bounds the words of an engine's error. Its message is for the client, as it is where
// answers pass unchanged. Its type is that of its status.
func forClient(fault *openai.Error) *openai.Error {
	fault.Message, fault.EngineType = fault.Message[:min(len(fault.Message), maxEngineMessage)], ""
	if isInvalidName(string(fault.Code)) {
		fault.Code = openai.CodeOfStatus(fault.HTTPStatus())
	}
	if isInvalidName(fault.Param) {
		fault.Param = ""
	}
	return fault
}
