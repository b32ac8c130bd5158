//go:build vllm

package engines

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// serveByTransformers starts `transformers serve` of vLLM's environment with a model and returns
// its URL. Its list of models is that of an empty cache.
func serveByTransformers(t *testing.T, model string) string {
	t.Helper()
	python := filepath.Join(filepath.Dir(resolved(t, "vllm")), "venv", "bin", "python")
	home, port := t.TempDir(), strconv.Itoa(testutil.FreePort(t))
	if err := os.Mkdir(filepath.Join(home, "hub"), 0o700); err != nil {
		t.Fatal(err)
	}
	const program = "import sys; sys.argv[0] = 'transformers'; from transformers.cli.transformers import main; main()"
	server := exec.Command(python, "-c", program, "serve", model, "--host", "127.0.0.1", "--port", port, "--device", "cpu")
	server.Env = append(os.Environ(), "HF_HOME="+home, "HF_HUB_OFFLINE=1", "OMP_NUM_THREADS=1")
	var log strings.Builder
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	url := "http://127.0.0.1:" + port
	eventuallyFor(t, "transformers serve answers", func() error {
		answer, err := http.Get(url + "/health")
		if err == nil {
			answer.Body.Close()
		}
		return err
	})
	return url
}

// TestE2E_T6_U3_TransformersServeInVLLMsEnvironment: a server that lists none of its models serves
// a model of the file under another name, streamed and not.
func TestE2E_T6_U3_TransformersServeInVLLMsEnvironment(t *testing.T) {
	model := filepath.Join(vllmModels(t), "llama")
	g := harness.Start(t, fmt.Sprintf(`
models:
  - name: chat
    launcher: upstream
    upstreams: [{url: %q, model: %s, health: {path: /health}}]
`, serveByTransformers(t, model), model))
	g.AwaitReadyReplicas("chat", 1)
	for stream, want := range map[bool]string{false: `"completion_tokens":4`, true: `"finish_reason":"length"`} {
		// The server refuses fields that it does not know, so the body has only OpenAI's.
		body := fmt.Sprintf(`{"model":"chat","stream":%v,"max_tokens":4,"messages":[{"role":"user","content":"Hello"}]}`, stream)
		if a := g.Post("/v1/chat/completions", body); a.StatusCode != 200 || !strings.Contains(string(a.Content), want) {
			t.Errorf("stream %v: %s", stream, a)
		}
	}
}
