package streams

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// A stream that ends early has the usage that its engine has counted, although its client has not
// asked for it. The usage of an engine that nobody may ask is marked as an estimate, in the stream
// and in the list of requests.
func TestE2E_R2_UsageOfAnEarlyEnd(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
engines:
  - name: silent
    versions:
      - version: "1"
        tasks: [text-generation]
        command: ["{{.Sluice}}", sim, --host, "{{.Host}}", --port, "{{.Port}}", --model, "{{.Name}}", --served-model-name, "{{.Name}}"]
models:
  - {name: counted, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 5ms}}
  - {name: guessed, engine: silent, launcher: local}
`)
	for model, estimated := range map[string]bool{"counted": false, "guessed": true} {
		body := strings.Replace(harness.ChatBody(model, true, 100, "hello"), "{", `{"timeout_ms":5000,`, 1)
		answer := g.Post(harness.ChatPath, body, "x-sim-fault: stall=6:1m")
		text := string(answer.Content)
		if strings.Count(text, `"usage":{`) != 1 || strings.Contains(text, `"estimated":true`) != estimated || !strings.Contains(text, `"finish_reason":"length"`) {
			t.Errorf("%s: %s", model, answer)
		}
		g.AwaitIdle(model)
		var list struct {
			Requests []struct {
				Model     string `json:"model"`
				TokensOut int    `json:"tokens_out"`
				Estimated bool   `json:"estimated"`
			} `json:"requests"`
		}
		harness.Eventually(t, "the request of "+model+" is in the list", func() error {
			g.Get("/api/v1/requests?limit=1", &list)
			if len(list.Requests) != 1 || list.Requests[0].Model != model || list.Requests[0].TokensOut < 3 || list.Requests[0].Estimated != estimated {
				return fmt.Errorf("%+v", list)
			}
			return nil
		})
	}
}
