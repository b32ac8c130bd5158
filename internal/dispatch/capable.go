package dispatch

import (
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// taskOf returns the task of the models that an endpoint is for.
func taskOf(e openai.Endpoint) engines.Task {
	switch e {
	case openai.Embeddings:
		return engines.Embedding
	case openai.Rerank, openai.Score:
		return engines.Rerank
	case openai.Transcriptions, openai.Translations:
		return engines.Transcription
	}
	return engines.TextGeneration
}

// isCapable reports whether the model serves the endpoint. Engines also score and rerank by
// embeddings. A model whose task is not known, such as a discovered one, may serve all endpoints.
func isCapable(m *engines.Model, e openai.Endpoint) bool {
	return m.Task == "" || m.Task == taskOf(e) || m.Task == engines.Embedding && taskOf(e) == engines.Rerank
}

// notCapable is the error for a request to an endpoint that the model or pool does not serve. who
// names the model or pool at the beginning of a sentence.
func notCapable(who string, e openai.Endpoint) *openai.Error {
	return &openai.Error{Code: openai.CodeModelNotCapable, Param: "model", Message: who + " does not serve " + e.String() +
		" requests: name a model whose task is " + string(taskOf(e)) + "."}
}
