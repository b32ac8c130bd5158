package clients

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// messagesModels has a model for each way of a request to the Messages API. native has the routes,
// and translated has not. managed has them, and all its streams go through the relay.
func messagesModels(t *testing.T, key authz.Key) string {
	t.Helper()
	return `
auth: {mode: keys}
tenants:
  - {name: acme, keys: ["` + key.Hash + `"]}
models:
  - {name: native, engine: sim, variables: {prefill_rate: 0}}
  - {name: translated, engine: sim, routes: [], variables: {prefill_rate: 0}}
  - {name: managed, engine: sim, stream: {mode: managed}, variables: {prefill_rate: 0}}
  - {name: embed, task: embedding, engine: sim}
`
}

// TestE2E_B9_Messages sends requests to the Messages API through Envoy on each way.
func TestE2E_B9_Messages(t *testing.T) {
	t.Parallel()
	key := authz.NewKey()
	g := harness.Start(t, messagesModels(t, key))
	auth := "x-api-key: " + key.Secret
	body := func(model, more string) string {
		return fmt.Sprintf(`{"model":%q,"system":"be brief","max_tokens":6,"messages":[{"role":"user","content":"hello there"}]%s}`, model, more)
	}
	for _, model := range []string{"native", "translated", "managed"} {
		if a := g.Post("/v1/messages", body(model, ""), auth, "anthropic-version: 2023-06-01"); a.StatusCode != http.StatusOK ||
			!strings.Contains(string(a.Content), `"type":"message"`) || !strings.Contains(string(a.Content), `"output_tokens":6`) {
			t.Errorf("%s: %s", model, a)
		}
		a := g.Post("/v1/messages", body(model, `,"stream":true`), auth)
		for _, event := range []string{"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"} {
			if strings.Count(string(a.Content), "event: "+event+"\n") == 0 {
				t.Errorf("%s, stream without %s: %s", model, event, a)
			}
		}
		if strings.Contains(string(a.Content), "[DONE]") || !strings.HasPrefix(a.Header.Get("content-type"), "text/event-stream") {
			t.Errorf("%s, stream: %v %s", model, a.Header, a)
		}
		if a := g.Post("/v1/messages/count_tokens", body(model, ""), auth); !strings.Contains(string(a.Content), `"input_tokens"`) {
			t.Errorf("%s, count: %s", model, a)
		}
		g.AwaitIdle(model)
	}
	for name, c := range map[string]struct {
		body, auth string
		status     int
		kind       string
	}{
		"no key":           {body("native", ""), "x-api-key: wrong", 401, "authentication_error"},
		"no model":         {body("none", ""), auth, 404, "not_found_error"},
		"another task":     {body("embed", ""), auth, 400, "invalid_request_error"},
		"no JSON":          {`{`, auth, 400, "invalid_request_error"},
		"not translatable": {body("translated", `,"mcp_servers":[{}]`), auth, 400, "invalid_request_error"},
		"engine, native":   {strings.Replace(body("native", ""), `"hello there"`, `7`, 1), auth, 400, "invalid_request_error"},
		"batches":          {`{}`, auth, 404, "not_found_error"},
	} {
		path := "/v1/messages"
		if name == "batches" { // which Sluice does not have
			path += "/batches?limit=1"
		}
		a := g.Post(path, c.body, c.auth)
		if a.StatusCode != c.status || !strings.HasPrefix(string(a.Content), `{"type":"error","error":{"type":"`+c.kind+`"`) {
			t.Errorf("%s: %s, want %d %s", name, a, c.status, c.kind)
		}
	}
}

