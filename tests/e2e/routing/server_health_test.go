package routing

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_U2_HealthIsByServerAndModel: a server that fails for a model with another server gets no
// requests for it, although it is the only server of a model that works.
func TestE2E_U2_HealthIsByServerAndModel(t *testing.T) {
	t.Parallel()
	var failures atomic.Int64
	half := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "both", "alone") {
			return
		}
		var body struct{ Model string }
		json.NewDecoder(r.Body).Decode(&body)
		if body.Model == "both" {
			failures.Add(1)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		io.WriteString(w, `{"choices":[{"text":"ok"}]}`)
	})
	whole := startNamed(t, "whole", "both")
	g := harness.Start(t, fmt.Sprintf(`
models:
  - {name: both, launcher: upstream, upstreams: [%s, %s], routing: {strategy: round_robin, slow_start: 0s}, fail_over_on: []}
  - {name: alone, launcher: upstream, upstreams: [%s]}
`, half, whole, half))
	post := func(model string) *harness.Answer {
		return g.Post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"x","max_tokens":1}`, model))
	}
	harness.Eventually(t, "the server is out of the model", func() error {
		for range 2 {
			post("both")
		}
		// The next look at the server, which is good, brings it back.
		told, err := g.Conditions(condition.UpstreamUnreachable)
		if ready := g.Model("both").Ready; err != nil || ready != 1 || !strings.Contains(told[half].Message, "gets no requests for both: answered 500.") {
			return fmt.Errorf("%d replicas are ready after %d failures, and the operator is told %v %w", ready, failures.Load(), told, err)
		}
		return nil
	})
	for range 4 {
		if a := post("alone"); a.StatusCode != 200 {
			t.Errorf("the model that works there: %s", a)
		}
	}
}
