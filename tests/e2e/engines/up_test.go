package engines

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/internal/weights/hubtest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// up runs `sluice up` with models of the hub, and stops it when the test ends.
func up(t *testing.T, models ...string) *harness.Gateway {
	t.Helper()
	g := harness.Prepare(t, "")
	g.Command = append([]string{"up", "--listen", strings.TrimPrefix(g.URL, "http://"), "--admin", strings.TrimPrefix(g.Admin, "http://")}, models...)
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	return g
}

// TestE2E_B7_UpFromTheHub: one command fetches a chat model and an embedding model, starts a real
// engine for each, and serves them. The second start needs no hub.
func TestE2E_B7_UpFromTheHub(t *testing.T) {
	hub := tinyHub(t)
	content, err := os.ReadFile(filepath.Join(tinyModels(t), "embed.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	hub.Put("org/embed-GGUF", hubtest.Repository{Task: "sentence-similarity", Token: "hf_secret", Gated: true, Files: map[string][]byte{
		"embed-f16.gguf": content, "embed-Q8_0.gguf": append(slices.Clone(content), make([]byte, 1<<20)...),
	}})
	hub.Fail(tinyFile, hubtest.Faults{BreakAfter: []int{100_000}})
	t.Setenv("HF_ENDPOINT", hub.URL)
	t.Setenv("HF_TOKEN", "hf_secret")
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	models := []string{"hf:org/tiny-GGUF", "hf:org/embed-GGUF:F16"}
	g := up(t, models...)
	g.AwaitReplicas("org/tiny-GGUF", 1)
	g.AwaitReplicas("org/embed-GGUF", 1)
	for _, want := range []string{
		"hf:org/tiny-GGUF\n  engine   llama-cpp (", "weights  " + tinyFile, "task     text-generation: the hub says text-generation",
		"weights  embed-f16.gguf", "as asked for", "task     embedding: the hub says sentence-similarity", "curl -N " + g.URL + "/v1/chat/completions",
	} {
		g.AwaitLogged(want, 1)
	}
	var chat struct {
		Choices []struct{ Message struct{ Content string } }
	}
	for _, name := range []string{"org/tiny-GGUF", "tiny-GGUF"} {
		if err := ask(g, "/v1/chat/completions", harness.ChatBody(name, false, 12, "hello"), &chat); err != nil || chat.Choices[0].Message.Content == "" {
			t.Errorf("%s: %v, %+v", name, err, chat)
		}
	}
	var vectors struct {
		Data []struct{ Embedding []float64 }
	}
	if err := ask(g, "/v1/embeddings", `{"model":"embed-GGUF","input":"hello"}`, &vectors); err != nil || len(vectors.Data) != 1 || len(vectors.Data[0].Embedding) != 64 {
		t.Errorf("embeddings: %v", err)
	}
	if got := hub.Requests(); len(got) != 3 || !slices.Contains(got, tinyFile+" 100000") {
		t.Errorf("requests %q, want each file once, and the rest of the one that broke off", got)
	}
	if leaked := hub.Leaked(); len(leaked) > 0 {
		t.Errorf("the server that the hub redirects to was sent %q", leaked)
	}

	hub.Down(true)
	again := up(t, models...)
	again.AwaitReplicas("org/tiny-GGUF", 1)
	if err := ask(again, "/v1/chat/completions", harness.ChatBody("tiny-GGUF", false, 12, "hello"), &chat); err != nil {
		t.Errorf("without the hub: %v", err)
	}
}

// TestE2E_B7_UpSaysWhatIsMissing: without an engine the command ends with status 1, says how to get
// one, and fetches nothing.
func TestE2E_B7_UpSaysWhatIsMissing(t *testing.T) {
	hub := tinyHub(t)
	t.Setenv("HF_ENDPOINT", hub.URL)
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	t.Setenv("SLUICE_ENVOY", testutil.Tool(t, "envoy"))
	path := os.Getenv("PATH")
	run := func(arguments ...string) (string, int) {
		c := exec.CommandContext(t.Context(), harness.Program(), append([]string{"up"}, arguments...)...)
		out, _ := c.CombinedOutput()
		return string(out), c.ProcessState.ExitCode()
	}
	t.Setenv("PATH", t.TempDir())
	for _, tt := range []struct {
		arguments []string
		want      string
	}{
		{[]string{"hf:org/tiny-GGUF"}, "hf:org/tiny-GGUF cannot run here:\n  it holds GGUF; one of these would do for text-generation:\n" +
			"  not installed: llama-server is part of llama.cpp: brew install llama.cpp, or https://github.com/ggml-org/llama.cpp/releases\n  not installed: ollama: "},
		{[]string{"ollama:qwen3:0.6b"}, "ollama:qwen3:0.6b cannot run here:\n  ollama is not installed\n"},
		{[]string{"hf:org/none"}, "no such repository, or it is private and needs a token"},
		{[]string{"qwen"}, `"qwen" is no model: want hf:ORG/NAME`},
		{[]string{"hf:org/tiny-GGUF", "-c", "x.yaml"}, "models on the command line go with neither -c nor --upstream"},
		{[]string{"--print"}, "--print is for models on the command line"},
	} {
		if out, code := run(tt.arguments...); code != 1 || !strings.Contains(out, tt.want) {
			t.Errorf("%q: status %d, %s\nwant %q", tt.arguments, code, out, tt.want)
		}
	}
	t.Setenv("PATH", filepath.Join(testutil.Root(), ".tools")+":"+path)
	if out, code := run("--print", "hf:org/tiny-GGUF"); code != 0 || !strings.Contains(out, "file: "+tinyFile+"\n") || !strings.Contains(out, "fetch: true\n") {
		t.Errorf("--print: status %d, %s", code, out)
	}
	if got := hub.Requests(); len(got) > 0 {
		t.Errorf("fetched: %q", got)
	}
}
