package gateway

import (
	"context"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/limits"
	"github.com/sluice-gateway/sluice/internal/process"
)

// startLimits makes a gateway and puts its first configuration in force. models are in the file
// beside the model "same".
func startLimits(t *testing.T, dir *process.Dir, models string) *Gateway {
	t.Helper()
	g := newGateway(t, dir, limitsConfig(t, dir, models))
	if err := g.applyFirst(); err != nil {
		t.Fatal(err)
	}
	return g
}

func limitsConfig(t *testing.T, dir *process.Dir, models string) *config.Config {
	t.Helper()
	c, err := config.Parse("sluice.yaml", []byte(listeners(t)+"state_dir: "+dir.Path()+`
auth: {mode: none}
models: [{name: same, launcher: none}`+models+`]
upstreams: ["http://127.0.0.1:9"]
discovered: {admission: {max_concurrent_requests: 3}}
`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// discover has the fleet contain the model "found", as if a server listed it.
func discover(g *Gateway) {
	g.fleet.Set("upstream", engines.Part{Models: []engines.Model{{Name: "found", Launcher: engines.Upstream, Discovered: true}}})
}

func patchLimit(t *testing.T, g *Gateway, model string, n int64) {
	t.Helper()
	if fault := g.limits.patch(t.Context(), limits.ModelKey(model), map[string]*int64{"max_concurrent_requests": &n}); fault != nil {
		t.Fatal(fault)
	}
}

func wantLimit(t *testing.T, g *Gateway, model string, want int64) {
	t.Helper()
	if values, _, patched, ok := g.limits.lookup(limits.ModelKey(model)); values["max_concurrent_requests"] != want {
		t.Errorf("%s: %v, patched %v, known %v; want %d", model, values, patched, ok, want)
	}
}

// A server that stops listing a model for a moment, and a restart, take no limit of run time away.
func TestLimitsOfDiscoveredModelsSurvive(t *testing.T) {
	dir := claimed(t, t.TempDir())
	g := startLimits(t, dir, "")
	discover(g)
	g.limits.sync()
	wantLimit(t, g, "found", 3)
	patchLimit(t, g, "found", 7)
	g.fleet.Set("upstream", engines.Part{})
	g.limits.sync()
	discover(g)
	g.limits.sync()
	wantLimit(t, g, "found", 7)

	g = startLimits(t, dir, "") // what is discovered is not known yet
	discover(g)
	g.limits.sync()
	wantLimit(t, g, "found", 7)
}

// The first configuration after a start lacks the models of custom resources. A model that the
// operator removes while the gateway runs loses its limits of run time.
func TestLimitsOfModelsThatComeAfterTheStart(t *testing.T) {
	dir := claimed(t, t.TempDir())
	const model = ", {name: object, launcher: none}"
	apply := func(g *Gateway, models string) {
		t.Helper()
		if err := g.applyLocked(limitsConfig(t, dir, models)); err != nil {
			t.Fatal(err)
		}
	}
	patchLimit(t, startLimits(t, dir, model), "object", 7)
	g := startLimits(t, dir, "")
	apply(g, model)
	wantLimit(t, g, "object", 7)
	apply(g, "")
	apply(g, model)
	wantLimit(t, g, "object", 0)
}

// The models that are discovered before the gateway follows the fleet have limits, too.
func TestLimitsOfTheFirstDiscoveredModels(t *testing.T) {
	g := startLimits(t, claimed(t, t.TempDir()), "")
	discover(g)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = g.followFleet(ctx) }()
	eventually(t, "the discovered model has limits", func() bool {
		_, _, _, ok := g.limits.lookup(limits.ModelKey("found"))
		return ok
	})
	cancel()
	<-done
	patchLimit(t, g, "found", 7)
	wantLimit(t, g, "found", 7)
}
