package config

import (
	"testing"
	"time"
)

func scaleCases() []ruleCase {
	const model = "models:\n- name: a\n  engine: sim\n  replicas: {min: 0, max: 4}\n"
	return []ruleCase{
		{"target of running requests", model + "  scale: {target: {running: 16}}", nil},
		{"target of a first token", model + "  scale: {target: {ttft: 800ms}}", nil},
		{"no target", model + "  scale: {}", nil},
		{"null target", model + "  scale: {target: }", nil},
		{"empty target", model + "  scale: {target: {}}", []string{"5: models[a].scale.target: must have running or ttft, and has neither: set one of them, or remove target"}},
		{"two targets", model + "  scale: {target: {running: 16, ttft: 1s}}", []string{"5: models[a].scale.target: must have one of running and ttft, and has both: remove one of them"}},
		{"no requests", model + "  scale:\n    target: {running: 0}", []string{"6: models[a].scale.target.running: must be at least 1, is 0"}},
		{"no time", model + "  scale:\n    target:\n      ttft: 0s", []string{"7: models[a].scale.target.ttft: must be at least 1ms, is 0s"}},
		{"less than no time", model + "  scale: {target: {ttft: -1s}}", []string{"5: models[a].scale.target.ttft: must be at least 1ms, is -1s"}},
		{"target without unit", model + "  scale: {target: {ttft: 800}}",
			[]string{"5: models[a].scale.target.ttft: must be a duration such as 500ms, 30s, 5m or 1h30m, is a number"}},
		{"target above the slots", model + "  admission: {max_per_replica: 8}\n  scale: {target: {running: 16}}",
			[]string{"6: models[a].scale.target.running: must be at most admission.max_per_replica, which is 8, is 16"}},
		{"a strategy that predicts nothing", model + "  routing: {strategy: round_robin}\n  scale: {target: {ttft: 1s}}",
			[]string{"6: models[a].scale.target.ttft: needs routing.strategy: prefix, is round_robin: only prefix predicts the time to the first token; " +
				"set the strategy, or a target of running requests"}},
		{"running with any strategy", model + "  routing: {strategy: round_robin}\n  scale: {target: {running: 1}}", nil},
		{"a fixed number of replicas", sims + ", replicas: {min: 2},\n  scale: {target: {running: 16}}}]",
			[]string{"2: models[a].scale.target: has no effect while replicas.max is replicas.min, which is 2: set a larger replicas.max"}},
		{"scale of an upstream", "models: [{name: a, launcher: upstream, upstreams: [http://h:1], scale: {target: {running: 1}}}]",
			[]string{"1: models[a].scale: has no effect with launcher: upstream; remove it"}},
		{"scale of nothing", "models: [{name: a, launcher: none, scale: {target: {running: 1}}}]",
			[]string{"1: models[a].scale: has no effect with launcher: none; remove it"}},
	}
}

func TestU7_TargetsInTheFile(t *testing.T) {
	t.Parallel()
	c, err := Parse("f", []byte("models: [{name: a, engine: sim, replicas: {max: 2}, scale: {target: {ttft: 1.5s}}}]"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Models[0].Scale.Target, (ScaleTarget{TTFT: 1500 * time.Millisecond}); got != want {
		t.Errorf("the target is %v, want %v", got, want)
	}
}
