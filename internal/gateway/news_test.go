package gateway

import (
	"slices"
	"testing"

	"github.com/sluice-gateway/sluice/engines/news"
)

// TestU10_KnownEngines: the engines of the models, and the catalogue with the file's own engines,
// are what the replicas are asked by.
func TestU10_KnownEngines(t *testing.T) {
	t.Parallel()
	c := parse(t, t.TempDir(), `
engines:
  - name: own
    versions:
      - {version: "1", tasks: [text-generation], command: [own], metrics: {path: /stats, running: own_running}}
models:
  - {name: mine, engine: own}
  - {name: theirs, launcher: upstream, upstreams: ["http://10.0.0.5:8000"]}
`)
	known := knownEngines(c)
	if e := known.Models["mine"]; len(known.Models) != 1 || e.Name != "own" || e.Metrics.Path != "/stats" || e.Metrics.Running != "own_running" {
		t.Errorf("models: %+v", known.Models)
	}
	for _, name := range []string{"own", "vllm", "sglang", "llama-cpp", "tei"} {
		if !slices.ContainsFunc(known.Engines, func(e news.Engine) bool { return e.Name == name && e.Metrics.Path != "" }) {
			t.Errorf("a server with the metrics of %s cannot be recognised", name)
		}
	}
}
