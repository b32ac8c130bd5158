package routing

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_U18_NotCapable: a request to an endpoint that the model's task does not serve is refused,
// and starts no replica.
func TestE2E_U18_NotCapable(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - {name: embed, engine: sim, task: embedding}
  - {name: chat, engine: sim, replicas: {min: 0, max: 1}}
`)
	for name, body := range map[string]string{
		"plain": `{"model":"chat","input":"x"}`,
		"named": `{"model":"chat","input":"x","request_id":"a"}`,
	} {
		a := g.Post("/v1/embeddings", body)
		if a.StatusCode != 400 || a.Code() != "model_not_capable" || !strings.Contains(string(a.Content), "whose task is embedding") {
			t.Errorf("%s: %s", name, a)
		}
	}
	if a := g.Post(harness.ChatPath, harness.ChatBody("embed", true, 1, "x")); a.Code() != "model_not_capable" {
		t.Errorf("a chat with a model for embeddings: %s", a)
	}
	if a := g.Post("/v1/embeddings", `{"model":"embed","input":"x"}`); a.StatusCode != 200 {
		t.Errorf("the model for embeddings: %s", a)
	}
	if n := g.Model("chat").Replicas; n != 0 {
		t.Errorf("%d replicas were started", n)
	}
}
