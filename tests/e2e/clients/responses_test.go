package clients

import (
	"path/filepath"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// The helpers of the official clients build a response from its events. They understand streams
// that Sluice ends early: after a time-out, by a moderation rule, or after a failure.
func TestE2E_R1_ResponsesThatEndEarly(t *testing.T) {
	t.Parallel()
	keys, text := harness.TenantKeys("acme")
	g := harness.Start(t, "\nauth: {mode: keys}\n"+text+`
models:
  - name: m
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 10ms}
    stream: {mode: managed}
moderation:
  - {name: words, literals: [abracadabra]}
`)
	settings := map[string]string{
		"BASE_URL": g.URL + "/v1", "API_KEY": keys["acme"], "MODEL": "m", "FORBIDDEN": "abracadabra",
		"NODE_MODULES": filepath.Join(testutil.Root(), ".tools", "node", "node_modules"),
	}
	t.Run("python", func(t *testing.T) {
		t.Parallel()
		harness.RunScript(t, []string{testutil.Tool(t, "venv/bin/python"), filepath.Join(testutil.Root(), "tests/clients/responses.py")}, settings)
	})
	t.Run("node", func(t *testing.T) {
		t.Parallel()
		testutil.Tool(t, "node/node_modules/openai")
		harness.RunScript(t, []string{"node", filepath.Join(testutil.Root(), "tests/clients/responses.mjs")}, settings)
	})
	t.Cleanup(func() { g.AwaitIdle("m") })
}
