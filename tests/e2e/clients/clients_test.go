package clients

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
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
    admission: {max_concurrent_requests: 1, max_queue: 1, queue_timeout: 60s}
`)
	// The model busy stays as full as can be, so that the clients meet a RateLimitError.
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	for range 2 {
		go g.TryPost(ctx, "/v1/chat/completions", harness.ChatBody("busy", true, 1, "x"), "Authorization: Bearer "+key.Secret)
	}
	harness.Eventually(t, "busy", func() error {
		if m := g.Model("busy"); m.InFlight != 1 || m.Queued != 1 {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
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

func TestE2E_E4_U17_AdminPageInChromium(t *testing.T) {
	t.Parallel()
	server := harness.StartEngine(t, map[string]string{"/v1/models": `{"data":[{"id":7},{"id":"qwen"},{"id":"other"}]}`})
	g := harness.Start(t, harness.SlowSims+"upstreams: [{url: "+server+", models: [q*]}]\n")
	checkPage(t, g, "EXPECT_UPSTREAM", strings.TrimPrefix(server, "http://"), "EXPECT_SEEN", "lists 2 models · 1 left out by the file · The server")
}

// The page asks for a token, and works with the cookie of a login.
func TestE2E_X12_LoginOnThePage(t *testing.T) {
	t.Parallel()
	key := authz.NewKey()
	g := harness.Prepare(t, harness.SlowSims+"\nadmin_auth: {tokens: [{name: ops, role: operator, hash: \""+key.Hash+"\"}]}\n")
	g.AdminToken = key.Secret
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	checkPage(t, g)
}

// checkPage opens the operator's page in Chromium while clients send requests. more are names and
// values of further settings of the script.
func checkPage(t *testing.T, g *harness.Gateway, more ...string) {
	t.Helper()
	testutil.Tool(t, "node/node_modules/playwright-core")
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", false, 5, "hello"))
			}
		}
	}()
	settings := map[string]string{
		"ADMIN_URL": g.Admin, "ADMIN_TOKEN": g.AdminToken, "EXPECT_MODEL": "chat", "EXPECT_REPLICA": "chat-2", "EDIT_MODEL": "chat",
		"NODE_MODULES": filepath.Join(testutil.Root(), ".tools", "node", "node_modules"),
	}
	for i := 0; i+1 < len(more); i += 2 {
		settings[more[i]] = more[i+1]
	}
	harness.RunScript(t, []string{"node", filepath.Join(testutil.Root(), "tests/clients/page.mjs")}, settings)
}
