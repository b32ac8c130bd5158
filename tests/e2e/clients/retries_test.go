package clients

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_R6_ClientsDoNotRepeat: a request that its own timeout ends is 408, streamed or not, and
// OpenAI's client makes one attempt.
func TestE2E_R6_ClientsDoNotRepeat(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - {name: chat, engine: sim, variables: {prefill_rate: 0, token_interval: 100ms}}
`)
	// Each reaches its engine before, as one that does not may be repeated.
	var all sync.WaitGroup
	for name, option := range map[string]string{
		"timeout":         `"timeout_ms":4000`,
		"duration":        `"max_duration_ms":4000`,
		"named, timeout":  `"timeout_ms":4000,"request_id":"a"`,
		"named, duration": `"max_duration_ms":4000,"request_id":"b"`,
	} {
		all.Go(func() {
			a, err := g.TryPost(t.Context(), harness.ChatPath,
				`{"model":"chat","max_tokens":1000,"ignore_eos":true,"messages":[{"role":"user","content":"x"}],`+option+`}`)
			if err != nil || a.StatusCode != 408 || a.Code() != "request_timeout" || a.Header.Get("X-Should-Retry") != "false" {
				t.Errorf("%s: %v, %v", name, err, a)
			}
		})
	}
	all.Wait()
	testutil.Tool(t, "node/node_modules/openai")
	harness.RunScript(t, []string{"node", filepath.Join(testutil.Root(), "tests/clients/retries.mjs")}, map[string]string{
		"BASE_URL": g.URL + "/v1", "MODEL": "chat", "NODE_MODULES": filepath.Join(testutil.Root(), ".tools", "node", "node_modules"),
	})
}
