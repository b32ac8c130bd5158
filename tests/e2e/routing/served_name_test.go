package routing

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// startKnowing starts an upstream that knows one model. It answers 404 to requests for others, and
// the status to requests for its own.
func startKnowing(t *testing.T, name string, status int) string {
	return harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, name) {
			return
		}
		var body struct{ Model string }
		if json.NewDecoder(r.Body).Decode(&body) != nil || body.Model != name {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("x-served-by", name)
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"model":%q,"choices":[{"text":"ok"}]}`, name)
	})
}

// TestE2E_U4_OneModelUnderTwoNames: servers that know a model by different names are replicas of
// one model. Each gets its own name, a retry never crosses names, and an unknown name is told.
func TestE2E_U4_OneModelUnderTwoNames(t *testing.T) {
	t.Parallel()
	long, path, own := startKnowing(t, "Qwen/Qwen2.5-7B", 200), startKnowing(t, "/models/q w#é", 200), startKnowing(t, "pretty", 200)
	broken := startKnowing(t, "/models/q w#é", 503)
	g := harness.Start(t, fmt.Sprintf(`
models:
  - name: pretty
    aliases: [p]
    launcher: upstream
    routing: {strategy: round_robin, slow_start: 0s}
    upstreams: [{url: %s, model: Qwen/Qwen2.5-7B}, {url: %s, model: "/models/q w#é"}, {url: %s, model: "/models/q w#é"}, %s]
  - {name: wrong, launcher: upstream, upstreams: [{url: %s, model: gone}]}
`, long, path, broken, own, own))
	for _, stream := range []bool{false, true} {
		at := map[string]int{}
		for i := range 24 {
			a := g.Post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"%d","max_tokens":1,"stream":%t}`, []string{"pretty", "p"}[i%2], i, stream))
			if a.StatusCode != 200 {
				t.Errorf("request %d: %s", i, a)
			}
			at[a.Header.Get("x-served-by")]++
		}
		for _, name := range []string{"Qwen/Qwen2.5-7B", "/models/q w#é", "pretty"} {
			if at[name] == 0 {
				t.Errorf("no request was answered under the name %q: %v", name, at)
			}
		}
	}
	var list struct {
		Replicas []struct {
			ID, Model   string
			ServedModel string `json:"served_model"`
		}
	}
	g.Get("/api/v1/replicas", &list)
	shown := map[string]string{}
	for _, r := range list.Replicas {
		shown["http://"+r.ID] = r.ServedModel
	}
	if shown[long] != "Qwen/Qwen2.5-7B" || shown[path] != "/models/q w#é" {
		t.Errorf("the operator is shown %+v", list.Replicas)
	}
	c := g.AwaitCondition(condition.ModelNotListed, "wrong at "+own)
	if want := "The server " + own + ` does not list "gone", which is the name of the model wrong there.`; !strings.HasPrefix(c.Message, want) {
		t.Errorf("the operator is told %q, want %q", c.Message, want)
	}
}

// TestE2E_U4_ManagedRequests: a request that the relay carries has the name of its server, too.
func TestE2E_U4_ManagedRequests(t *testing.T) {
	t.Parallel()
	long, own := startKnowing(t, "Qwen/Qwen2.5-7B", 200), startKnowing(t, "pretty", 200)
	g := harness.Start(t, fmt.Sprintf(`
models:
  - name: pretty
    launcher: upstream
    routing: {strategy: round_robin, slow_start: 0s}
    stream: {mode: managed}
    upstreams: [{url: %s, model: Qwen/Qwen2.5-7B}, %s]
`, long, own))
	for i := range 6 {
		a := g.Post("/v1/completions", fmt.Sprintf(`{"model":"pretty","prompt":"%d","max_tokens":1,"request_id":"r%d"}`, i, i))
		if a.StatusCode != 200 {
			t.Errorf("request %d: %s", i, a)
		}
	}
}

// TestE2E_N3_U4_LaunchedEngineThatKnowsOneName: the command cannot tell this engine a name, and it
// answers 404 to any other than its own.
func TestE2E_N3_U4_LaunchedEngineThatKnowsOneName(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
engines:
  - name: stubborn
    versions:
      - version: "1"
        tasks: [text-generation]
        command: ["{{.Sluice}}", sim, --host, "{{.Host}}", --port, "{{.Port}}", --served-model-name, /weights/q]
        ready: {path: /health}
models:
  - {name: native, aliases: [other], engine: stubborn, served_model: /weights/q, stream: {mode: native}}
  - {name: managed, engine: stubborn, served_model: /weights/q, stream: {mode: managed}}
  - {name: wrong, engine: stubborn}
`)
	for _, stream := range []bool{false, true} {
		for model, want := range map[string]int{"native": 200, "other": 200, "managed": 200, "wrong": 404} {
			if a := g.Post("/v1/chat/completions", harness.ChatBody(model, stream, 2, "Hello")); a.StatusCode != want {
				t.Errorf("%s, stream %v: %s, want %d", model, stream, a, want)
			}
		}
	}
	for id, want := range map[string]string{"native-0": "/weights/q", "wrong-0": "wrong"} {
		if r := g.Replicas()[id]; r.ServedModel != want {
			t.Errorf("the operator is shown %+v, want the name %s", r, want)
		}
	}
}
