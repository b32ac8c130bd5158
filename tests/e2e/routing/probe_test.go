package routing

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_U3_ServersWithoutAListOfModels: servers that list no models serve the models that the
// file names. The model of text-embeddings-inference is discovered.
func TestE2E_U3_ServersWithoutAListOfModels(t *testing.T) {
	t.Parallel()
	const info = `{"model_id":"BAAI/bge-m3","model_type":{"embedding":{"pooling":"cls"}},"max_concurrent_requests":7,"version":"1.9.3"}`
	tei := harness.StartEngine(t, map[string]string{"/health": "", "/info": info})
	plain, silent := harness.StartEngine(t, map[string]string{"/": "hello"}), harness.StartEngine(t, map[string]string{"/live": "ok"})
	g := harness.Start(t, fmt.Sprintf(`
upstreams: [%s]
models:
  - {name: named, launcher: upstream, upstreams: [%s]}
  - {name: plain, launcher: upstream, upstreams: [%s]}
  - {name: probed, launcher: upstream, upstreams: [{url: %s, health: {path: /live}}]}
`, tei, tei, plain, silent))
	for _, model := range []string{"BAAI/bge-m3", "named", "plain", "probed"} {
		if a := g.Post("/v1/embeddings", `{"model":"`+model+`","input":"x"}`); a.StatusCode != 200 || !strings.Contains(string(a.Content), "/v1/embeddings") {
			t.Errorf("%s: %s", model, a)
		}
	}
	harness.Eventually(t, "the slots of TEI", func() error {
		if r := g.Replicas()[strings.TrimPrefix(tei, "http://")]; r.Max != 7 || r.MaxFrom != "engine" || r.Engine.Name != "tei" {
			return fmt.Errorf("%+v, engine %+v", r, r.Engine)
		}
		return nil
	})
}

// TestE2E_U3_FailedProbes: a server gets no requests while its probe fails, and the operator is
// told which one.
func TestE2E_U3_FailedProbes(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	broken.Store(true)
	live := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/live" && broken.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		} else if !harness.ServeModelList(w, r, "m") {
			io.WriteString(w, `{"choices":[]}`)
		}
	})
	nothing := harness.StartEngine(t, nil)
	g := harness.Prepare(t, fmt.Sprintf(`
upstreams: [{url: %s, health: {path: /live}}]
models:
  - {name: mine, launcher: upstream, upstreams: [%s]}
`, live, nothing))
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitAdmin()
	for server, want := range map[string]string{live: "its /live answered 503", nothing: "name the path of its health check in health.path"} {
		if c := g.AwaitCondition(condition.UpstreamUnreachable, server); !strings.Contains(c.Message, want) {
			t.Errorf("%s: %+v", server, c)
		}
	}
	broken.Store(false)
	harness.Eventually(t, "the model of the server that is alive", func() error {
		if r := g.Replicas()[strings.TrimPrefix(live, "http://")]; r.State != "ready" {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}
