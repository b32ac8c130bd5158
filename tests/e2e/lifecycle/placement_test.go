package lifecycle

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// What a host has not got is said, and keeps nobody else waiting.
func TestE2E_N5_ReplicaThatDoesNotFitSaysWhy(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - name: large
    engine: sim
    task: embedding
    resources: {memory: 1000Ti}
    placement: pack
    replicas: {min: 0, max: 1}
    cold_start_timeout: 1s
  - name: small
    engine: sim
    task: embedding
    resources: {cpu: 0.5, memory: 1MiB}
`)
	if a := g.Post("/v1/embeddings", `{"model":"small","input":"a"}`); a.StatusCode != 200 {
		t.Errorf("the model that fits: %d %s", a.StatusCode, a.Content)
	}
	if a := g.Post("/v1/embeddings", `{"model":"large","input":"a"}`); a.StatusCode != 503 || !strings.Contains(string(a.Content), "cold_start_timeout") {
		t.Errorf("the model that does not fit: %d %s", a.StatusCode, a.Content)
	}
	harness.Eventually(t, "the reason", func() error {
		if r := g.Replicas()["large-0"]; r.State != "pending" || !strings.HasPrefix(r.Reason, "needs 1024000 GiB of memory, ") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	g.AwaitReady() // the file asks for none of it
	var list struct {
		Nodes []struct {
			Name         string
			CPUs, Memory struct{ Total, Placed float64 }
		}
	}
	g.Get("/api/v1/nodes", &list)
	if len(list.Nodes) != 1 {
		t.Fatalf("nodes: %+v", list)
	}
	n := list.Nodes[0]
	if n.Name == "" || n.CPUs.Total != process.CPULimit() || n.CPUs.Placed != 0.5 || n.Memory.Total < 1<<27 || n.Memory.Placed != 1<<20 {
		t.Errorf("this host: %+v", n)
	}
}
