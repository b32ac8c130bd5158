package dispatch

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// TestU18_EndpointsByTask: which endpoints a model of each task serves.
func TestU18_EndpointsByTask(t *testing.T) {
	t.Parallel()
	for task, want := range map[engines.Task]string{
		engines.TextGeneration:  "chat completions responses tokenize detokenize messages count_tokens input_tokens compact ",
		engines.Embedding:       "embeddings rerank score tokenize detokenize ",
		engines.Rerank:          "rerank score tokenize detokenize ",
		engines.Transcription:   "transcriptions translations tokenize detokenize ",
		engines.Speech:          "speech tokenize detokenize ",
		engines.ImageGeneration: "images image_edits image_variations tokenize detokenize ",
		"": "chat completions responses embeddings rerank score transcriptions translations speech images image_edits image_variations " +
			"tokenize detokenize messages count_tokens input_tokens compact ",
	} {
		var got string
		for e := openai.Endpoint(0); e.String() != "unknown"; e++ {
			if hasTask(&engines.Model{Task: task}, e) {
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

// TestR12_EngineWithoutTheRoute: a request for a route that the engine lacks is refused by name.
func TestR12_EngineWithoutTheRoute(t *testing.T) {
	t.Parallel()
	var lacks openai.EndpointSet
	lacks.Add(openai.Detokenize)
	s := newStage(Policy{Lacks: lacks})
	s.put("chat", replicas("chat-0")...)
	s.rebuild()
	for endpoint, want := range map[openai.Endpoint]openai.Code{openai.Tokenize: "", openai.Detokenize: openai.CodeModelNotCapable} {
		r := newRequest("chat", "k")
		r.Endpoint = endpoint
		ticket, fault := s.Dispatch(t.Context(), r)
		if fault != nil && fault.Code != want || fault == nil && want != "" {
			t.Errorf("%s: %v, want %q", endpoint, fault, want)
		}
		if fault != nil && !strings.Contains(fault.Message, "has no route /detokenize") {
			t.Errorf("the error says: %s", fault.Message)
		}
		if ticket != nil {
			ticket.Release()
		}
	}
}

// TestR12_CostOfMedia: tokenizing costs nothing. Speech and images cost their estimate, whatever
// the size of the answer, unless the engine reports its usage.
func TestR12_CostOfMedia(t *testing.T) {
	t.Parallel()
	var e estimator
	free := e.estimate(&Request{Tenant: "a", PromptBytes: 4000, Free: true, NoOutput: true})
	image := e.estimate(&Request{Tenant: "a", PromptBytes: 400, MediaOutput: 2048, Choices: 2})
	for name, c := range map[string]struct {
		of   estimate
		r    Response
		want int
	}{
		"tokenize":          {free, Response{Bytes: 5000}, 0},
		"images":            {image, Response{Bytes: 5 << 20}, 2148},
		"images with usage": {image, Response{Bytes: 5 << 20, Known: true, Prompt: 50, Completion: 1000}, 1050},
		"failed":            {image, Response{Failed: true}, 0},
	} {
		if got := e.correct(c.r, c.of); got != c.want {
			t.Errorf("%s: %d tokens, want %d", name, got, c.want)
		}
	}
	if text := e.estimate(&Request{Tenant: "a", PromptBytes: 4000}); text.tokens != (tokenCount{1000, expectedOutput}) {
		t.Errorf("images have taught about texts: %+v", text.tokens)
	}
}

// A field that asks an upstream for other models than that of the request is refused. Engines that
// Sluice starts ignore it.
func TestX14_FieldsThatAskForOtherModels(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("own", replicas("own-0")...)
	s.fleet.Set("models", engines.Part{
		Models:   []engines.Model{{Name: "up", Launcher: engines.Upstream}},
		Replicas: []engines.Replica{{ID: "up-0", Model: "up", State: engines.Ready, Launcher: engines.Upstream}}})
	s.SetRules(Rules{FirstPool: "mixed", Pools: map[string][]string{"mixed": {"own", "up"}, "far": {"up"}}})
	s.rebuild()
	for _, model := range []string{"own", "mixed"} {
		r := newRequest(model, "k")
		r.OtherModels = "models"
		ticket, fault := s.Dispatch(t.Context(), r)
		if fault != nil || ticket.Model != "own" {
			t.Errorf("%s: %v", model, fault)
			continue
		}
		ticket.Release()
	}
	if r := NewRequest(Caller{Tenant: &authz.Tenant{}}, &openai.Request{OtherModels: "models"}, nil); r.OtherModels != "models" {
		t.Errorf("the field of the body is lost: %q", r.OtherModels)
	}
	for _, model := range []string{"up", "far"} {
		r := newRequest(model, "k")
		r.OtherModels = "fallbacks"
		ctx, end := context.WithTimeout(t.Context(), 5*time.Second)
		defer end()
		if _, fault := s.Dispatch(ctx, r); fault == nil || fault.HTTPStatus() != 400 || fault.Param != "fallbacks" {
			t.Errorf("%s: %v", model, fault)
		}
	}
}
