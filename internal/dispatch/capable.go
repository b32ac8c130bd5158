package dispatch

import (
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// taskOf returns the task of the models that an endpoint is for. It is empty for an endpoint that
// models of every task may serve.
func taskOf(e openai.Endpoint) engines.Task {
	switch e {
	case openai.Embeddings:
		return engines.Embedding
	case openai.Rerank, openai.Score:
		return engines.Rerank
	case openai.Transcriptions, openai.Translations:
		return engines.Transcription
	case openai.Speech:
		return engines.Speech
	case openai.Images, openai.ImageEdits, openai.ImageVariations:
		return engines.ImageGeneration
	case openai.Tokenize, openai.Detokenize:
		return ""
	}
	return engines.TextGeneration
}

func (t *modelRoute) isCapable(e openai.Endpoint) bool {
	return hasTask(&t.Model, e) && !t.policy.Lacks.Has(e)
}

// hasTask reports whether the model's task is one that the endpoint is for. Engines also score and
// rerank by embeddings. A model whose task is not known, such as a discovered one, may serve all
// endpoints.
func hasTask(m *engines.Model, e openai.Endpoint) bool {
	want := taskOf(e)
	return m.Task == "" || want == "" || m.Task == want || m.Task == engines.Embedding && want == engines.Rerank
}

// notCapable is the error for a request to an endpoint that the model, or a pool of such models,
// does not serve. who names the model or pool at the beginning of a sentence.
func (t *modelRoute) notCapable(who string, e openai.Endpoint) *openai.Error {
	hint := "name a model whose task is " + string(taskOf(e)) + "."
	if hasTask(&t.Model, e) {
		hint = "its engine has no route " + e.Path() + "."
	}
	return &openai.Error{Code: openai.CodeModelNotCapable, Param: "model", Message: who + " does not serve " + e.String() + " requests: " + hint}
}
