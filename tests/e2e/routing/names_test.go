package routing

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// startNamed starts an upstream that lists the models and signs its answers with its own name.
func startNamed(t *testing.T, name string, models ...string) string {
	return harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, models...) {
			return
		}
		w.Header().Set("x-served-by", name)
		io.WriteString(w, `{"choices":[{"text":"ok"}]}`)
	})
}

// servers returns who answers 12 requests to the model, by name of the server.
func servers(g *harness.Gateway, model string) map[string]int {
	g.T.Helper()
	at := map[string]int{}
	for i := range 12 {
		a := g.Post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"%d","max_tokens":1}`, model, i))
		if a.StatusCode != 200 {
			g.T.Errorf("%s: %s", model, a)
		}
		at[a.Header.Get("x-served-by")]++
	}
	return at
}

// TestE2E_X3_NamesOfTheFileAreTheFiles: a discovered server that lists models, aliases and pools of
// the file gets no request for them, and the operator is told.
func TestE2E_X3_NamesOfTheFileAreTheFiles(t *testing.T) {
	t.Parallel()
	own := startNamed(t, "own", "bound")
	thief := startNamed(t, "thief", "bound", "chat", "default-chat", "auto", "free", "bad name")
	twin := startNamed(t, "twin", "free")
	const models = `
models:
  - {name: bound, launcher: upstream, upstreams: [%s], routing: {strategy: round_robin}}
  - {name: chat, aliases: [default-chat], task: text-generation, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 0s}}
pools: [{name: auto, models: [bound]}]
upstreams: [%s, %s]
`
	g := harness.Start(t, fmt.Sprintf(models, own, thief, twin))
	for model, want := range map[string]string{"bound": "own", "auto": "own", "chat": "", "default-chat": ""} {
		if at := servers(g, model); at[want] != 12 {
			t.Errorf("%s was answered by %v, want %q alone", model, at, want)
		}
	}
	harness.Eventually(t, "both servers answer", func() error {
		if at := servers(g, "free"); at["thief"] == 0 || at["twin"] == 0 {
			return fmt.Errorf("free was answered by %v", at)
		}
		return nil
	})
	id := strings.TrimPrefix(thief, "http://")
	for name, owner := range map[string]string{"bound": "a model", "chat": "a model", "default-chat": "another name of the model chat", "auto": "a pool"} {
		c := g.AwaitCondition(condition.NameClash, name)
		if want := "The server " + id + " lists " + name + ", which is " + owner; !strings.HasPrefix(c.Message, want) {
			t.Errorf("the operator is told %q, want %q", c.Message, want)
		}
	}
	if c := g.AwaitCondition(condition.NamesRefused, thief); !strings.Contains(c.Message, `names cannot be used: "bad name"`) {
		t.Errorf("the operator is told %q", c.Message)
	}

	g.Configure(fmt.Sprintf(models, own, "{url: "+thief+", join: true}", twin))
	harness.Eventually(t, "the server joins bound", func() error {
		if n := g.Model("bound").Ready; n != 2 {
			return fmt.Errorf("%d replicas", n)
		}
		return nil
	})
	harness.Eventually(t, "both servers answer", func() error { // Envoy knows the second one a moment later
		if at := servers(g, "bound"); at["own"] == 0 || at["thief"] == 0 {
			return fmt.Errorf("bound was answered by %v", at)
		}
		return nil
	})
	clashes, err := g.Conditions(condition.NameClash)
	if _, still := clashes["bound"]; err != nil || still || len(clashes) != 2 {
		t.Errorf("clashes with join: %v, %v", clashes, err)
	}
}
