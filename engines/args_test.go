package engines

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The arguments of a model follow the flags of its variables, each as one argument.
func TestU11_ArgsArePassedOnAsTheyAre(t *testing.T) {
	t.Parallel()
	args := []string{"--enable-sleep-mode", "--prompt", "it's $HOME {{.Name}} \"x\" `y`", ""}
	for _, engine := range Builtin() {
		for _, version := range engine.Versions {
			launch := launchOf(version.Tasks[0])
			launch.Variables = typical(engine.Name, version.Version)
			without, _ := rendered(t, version, launch)
			launch.Args = args
			with, _ := rendered(t, version, launch)
			if diff := cmp.Diff(slices.Concat(without, args), with); diff != "" {
				t.Errorf("%s %s: %s", engine.Name, version.Version, diff)
			}
		}
	}
	got, err := Version{Command: []string{"run", "{{.Flags}}", "last"}}.Render(Launch{Variables: map[string]any{"a": 1}, Args: args[:1]})
	if err != nil || strings.Join(got, " ") != "run --a 1 --enable-sleep-mode last" {
		t.Errorf("flags in the middle: %q, %v", got, err)
	}
}

// What Sluice sets itself is refused by its name, in each form that the engine reads.
func TestU11_ArgsOfSluicesOwnAreRefused(t *testing.T) {
	t.Parallel()
	const belongs = " belongs to Sluice, which decides how a replica is reached and named: remove it"
	for _, tt := range []struct {
		engine, version, argument, want string
	}{
		{"vllm", "", "--port", "--port" + belongs},
		{"vllm", "", "--port=8000", "--port" + belongs},
		{"vllm", "", "--served_model_name=secret", "--served-model-name" + belongs},
		{"vllm", "", "--served", "--served-model-name" + belongs},
		{"vllm", "", "--api-key", "--api-key" + belongs},
		{"vllm", "", "--tensor-parallel-size", "--tensor-parallel-size is set by Sluice: use the variable tensor_parallel_size instead"},
		{"vllm", "", "--enable-sleep-mode", ""},
		{"vllm", "", "8000", ""},
		{"vllm", "", "-O3", ""},
		{"sglang", "", "--model", "--model" + belongs},
		{"sglang", "", "--config", "--config" + belongs},
		{"llama-cpp", "", "-m", "-m" + belongs},
		{"llama-cpp", "", "-hf", "--hf" + belongs},
		{"llama-cpp", "", "--alias", "--alias" + belongs},
		{"llama-cpp", "", "-c", ""},
		{"llama-cpp", "python-0.3", "--model_alias", "--model-alias" + belongs},
		{"tei", "", "-p", "-p" + belongs},
		{"faster-whisper", "", "--port", "--port" + belongs},
		{"sim", "", "--host", "--host" + belongs},
		{"sim", "", "--token-interval", ""},
		{"sim", "", "a\x00b", "must not hold a NUL character"},
	} {
		version, _ := Find(Builtin(), tt.engine, tt.version)
		var want []string
		if tt.want != "" {
			want = []string{"1: " + tt.want}
		}
		if diff := cmp.Diff(want, words(version.CheckArgs([]string{"--fine", tt.argument}))); diff != "" {
			t.Errorf("%s %q: %s", tt.engine, tt.argument, diff)
		}
	}
	version, _ := Find(Builtin(), "vllm", "")
	want := []string{"served_model_name: --served-model-name" + belongs}
	if diff := cmp.Diff(want, words(version.CheckVariables(TextGeneration, map[string]any{"served_model_name": "x"}))); diff != "" {
		t.Errorf("as a variable: %s", diff)
	}
}
