package lifecycle

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_O1_ReadyIsNotAMatterOfReplicas: a model whose only upstream is dead, and a model that is
// starting, leave the gateway ready. Each has a condition, and the metrics say the same.
func TestE2E_O1_ReadyIsNotAMatterOfReplicas(t *testing.T) {
	t.Parallel()
	dead := fmt.Sprint("http://127.0.0.1:", testutil.FreePort(t))
	g := harness.Prepare(t, `models:
  - {name: dead, launcher: upstream, upstreams: [{url: `+dead+`}]}
  - {name: slow, engine: sim, replicas: {min: 1, max: 1}, variables: {load_time: 1h}}
  - {name: chat, engine: sim, replicas: {min: 1, max: 1}}
`)
	t.Cleanup(g.Stop)
	g.Launch()
	harness.Eventually(t, "the gateway is ready", func() error { return g.TryGet("/readyz", new(struct{})) })

	c := g.AwaitCondition(condition.ModelReady, "dead")
	if c.Status != condition.False || c.Severity != condition.Error || c.Since.IsZero() {
		t.Errorf("the model without a server: %+v", c)
	}
	if c := g.AwaitCondition(condition.UpstreamUnreachable, dead); !strings.Contains(c.Message, "Check that the server runs") {
		t.Errorf("the server that does not answer: %+v", c)
	}
	if c := g.AwaitCondition(condition.ModelReady, "slow"); c.Severity != condition.Info || c.Reason != "Starting" {
		t.Errorf("the model that is starting: %+v", c)
	}
	for series, want := range map[string]string{
		`sluice_model_ready{model="chat"}`:                                    "1",
		`sluice_model_ready{model="dead"}`:                                    "0",
		`sluice_condition{subject="dead",type="ModelReady"}`:                  "1",
		`sluice_condition{subject="",type="StateNotWritable"}`:                "0",
		`sluice_condition{subject="` + dead + `",type="UpstreamUnreachable"}`: "1",
	} {
		harness.Eventually(t, series, func() error {
			if line := series + " " + want + "\n"; !strings.Contains(metrics(t, g), line) {
				return fmt.Errorf("the metrics lack %s", line)
			}
			return nil
		})
	}
	if err := g.TryGet("/readyz", new(struct{})); err != nil {
		t.Errorf("the gateway is not ready: %v", err)
	}
}

// metrics returns what the gateway's admin listener answers to a scrape.
func metrics(t *testing.T, g *harness.Gateway) string {
	t.Helper()
	r, err := http.Get(g.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
