package engines

import (
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_R9_A429OfAnotherEnvoy: a server behind another Envoy marks its 429 with
// x-envoy-ratelimited. The request goes to another server all the same.
func TestE2E_R9_A429OfAnotherEnvoy(t *testing.T) {
	t.Parallel()
	models, asked := "models:\n", map[string]*atomic.Int64{}
	for name, on := range map[string]string{"usual": "", "own": ", fail_over_on: [429]"} {
		count := new(atomic.Int64)
		asked[name] = count
		limited := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			if harness.ServeModelList(w, r, name) {
				return
			}
			count.Add(1)
			w.Header().Set("x-envoy-ratelimited", "true")
			http.Error(w, `{"error":{"message":"slow down"}}`, http.StatusTooManyRequests)
		})
		good := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			if !harness.ServeModelList(w, r, name) {
				io.WriteString(w, `{"choices":[{"text":"ok"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
			}
		})
		models += fmt.Sprintf("  - {name: %s, launcher: upstream, upstreams: [%q, %q]%s}\n", name, limited, good, on)
	}
	g := harness.Start(t, models)
	for name, count := range asked {
		g.AwaitReadyReplicas(name, 2)
		for i := range 50 {
			a := g.Post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"%d"}`, name, i))
			if a.StatusCode != http.StatusOK {
				t.Fatalf("%s: %v", name, a)
			}
			if count.Load() > 0 {
				break
			}
		}
		if count.Load() == 0 {
			t.Errorf("%s: the server with the limit was never asked", name)
		}
	}
}
