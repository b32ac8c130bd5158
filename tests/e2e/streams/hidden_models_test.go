package streams

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket/wsjson"
	"google.golang.org/grpc/metadata"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// hidden is a configuration with models of every kind that the tenant may not use, and one that it
// may use. The verb is the hash of its key.
const hidden = `
auth: {mode: keys}
tenants: [{name: acme, keys: [%q], models: [open, half]}]
models:
  - {name: open, engine: sim, variables: {prefill_rate: 0, token_interval: 0s}}
  - {name: shut, aliases: [shut-alias], engine: sim, replicas: {min: 0, max: 1}}
  - {name: shut-managed, engine: sim, replicas: {min: 0, max: 1}, stream: {mode: managed}}
  - {name: shut-native, engine: sim, replicas: {min: 0, max: 1}, stream: {mode: native}}
  - {name: shut-elsewhere, launcher: none}
  - {name: shut-dead, launcher: upstream, upstreams: [http://127.0.0.1:9]}
pools:
  - {name: shut-pool, models: [open]}
  - {name: half, models: [shut]}
`

// asker asks for a model in one way and returns all that a client sees of the answer.
type asker func(t *testing.T, g *harness.Gateway, key, model string) string

// shape returns all that a client sees of an answer, without what differs between any two.
func shape(a *harness.Answer) string {
	names := slices.Sorted(maps.Keys(a.Header))
	names = slices.DeleteFunc(names, func(n string) bool { return n == "Date" || n == "X-Request-Id" || n == "Content-Length" })
	return fmt.Sprint(a.Status, names, a.Header["X-Sluice-Source"], string(a.Content))
}

// post returns an asker that sends the body, with MODEL replaced.
func post(path, body string) asker {
	return func(_ *testing.T, g *harness.Gateway, key, model string) string {
		return shape(g.Post(path, strings.ReplaceAll(body, "MODEL", model), "Authorization: Bearer "+key))
	}
}

// askers has all ways to name a model.
func askers() map[string]asker {
	return map[string]asker{
		"chat":            post(harness.ChatPath, harness.ChatBody("MODEL", false, 1, "x")),
		"stream":          post(harness.ChatPath, harness.ChatBody("MODEL", true, 1, "x")),
		"named stream":    post(harness.ChatPath, `{"request_id":"MODEL","model":"MODEL","stream":true,"messages":[{"role":"user","content":"x"}]}`),
		"timed stream":    post(harness.ChatPath, `{"timeout_ms":60000,"model":"MODEL","stream":true,"messages":[{"role":"user","content":"x"}]}`),
		"embeddings":      post("/v1/embeddings", `{"model":"MODEL","input":"x"}`),
		"task of a model": post("/schedule", `{"estimated_tokens":1,"model":"MODEL"}`),
		"task of a pool":  post("/schedule", `{"estimated_tokens":1,"pool":"MODEL"}`),
		"card": func(_ *testing.T, g *harness.Gateway, key, model string) string {
			return shape(g.Fetch("/v1/models/"+model, "Authorization: Bearer "+key))
		},
		"realtime": func(t *testing.T, g *harness.Gateway, key, model string) string {
			ws := g.Realtime(key)
			harness.SendMessage(t, ws, harness.Message{"type": "start", "model": model, "messages": []harness.Message{{"role": "user", "content": "x"}}})
			ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
			defer cancel()
			var m harness.Message
			if err := wsjson.Read(ctx, ws, &m); err != nil {
				t.Fatal(err)
			}
			delete(m, "request_id") // of the turn: each has its own
			return fmt.Sprint(m)
		},
		"grpc": func(t *testing.T, g *harness.Gateway, key, model string) string {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+key)
			text, final, err := generate(ctx, dialGRPC(g), &llmv1.StartRequest{Model: model, Messages: []string{"x"}, MaxTokens: 1})
			return fmt.Sprint(text, final, err)
		},
	}
}

// TestE2E_X14_HiddenModelsDoNotExist: on every route, a model, alias or pool that a tenant may not
// use is answered like one that does not exist.
func TestE2E_X14_HiddenModelsDoNotExist(t *testing.T) {
	t.Parallel()
	key := authz.NewKey()
	g := harness.Prepare(t, fmt.Sprintf(hidden, key.Hash))
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitAdmin()
	allowed := harness.ChatBody("open", false, 1, "x")
	harness.Eventually(t, "open serves", func() error {
		a, err := g.TryPost(t.Context(), harness.ChatPath, allowed, "Authorization: Bearer "+key.Secret)
		if err == nil && a.StatusCode != 200 {
			err = fmt.Errorf("%s", a)
		}
		return err
	})
	for way, ask := range askers() {
		want := strings.ReplaceAll(ask(t, g, key.Secret, "missing"), "missing", "NAME")
		if !strings.Contains(want, "does not exist, or this API key may not use it") {
			t.Errorf("%s of a missing model: %s", way, want)
		}
		for _, name := range []string{"shut", "shut-alias", "shut-managed", "shut-native", "shut-elsewhere", "shut-dead", "shut-pool"} {
			if got := strings.ReplaceAll(ask(t, g, key.Secret, name), name, "NAME"); got != want {
				t.Errorf("%s of %s can be told from a missing model:\n%s\n%s", way, name, got, want)
			}
		}
	}
	if a := g.Post(harness.ChatPath, harness.ChatBody("half", false, 1, "x"), "Authorization: Bearer "+key.Secret); a.Code() != "model_not_found" {
		t.Errorf("a pool of hidden models: %s", a)
	}
	if n := g.Model("shut").Replicas; n != 0 {
		t.Errorf("asking for a hidden model has started %d replicas", n)
	}
}