// TestE2E_B9_MessagesThatFail: an engine fails before the first token, or breaks the stream off. On
// the way through the relay it looks to clients of the Messages API as it does to those of chats.
func TestE2E_B9_MessagesThatFail(t *testing.T) {
	t.Parallel()
	key := authz.NewKey()
	g := harness.Start(t, messagesModels(t, key))
	auth := "x-api-key: " + key.Secret
	body := `{"model":"translated","stream":true,"max_tokens":9,"ignore_eos":true,"messages":[{"role":"user","content":"hello there"}]}`
	a := g.Post("/v1/messages", body, auth, "x-sim-fault: status=429:7")
	if a.StatusCode != 429 || !strings.Contains(string(a.Content), `"type":"rate_limit_error"`) || a.Header.Get("retry-after") == "" {
		t.Errorf("429: %v %s", a.Header, a)
	}
	for fault, want := range map[string]string{"cut=3": "upstream_truncated", "error=3": "event: error"} {
		a := g.Post("/v1/messages", body, auth, "x-sim-fault: "+fault)
		text := string(a.Content)
		if at := strings.Index(text, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\""); at < 0 || !strings.Contains(text[at:], want) ||
			strings.Contains(text, "message_stop") {
			t.Errorf("%s: %s", fault, text)
		}
	}
	named := g.Post("/v1/messages", body, auth, "idempotency-key: one")
	again := g.Fetch("/v1/streams/one?after=3", auth)
	if whole := string(named.Content); !strings.HasSuffix(whole, string(again.Content)) || !strings.Contains(string(again.Content), "message_stop") ||
		strings.Contains(string(again.Content), "message_start") {
		t.Errorf("resumed: %s\nof: %s", again, whole)
	}
	g.AwaitIdle("translated")
}

// TestE2E_B9_AnthropicClients lets Anthropic's own clients speak to a model on each way.
func TestE2E_B9_AnthropicClients(t *testing.T) {
	t.Parallel()
	python, modules := testutil.Tool(t, "venv/bin/python"), filepath.Join(testutil.Root(), ".tools", "node", "node_modules")
	testutil.Tool(t, "node/node_modules/@anthropic-ai/sdk")
	key := authz.NewKey()
	g := harness.Start(t, messagesModels(t, key))
	for _, model := range []string{"native", "translated", "managed"} {
		settings := map[string]string{"BASE_URL": g.URL, "API_KEY": key.Secret, "MODEL": model, "EMBED_MODEL": "embed", "NODE_MODULES": modules}
		if model != "native" {
			settings["FAULTS"] = "1"
		}
		t.Run(model, func(t *testing.T) {
			harness.RunScript(t, []string{python, filepath.Join(testutil.Root(), "tests/clients/messages.py")}, settings)
			harness.RunScript(t, []string{"node", filepath.Join(testutil.Root(), "tests/clients/messages.mjs")}, settings)
		})
		g.AwaitIdle(model)
	}
}

// TestE2E_B9_Frameworks lets the clients of LangChain and LlamaIndex speak to a model on each way.
func TestE2E_B9_Frameworks(t *testing.T) {
	t.Parallel()
	python := testutil.Tool(t, "frameworks/bin/python")
	key := authz.NewKey()
	g := harness.Start(t, messagesModels(t, key))
	harness.RunScript(t, []string{python, filepath.Join(testutil.Root(), "tests/clients/frameworks.py")},
		map[string]string{"BASE_URL": g.URL, "API_KEY": key.Secret, "MODELS": "native managed", "EMBED_MODEL": "embed"})
}

// TestE2E_B9_AISDK lets the AI SDK speak to a model on each way. A fault that the relay tells of
// reaches it as that fault alone.
func TestE2E_B9_AISDK(t *testing.T) {
	t.Parallel()
	modules := filepath.Join(testutil.Root(), ".tools", "node", "node_modules")
	testutil.Tool(t, "node/node_modules/ai")
	key := authz.NewKey()
	g := harness.Start(t, strings.ReplaceAll(messagesModels(t, key), "prefill_rate: 0", "prefill_rate: 0, token_interval: 1ms"))
	for model, faults := range map[string]string{"native": "", "managed": "1"} {
		t.Run(model, func(t *testing.T) {
			harness.RunScript(t, []string{"node", filepath.Join(testutil.Root(), "tests/clients/aisdk.mjs")}, map[string]string{
				"BASE_URL": g.URL, "API_KEY": key.Secret, "MODEL": model, "EMBED_MODEL": "embed", "FAULTS": faults, "NODE_MODULES": modules})
		})
		g.AwaitIdle(model)
	}
}
