package clients

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func TestE2E_N1_P1_S16_OfficialClients(t *testing.T) {
	t.Parallel()
	key := authz.NewKey()
	g := harness.Start(t, `
auth: {mode: keys}
tenants:
  - {name: acme, keys: ["`+key.Hash+`"]}
models:
  - name: chat
    task: text-generation
    engine: sim
    launcher: local
    replicas: {min: 2, max: 2}
    variables: {prefill_rate: 0, token_interval: 1ms}
  - name: embed
    task: embedding
    engine: sim
    launcher: local
  - {name: speech, task: transcription, engine: sim}
  - name: busy
    launcher: upstream
    upstreams: [`+harness.StartHeldUpstream(t).URL+`]
    admission: {max_concurrent_requests: 1, max_queue: 1, queue_timeout: 50m}
`)
	// The model busy stays as full as can be, so that the clients meet a RateLimitError.
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	for range 2 {
		go g.TryPost(ctx, "/v1/chat/completions", harness.ChatBody("busy", true, 1, "x"), "Authorization: Bearer "+key.Secret)
	}
	g.AwaitModel("busy", "busy", func(m harness.Model) bool { return m.InFlight == 1 && m.Queued == 1 })
	settings := map[string]string{
		"BASE_URL": g.URL + "/v1", "MODEL": "chat", "EMBED_MODEL": "embed", "AUDIO_MODEL": "speech", "BUSY_MODEL": "busy", "API_KEY": key.Secret,
		"NODE_MODULES": filepath.Join(testutil.Root(), ".tools", "node", "node_modules"),
	}
	t.Run("python", func(t *testing.T) {
		harness.RunScript(t, []string{testutil.Tool(t, "venv/bin/python"), filepath.Join(testutil.Root(), "tests/clients/chat.py")}, settings)
	})
	t.Run("node", func(t *testing.T) {
		testutil.Tool(t, "node/node_modules/openai")
		harness.RunScript(t, []string{"node", filepath.Join(testutil.Root(), "tests/clients/chat.mjs")}, settings)
	})
	leave()
	g.AwaitIdle("busy")
	g.AwaitIdle("chat")
}
