package gateway

import (
	"slices"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// TestBoundByRoute: the routes of Envoy have the longest bound of all models. A request to a model
// with a shorter one has to carry it.
func TestBoundByRoute(t *testing.T) {
	for file, want := range map[string]map[string]bool{
		"models: [{name: a, engine: sim}, {name: b, engine: sim, stream: {max_duration: 2s}}]": {"a": true, "b": false},
		"models: [{name: a, engine: sim}, {name: b, engine: sim, stream: {max_duration: 1h}}]": {"a": false, "b": true},
	} {
		c, err := config.Parse("f", []byte(file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range c.Models {
			if p := policy(m, maxDuration(c)); p.BoundByRoute != want[m.Name] || p.MaxDuration == 0 {
				t.Errorf("%s: the policy of %s: %+v", file, m.Name, p)
			}
		}
	}
}

// TestModerationOfAPool: a rule that names a pool concerns each model of the pool.
func TestModerationOfAPool(t *testing.T) {
	c, err := config.Parse("f", []byte("models: [{name: a, engine: sim, aliases: [x]}, {name: b, engine: sim}, {name: c, engine: sim}]\n"+
		"pools: [{name: both, models: [x, b]}]\nmoderation: [{name: r, literals: [secret], models: [both]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	rules := streamRules(c)
	for model, want := range map[string]bool{"a": true, "b": true, "c": false} {
		if got := rules.Moderated(model, "anyone"); got != want {
			t.Errorf("the answers of %s are moderated: %t, want %t", model, got, want)
		}
	}
}

// The engine of a launched model is known before its replicas were asked for it.
func TestX6_ALaunchedEngineThatRefusesAsFailure(t *testing.T) {
	t.Parallel()
	for engine, want := range map[string]bool{"llama-cpp": true, "vllm": false, "": false} {
		if got := wayPolicy(config.Model{Engine: engine}).RefusesAsFailure; got != want {
			t.Errorf("%q: %v, want %v", engine, got, want)
		}
	}
}

// An engine of the catalogue refuses the fields that it obeys, and an engine of the file those that
// any engine does.
func TestX14_GuardsOfEngines(t *testing.T) {
	t.Parallel()
	for engine, want := range map[string]openai.Guards{"vllm": openai.GuardsOf("vllm"), "ollama": 0, "own": openai.GuardsOf(""), "": openai.GuardsOf("")} {
		if got := guards(engine); got != want {
			t.Errorf("%q: %b, want %b", engine, got, want)
		}
	}
	for _, g := range openai.GuardedFields() {
		for _, engine := range g.Engines {
			if !slices.ContainsFunc(engines.Builtin(), func(e engines.Engine) bool { return e.Name == engine }) {
				t.Errorf("%s of %s, which is no engine of the catalogue", g.Name, engine)
			}
		}
	}
}
