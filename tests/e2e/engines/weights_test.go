package engines

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/internal/weights/hubtest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

const tinyFile = "tiny-Q4_K_M.gguf"

// tinyHub is a hub that has a real, tiny model of random weights as GGUF.
func tinyHub(t *testing.T) *hubtest.Hub {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(tinyModels(t), "tiny.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	hub := hubtest.New(t)
	hub.Put("org/tiny-GGUF", hubtest.Repository{Task: "text-generation", Architecture: "llama", Files: map[string][]byte{
		tinyFile: content, "README.md": []byte("# tiny"),
	}})
	return hub
}

// TestE2E_U19_WeightsAreFetchedForARequest: the first request starts a fetch for two replicas. The
// client sees how far it is, and so does the operator. A transfer that breaks off is resumed, and a
// real engine loads what was fetched.
func TestE2E_U19_WeightsAreFetchedForARequest(t *testing.T) {
	t.Parallel()
	hub := tinyHub(t)
	hold := make(chan struct{})
	hub.Fail(tinyFile, hubtest.Faults{Hold: hold, BreakAfter: []int{1000, 1000}})
	g := harness.Start(t, `
registries:
  - {name: hub, kind: huggingface, fetch: true, endpoint: "`+hub.URL+`", cache_dir: `+t.TempDir()+`}
models:
  - name: chat
    task: text-generation
    engine: llama-cpp
    source: {registry: hub, name: org/tiny-GGUF}
    replicas: {min: 0, max: 1}
    cold_start: {load_timeout: 60s}
    variables: {parallel: 2, ctx_size: 2048, threads: 1}
    stream: {heartbeat: 100ms}
`)
	type result struct {
		answer *harness.Answer
		err    error
	}
	done := make(chan result, 1)
	go func() {
		a, err := g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", true, 12, "hello"))
		done <- result{a, err}
	}()
	testutil.Eventually(t, "the API tells how far the fetch is", func() bool {
		f := g.Replicas()["chat-0"].Fetching
		return f != nil && f.Done > 0 && f.Done < f.Total
	})
	testutil.Eventually(t, "so does the model", func() bool { return g.Model("chat").Fetching != nil })
	close(hold)
	r := harness.Receive(t, done, "the request is answered")
	if r.err != nil {
		t.Fatal(r.err)
	}
	if err := harness.CheckWholeStream(r.answer.Content); err != nil {
		t.Errorf("%v: %s", err, r.answer)
	}
	if !strings.Contains(string(r.answer.Content), "fetching weights: ") {
		t.Errorf("no heartbeat tells of the fetch: %s", r.answer)
	}
	if got := hub.Requests(); len(got) != 3 || got[0] != tinyFile+" 0" || got[2] == tinyFile+" 0" {
		t.Errorf("requests %q, want one from the beginning and two that go on", got)
	}
	if r := g.Replicas()["chat-0"]; r.Fetching != nil {
		t.Errorf("after the fetch: %+v", r)
	}
}
