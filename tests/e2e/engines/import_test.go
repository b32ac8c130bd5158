package engines

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_T6_AnImportedFileOfLlamaSwapServes: a configuration of llama-swap becomes a file with
// which the same models answer under the same names and keys.
func TestE2E_T6_AnImportedFileOfLlamaSwapServes(t *testing.T) {
	t.Parallel()
	folder := tinyModels(t)
	file := filepath.Join(folder, "llama-swap.yaml")
	config := `
macros: {server: "llama-server --port ${PORT} --threads 1"}
models:
  chat:
    cmd: |
      ${server} -m ` + folder + `/tiny.gguf
      --ctx-size 2048 --parallel 2
    aliases: [gpt-4o-mini]
    ttl: 60
  embed:
    cmd: ${server} --model=` + folder + `/tiny.gguf --embeddings --pooling mean --ctx-size 2048
    proxy: http://127.0.0.1:${PORT}
`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	converted, err := exec.Command(harness.Program(), "import", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("listen: 127.0.0.1:8080\n", "", "auth: {mode: none}\n", "").Replace(string(converted))
	g := harness.Start(t, text) // with a listener of its own
	if a := g.Post("/v1/chat/completions", harness.ChatBody("gpt-4o-mini", false, 4, "Hello")); a.StatusCode != 200 {
		t.Errorf("%s", a)
	}
	if a := g.Post("/v1/embeddings", `{"model":"embed","input":"Hello"}`); a.StatusCode != 200 {
		t.Errorf("%s", a)
	}
}
