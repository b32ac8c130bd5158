package fit_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/fit"
)

// TestB7_TheFileIsValid: the gateway accepts the file, and its models are those that were chosen.
func TestB7_TheFileIsValid(t *testing.T) {
	hub := func(id string) fit.Reference { return fit.Reference{Repository: id} }
	choices := []fit.Choice{
		{Reference: hub("org/chat-GGUF"), Engine: "llama-cpp", Task: engines.TextGeneration, File: "a.gguf", ContextLength: 2048},
		{Reference: hub("org/embed-GGUF"), Engine: "llama-cpp", Task: engines.Embedding, File: "b.gguf"},
		{Reference: hub("org/large"), Engine: "vllm", Task: engines.TextGeneration, GPUs: 2},
		{Reference: hub("other/large"), Engine: "sglang", Task: engines.TextGeneration, GPUs: 1},
		{Reference: hub("org/vectors"), Engine: "tei", Task: engines.Embedding},
		{Reference: fit.Reference{Ollama: "qwen3:0.6b"}, Engine: "ollama", Task: engines.TextGeneration},
	}
	file, err := fit.File("127.0.0.1:8081", "127.0.0.1:9091", choices)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("f", file)
	if err != nil {
		t.Fatalf("%v\n%s", err, file)
	}
	if c.Listen != "127.0.0.1:8081" || c.Admin != "127.0.0.1:9091" || len(c.Models) != len(choices) {
		t.Errorf("%+v", c)
	}
	var aliases []string
	for i, m := range c.Models {
		aliases = append(aliases, strings.Join(m.Aliases, " "))
		if r := m.Resources; (r != nil) != (choices[i].GPUs > 0) || r != nil && r.GPU != float64(choices[i].GPUs) {
			t.Errorf("%s has the resources %+v", m.Name, r)
		}
		if w := c.Weights(m); choices[i].Ollama != "" {
			if w != nil {
				t.Errorf("%s fetches %+v", m.Name, w)
			}
		} else if w == nil || w.Repository != choices[i].Repository || w.File != choices[i].File {
			t.Errorf("%s fetches %+v", m.Name, w)
		}
		if m.Task != choices[i].Task || m.Engine != choices[i].Engine {
			t.Errorf("%s is %s by %s", m.Name, m.Task, m.Engine)
		}
	}
	if diff := cmp.Diff([]string{"chat-GGUF", "embed-GGUF", "large", "", "vectors", ""}, aliases); diff != "" {
		t.Errorf("aliases (-want +got):\n%s", diff)
	}
	for i, want := range []map[string]any{
		{"parallel": 4, "ctx_size": 8192},
		{"parallel": 4, "ctx_size": 32768, "batch_size": 2048, "ubatch_size": 2048},
		nil,
	} {
		if diff := cmp.Diff(want, c.Models[i].Variables); diff != "" {
			t.Errorf("variables of %s (-want +got):\n%s", c.Models[i].Name, diff)
		}
	}
}
