package clients

import (
	"path/filepath"
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
	for name, option := range map[string]string{
		"timeout":         `"timeout_ms":200`,
		"duration":        `"max_duration_ms":200`,
		"named, timeout":  `"timeout_ms":200,"request_id":"a"`,
		"named, duration": `"max_duration_ms":200,"request_id":"b"`,
	} {
		a := g.Post(harness.ChatPath, `{"model":"chat","max_tokens":1000,"ignore_eos":true,"messages":[{"role":"user","content":"x"}],`+option+`}`)
		if a.StatusCode != 408 || a.Code() != "request_timeout" || a.Header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: %s, x-should-retry %q", name, a, a.Header.Get("X-Should-Retry"))
		}
	}
	testutil.Tool(t, "node/node_modules/openai")
	harness.RunScript(t, []string{"node", filepath.Join(testutil.Root(), "tests/clients/retries.mjs")}, map[string]string{
		"BASE_URL": g.URL + "/v1", "MODEL": "chat", "NODE_MODULES": filepath.Join(testutil.Root(), ".tools", "node", "node_modules"),
	})
}
