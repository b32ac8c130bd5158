package gateway

import (
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/nodes"
	"github.com/sluice-gateway/sluice/engines/upstream"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/scale"
)

// The targets of the file, and what the catalogue says of replicas before one runs, reach the
// scaler.
func TestU7_TargetsReachTheScaler(t *testing.T) {
	t.Parallel()
	c, err := config.Parse("f", []byte(`models:
  - {name: a, engine: sim, replicas: {max: 3}, cooldown: 1m, scale: {target: {running: 16}}, variables: {max_num_seqs: 40}}
  - {name: b, engine: sim, replicas: {min: 0, max: 2}, scale: {target: {ttft: 800ms}}}
  - {name: c, launcher: upstream, upstreams: [http://h:1]}
`))
	if err != nil {
		t.Fatal(err)
	}
	all := scales(c)
	if got, want := all["a"], (scale.Model{Min: 1, Max: 3, Cooldown: time.Minute, PerReplica: 40, Target: scale.Target{Running: 16}}); got != want {
		t.Errorf("a is %+v, want %+v", got, want)
	}
	if got, want := all["b"].Target, (scale.Target{TTFT: 800 * time.Millisecond}); got != want {
		t.Errorf("the target of b is %+v, want %+v", got, want)
	}
	if len(all) != 2 {
		t.Errorf("%d models, want 2", len(all))
	}
}

// TestU7_TwoScalesAtATime: no number of replicas that an operator or a custom resource has set is
// lost.
func TestU7_TwoScalesAtATime(t *testing.T) {
	t.Parallel()
	configuration := func(names ...string) *config.Config {
		text := "listen: 127.0.0.1:1\nadmin: 127.0.0.1:2\nauth: {mode: none}\nmodels:\n"
		for _, n := range names {
			text += "  - {name: " + n + ", task: text-generation, engine: sim, replicas: {min: 1, max: 1}}\n"
		}
		c, err := config.Parse("x.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	before, after := configuration("a", "b"), configuration("a", "b", "c")
	after.Hash = before.Hash // the file is the same, because a changed one ends the scales
	for range 3000 {
		fleet := engines.NewFleet()
		l := &launchers{
			log: zap.NewNop(), fleet: fleet, committed: committed{first: before},
			scaler:   scale.New(scale.Config{Load: func(string) scale.Load { return scale.Load{} }, Apply: func() {}}),
			upstream: upstream.New(upstream.Config{Fleet: fleet, Log: zap.NewNop()}),
			nodes:    nodes.New(nodes.Config{Fleet: fleet}),
		}
		commit, err := l.prepare(after)
		if err != nil {
			t.Fatal(err)
		}
		var w sync.WaitGroup
		w.Go(func() { l.override("a", &admin.Bounds{Min: 3, Max: 3}) })
		w.Go(func() { l.override("b", &admin.Bounds{Min: 4, Max: 4}) })
		w.Go(func() { _ = commit() })
		w.Wait()
		if a, b, c := l.scaler.Desired("a"), l.scaler.Desired("b"), l.scaler.Desired("c"); a != 3 || b != 4 || c != 1 {
			t.Fatalf("the scaler wants %d, %d and %d, want 3, 4 and 1", a, b, c)
		}
	}
}

// TestFoundReplicasAreForgottenAfterAStart: a model that a later reload brings does not start with
// the number of replicas that were found at the start.
func TestFoundReplicasAreForgottenAfterAStart(t *testing.T) {
	t.Parallel()
	l := &launchers{scaler: scale.New(scale.Config{Load: func(string) scale.Load { return scale.Load{} }, Apply: func() {}})}
	l.scaler.Adopt(map[string]int{"x": 3})
	l.scaler.Set(map[string]scale.Model{"other": {}})
	if err := l.awaitLateNodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.scaler.Set(map[string]scale.Model{"other": {}, "x": {Max: 4}})
	if n := l.scaler.Desired("x"); n != 0 {
		t.Errorf("%d replicas are desired, want none", n)
	}
}
