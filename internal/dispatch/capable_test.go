package dispatch

import (
	"testing"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// TestU18_EndpointsByTask: which endpoints a model of each task serves.
func TestU18_EndpointsByTask(t *testing.T) {
	t.Parallel()
	for task, want := range map[engines.Task]string{
		engines.TextGeneration: "chat completions responses ",
		engines.Embedding:      "embeddings rerank score ",
		engines.Rerank:         "rerank score ",
		engines.Transcription:  "transcriptions translations ",
		"":                     "chat completions responses embeddings rerank score transcriptions translations ",
	} {
		var got string
		for e := openai.Chat; e <= openai.Translations; e++ {
			if isCapable(&engines.Model{Task: task}, e) {
				got += e.String() + " "
			}
		}
		if got != want {
			t.Errorf("task %q serves %s, want %s", task, got, want)
		}
	}
}

// TestU18_NotCapable: a model of another task is refused at once and nobody is asked to start it. A
// pool uses only its capable models.
func TestU18_NotCapable(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.demand = func(model string) { t.Errorf("%s is to be started", model) }
	s.put("plain", replicas("plain-0")...)
	s.fleet.Set("models", engines.Part{Models: []engines.Model{
		{Name: "chat", Task: engines.TextGeneration, Launcher: engines.Local, MaxReplicas: 1},
		{Name: "speech", Task: engines.Transcription, Launcher: engines.Local, MaxReplicas: 1}}})
	s.SetRules(Rules{FirstPool: "mixed", Pools: map[string][]string{"mixed": {"chat", "plain"}, "none": {"chat", "speech"}}})
	s.rebuild()
	ask := func(model string) (*Ticket, *openai.Error) {
		r := newRequest(model, "k")
		r.Endpoint = openai.Embeddings
		return s.Dispatch(t.Context(), r)
	}
	for _, name := range []string{"chat", "none"} {
		_, fault := ask(name)
		if fault == nil || fault.Code != openai.CodeModelNotCapable || fault.HTTPStatus() != 400 || fault.Param != "model" {
			t.Errorf("%s: %v", name, fault)
		}
	}
	if ticket, fault := ask("mixed"); fault != nil || ticket.Model != "plain" {
		t.Errorf("a pool with a capable model: %v", fault)
	} else {
		ticket.Release()
	}
}
