package dispatch

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/testutil"
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
	s.config.Demand = func(model string) { t.Errorf("%s is to be started", model) }
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

// Media of a host that is not permitted are refused, by all models of a pool or by those that do
// not permit the host. What only llama.cpp takes for a host counts where a server may be llama.cpp.
func TestX14_MediaOfOtherHostsAreRefused(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	hosts := func(list ...string) openai.MediaHosts {
		h, _ := openai.ParseMediaHosts(list)
		return h
	}
	models := map[string]Policy{"none": {}, "public": {MediaHosts: hosts("public")}, "any": {MediaHosts: hosts("*")},
		"llama": {MediaHosts: hosts("public"), Guards: openai.GuardsOf("llama-cpp")}}
	for name := range models {
		s.put(name, replicas(name+"-0")...)
	}
	s.SetRules(Rules{FirstPool: "pool", Pools: map[string][]string{"pool": {"none", "public"}}, Models: models})
	s.rebuild()
	for body, permitted := range map[string][]string{
		`"data:image/png;base64,AA"`:            {"none", "public", "any", "llama", "pool"},
		`"https://example.com/a.png"`:           {"public", "any", "llama", "pool"},
		`"http://169.254.169.254/latest/"`:      {"any"},
		`"https://example.com/a@10.0.0.1/b"`:    {"public", "any", "pool"},
		`"https://example.com/a@example.com/b"`: {"public", "any", "llama", "pool"},
	} {
		for _, model := range []string{"none", "public", "any", "llama", "pool"} {
			text := []byte(`{"model":"` + model + `","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":` + body + `}}]}]}`)
			scan, fault := openai.Scan(openai.Chat, "application/json", text)
			if fault != nil {
				t.Fatal(fault)
			}
			ctx, end := context.WithTimeout(t.Context(), testutil.Patience)
			r := NewRequest(Caller{Tenant: &authz.Tenant{}}, &scan, text)
			r.Allowed = nil
			ticket, fault := s.Dispatch(ctx, r)
			end()
			if ok := slices.Contains(permitted, model); ok != (fault == nil) || !ok && (fault.HTTPStatus() != 400 || fault.Param != "image_url") {
				t.Errorf("%s of %s: %v", body, model, fault)
			}
			if fault == nil {
				if model == "pool" && body != `"data:image/png;base64,AA"` && ticket.Model != "public" {
					t.Errorf("%s goes to %s", body, ticket.Model)
				}
				ticket.Release()
			}
		}
	}
}

// A guarded field is refused where a server may obey it: at upstreams, at engines that do, and at
// launched models that an upstream has joined. Engines that ignore it serve the request. A field
// that the operator permits passes.
func TestX14_GuardedFieldsAreRefused(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("own", replicas("own-0")...)
	s.put("sglang", replicas("sglang-0")...)
	s.put("strict", replicas("strict-0", "strict-1", "strict-2")...)
	s.put("shared", engines.Replica{ID: "shared-0"}, engines.Replica{ID: "far-0", Launcher: engines.Upstream})
	s.put("free", engines.Replica{ID: "free-0", Launcher: engines.Upstream})
	s.fleet.Set("models", engines.Part{
		Models:   []engines.Model{{Name: "up", Launcher: engines.Upstream}},
		Replicas: []engines.Replica{{ID: "up-0", Model: "up", State: engines.Ready, Launcher: engines.Upstream}}})
	permitted := openai.NewGuards([]string{"rid", "models"})
	s.SetRules(Rules{FirstPool: "mixed", Pools: map[string][]string{"mixed": {"up", "own"}, "far": {"up", "shared"}, "wide": {"strict", "own"}}, Models: map[string]Policy{
		"sglang": {Guards: openai.GuardsOf("sglang")}, "strict": {Guards: openai.AllGuards()}, "free": {Permitted: permitted}}})
	s.rebuild()
	for model, refused := range map[string][]string{
		"own": nil, "mixed": nil, "wide": nil, "up": {"models", "rid", "lora"}, "far": {"models", "rid", "lora"}, "shared": {"models", "rid", "lora"},
		"sglang": {"rid"}, "free": {"lora"},
	} {
		for _, field := range []string{"models", "rid", "lora"} {
			r := newRequest(model, "k")
			scanned := &openai.Request{Model: model, Guarded: openai.NewGuards([]string{field})}
			r.Guarded = NewRequest(Caller{Tenant: &authz.Tenant{}}, scanned, nil).Guarded
			ctx, end := context.WithTimeout(t.Context(), testutil.Patience)
			ticket, fault := s.Dispatch(ctx, r)
			end()
			switch {
			case !slices.Contains(refused, field) && fault != nil:
				t.Errorf("%s of %s: %v", field, model, fault)
			case slices.Contains(refused, field) && (fault == nil || fault.HTTPStatus() != 400 || fault.Param != field):
				t.Errorf("%s of %s passes: %v", field, model, fault)
			}
			if fault == nil {
				if (model == "mixed" || model == "wide") && ticket.Model != "own" {
					t.Errorf("%s of a pool goes to %s", field, ticket.Model)
				}
				ticket.Release()
			}
		}
	}
}
