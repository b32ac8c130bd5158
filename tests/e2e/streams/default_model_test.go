package streams

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_R5_DefaultModel: a request that names no model goes to the default model, or to the only
// model of its tenant, by every protocol. Else the error names the field and says what to do.
func TestE2E_R5_DefaultModel(t *testing.T) {
	t.Parallel()
	keys, tenants := harness.TenantKeys("acme", "lone", "lost")
	tenants = strings.Replace(tenants, "name: lone,", "name: lone, models: [other],", 1)
	tenants = strings.Replace(tenants, "name: lost,", "name: lost, models: [other, fourth],", 1)
	g := harness.Start(t, "\nauth: {mode: keys}\ndefault_model: chat\n"+tenants+`
models:
  - {name: chat, engine: sim, variables: {prefill_rate: 0, token_interval: 0s}}
  - {name: other, engine: sim, protocol: grpc, variables: {prefill_rate: 0, token_interval: 0s}}
  - {name: third, launcher: none}
  - {name: fourth, engine: sim, replicas: {min: 0}}
`)
	client := dialGRPC(g)
	seed := &llmv1.StartRequest{RequestId: "seed", Messages: []string{"tell me"}, Temperature: new(float32), MaxTokens: 3, TimeoutMs: 60000} // fields 1 to 5
	as := func(key string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+key)
	}
	for tenant, model := range map[string]string{"acme": "chat", "lone": "other"} {
		key := keys[tenant]
		for name, body := range map[string]string{
			"native":  `{"messages":[{"role":"user","content":"x"}]}`,
			"named":   `{"request_id":"` + tenant + `","messages":[{"role":"user","content":"x"}]}`,
			"managed": `{"stream":true,"timeout_ms":60000,"messages":[{"role":"user","content":"x"}]}`,
		} {
			a := g.Post(harness.ChatPath, body, "Authorization: Bearer "+key)
			if a.StatusCode != 200 || !strings.Contains(string(a.Content), `"model":"`+model+`"`) {
				t.Errorf("%s, %s: %s", tenant, name, a)
			}
		}
		if text, final, err := generate(as(key), client, seed); err != nil || text == "" || final.GetModel() != model {
			t.Errorf("%s, gRPC: %q %v %v", tenant, text, final, err)
		}
		ws := g.Realtime(key)
		harness.SendMessage(t, ws, harness.Message{"type": "start", "messages": []harness.Message{{"role": "user", "content": "x"}}})
		readMessages(t, ws, "final")
	}
	const hint = "name one of the models that GET /v1/models lists"
	a := g.Post(harness.ChatPath, `{"messages":[{"role":"user","content":"x"}]}`, "Authorization: Bearer "+keys["lost"])
	if a.StatusCode != 400 || !strings.Contains(string(a.Content), `"param":"model"`) || !strings.Contains(string(a.Content), hint) {
		t.Errorf("no default model: %s", a)
	}
	if _, _, err := generate(as(keys["lost"]), client, seed); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), hint) {
		t.Errorf("no default model, gRPC: %v", err)
	}
}
