package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// TestU13_VersionsInherit: a version of a built-in engine has what the built-in one has, except for
// the fields that the file sets.
func TestU13_VersionsInherit(t *testing.T) {
	t.Parallel()
	c := parsed(t, `
engines:
  - name: vllm
    versions:
      - {version: "0.11", image: registry.example.com/vllm:mine}
      - {version: "0.9.5", image: "older:1"}
      - {version: nightly, ready: {every: 3s}, tasks: [embedding], kubernetes: ""}
`)
	base, _ := engines.Find(engines.Builtin(), "vllm", "0.11")
	got, _ := engines.Find(c.Catalogue(), "vllm", "0.11")
	base.Image = "registry.example.com/vllm:mine"
	if d := cmp.Diff(base, got); d != "" {
		t.Errorf("0.11: %s", d)
	}
	if got, _ = engines.Find(c.Catalogue(), "vllm", "0.9.5"); got.Schema["properties"].(map[string]any)["max_seq_len_to_capture"] == nil {
		t.Errorf("0.9.5 does not inherit from 0.8: %v", got.Schema)
	}
	base, _ = engines.Find(engines.Builtin(), "vllm", "")
	got, _ = engines.Find(c.Catalogue(), "vllm", "nightly")
	base.Version, base.Tasks, base.Kubernetes, base.Ready.Every = "nightly", []engines.Task{engines.Embedding}, "", 3*time.Second
	base.TaskVariables = map[engines.Task]map[string]any{engines.Embedding: base.TaskVariables[engines.Embedding]}
	if d := cmp.Diff(base, got); d != "" {
		t.Errorf("nightly: %s", d)
	}
}

// TestU13_ASchemaOfTheFileFitsWhatIsInherited: a version whose schema knows fewer variables than
// the built-in one is no fault. Neither the variable of the slots nor those that a task implies
// make it one.
func TestU13_ASchemaOfTheFileFitsWhatIsInherited(t *testing.T) {
	t.Parallel()
	const models = `
models:
  - {name: chat, engine: vllm, version: "0.11", source: {name: a/b}, variables: {gpu_memory_utilization: 0.9}}
  - {name: vectors, engine: vllm, version: "0.11", task: embedding, source: {name: a/b}}
`
	const version = "engines:\n  - name: vllm\n    versions:\n      - version: \"0.11\"\n        schema: "
	for schema, slots := range map[string]string{
		"{type: object, properties: {gpu_memory_utilization: {type: number}}, additionalProperties: false}": "",
		"{type: object, properties: {gpu_memory_utilization: {type: number}}}":                              "max_num_seqs",
		"{properties: {max_num_seqs: {type: integer}, gpu_memory_utilization: {}}}":                         "max_num_seqs",
	} {
		c := parsed(t, version+schema+models)
		v, _ := engines.Find(c.Catalogue(), "vllm", "0.11")
		if v.Slots.Variable != slots || v.Slots.Default != 256 {
			t.Errorf("%s: slots %+v, want the variable %q and 256", schema, v.Slots, slots)
		}
		if got := v.Complete(engines.Embedding, nil)["runner"]; got != "pooling" {
			t.Errorf("%s: a model of vectors runs with runner %v", schema, got)
		}
	}
	_, faults := parsedIn(t, t.TempDir(), version+"{type: object, additionalProperties: false}\n        slots: {variable: mine}\n")
	if want := "slots.variable: the schema has no variable mine"; !strings.Contains(faults, want) {
		t.Errorf("faults %q lack %q", faults, want)
	}
}

func TestU13_OtherEnginesInheritNothing(t *testing.T) {
	t.Parallel()
	_, faults := parsedIn(t, t.TempDir(), "engines:\n  - name: own\n    versions:\n      - {version: 1, image: i}\n")
	for _, want := range []string{"f:4: engines[own].versions[1].tasks: required, and missing", "f:4: engines[own].versions[1].command: required, and missing"} {
		if !strings.Contains(faults, want) {
			t.Errorf("faults %q lack %q", faults, want)
		}
	}
}

// TestU13_AnEngineWithoutVersionsIsOneFault: its models have no fault because of it.
func TestU13_AnEngineWithoutVersionsIsOneFault(t *testing.T) {
	t.Parallel()
	want := []string{"1: engines[own].versions: required, and missing"}
	got := faultsOf(t, "engines: [{name: own}]\nmodels: [{name: m, engine: own, task: text-generation}]")
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
