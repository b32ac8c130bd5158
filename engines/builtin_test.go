package engines

import (
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

var update = goflag.Bool("update", false, "write golden files anew")

func launchOf(task Task) Launch {
	return Launch{Name: "chat", Model: "org/model", Registry: "huggingface", Task: task, Host: "127.0.0.1", Port: 9001, Sluice: "sluice"}
}

// typical returns variables that an operator of the engine may well set.
func typical(engine, version string) map[string]any {
	switch engine {
	case "sim":
		return map[string]any{"token_interval": "20ms"}
	case "vllm":
		return map[string]any{"gpu_memory_utilization": 0.85, "max_model_len": 32768, "tensor_parallel_size": 2, "no_enable_prefix_caching": true,
			"enable_lora": true, "lora_modules": []any{"a=/lora/a", "b=/lora/b"}, "limit_mm_per_prompt": map[string]any{"image": 4}}
	case "sglang":
		return map[string]any{"mem_fraction_static": 0.85, "context_length": 32768, "max_running_requests": 64, "lora_paths": []any{"a=/lora/a", "/lora/b"}}
	case "llama-cpp":
		if version == "python-0.3" {
			return map[string]any{"model": "*q8_0.gguf", "n_ctx": 8192, "n_gpu_layers": -1, "tensor_split": []any{0.5, 0.5}, "flash_attn": true}
		}
		return map[string]any{"parallel": 8, "ctx_size": 32768, "kv_unified": true, "n_gpu_layers": "all", "tensor_split": []any{3, 1}}
	case "ollama":
		return map[string]any{"num_parallel": 4, "context_length": 8192, "flash_attention": false}
	case "tei":
		return map[string]any{"dtype": "float16", "max_batch_tokens": 65536, "auto_truncate": true}
	case "faster-whisper":
		return map[string]any{"compute_type": "int8_float16", "num_workers": 2}
	}
	return nil
}

// TestBuiltinCommands compares the command line and environment of a typical model on every
// built-in engine with a golden file.
func TestBuiltinCommands(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	for _, engine := range Builtin() {
		for _, version := range engine.Versions {
			variables := typical(engine.Name, version.Version)
			for _, task := range version.Tasks {
				launch := launchOf(task)
				launch.Variables = variables
				if faults := version.CheckVariables(task, variables); len(faults) > 0 {
					t.Errorf("%s %s: %v", engine.Name, version.Version, words(faults))
				}
				fmt.Fprintf(&got, "%s %s %s, %d slots\n", engine.Name, version.Version, task, version.SlotsOf(Launch{Task: task, Variables: variables}))
				got.WriteString(started(t, version, launch))
			}
		}
	}
	testutil.Golden(t, "testdata/commands.golden", got.String(), *update)
}

// started formats the environment and the command line of a replica.
func started(t *testing.T, version Version, launch Launch) string {
	t.Helper()
	command, env := rendered(t, version, launch)
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&lines, "  %s=%s\n", name, env[name])
	}
	for i, argument := range command {
		switch {
		case argument == ollamaScript:
			command[i] = "<ollamaScript>"
		case argument == "" || strings.ContainsAny(argument, " \n\"'"):
			command[i] = strconv.Quote(argument)
		}
	}
	return lines.String() + "  " + strings.Join(command, " ") + "\n"
}

func rendered(t *testing.T, version Version, launch Launch) ([]string, map[string]string) {
	t.Helper()
	command, err := version.Render(launch)
	if err != nil {
		t.Fatal(err)
	}
	env, err := version.RenderEnv(launch)
	if err != nil {
		t.Fatal(err)
	}
	return command, env
}

// knownFlags returns the flags and environment variables that a version of an engine knows: those
// of its table, or of testdata/flags if it has none.
func knownFlags(t *testing.T, engine, version string) []string {
	t.Helper()
	if !hasTable(engine, version) {
		data, err := os.ReadFile(filepath.Join("testdata/flags", engine+"-"+version+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		_, list, _ := strings.Cut(string(data), "\n") // the first line says where the list is from
		return strings.Fields(list)
	}
	known := []string{"AUTO_TRUNCATE"} // every flag of TEI is an environment variable, too
	for _, row := range table(engine, version) {
		flag := strings.ReplaceAll(row.name, "_", "-")
		known = append(known, row.env, "--"+flag)
		if row.kind == "switch" {
			known = append(known, "--no-"+flag)
		}
	}
	return known
}

func hasTable(engine, version string) bool {
	_, err := tables.Open("variables/" + engine + "-" + version + ".tsv")
	return err == nil
}

// Every variable of every engine becomes a flag or an environment variable that the engine knows,
// whatever the task.
func TestBuiltinVariablesAreKnown(t *testing.T) {
	t.Parallel()
	for _, engine := range Builtin() {
		for _, version := range engine.Versions {
			if engine.Name == "sim" {
				continue // our own, whose flags its own tests read
			}
			t.Run(engine.Name+" "+version.Version, func(t *testing.T) {
				t.Parallel()
				known := knownFlags(t, engine.Name, version.Version)
				for _, task := range version.Tasks {
					checkKnown(t, version, launchOf(task), known)
				}
				for _, name := range slices.Sorted(maps.Keys(version.properties())) {
					launch := launchOf(version.Tasks[0])
					without := started(t, version, launch)
					launch.Variables = map[string]any{name: sample(version.properties()[name].(map[string]any))}
					if faults := version.CheckVariables(launch.Task, launch.Variables); len(faults) > 0 {
						t.Fatal(words(faults))
					}
					checkKnown(t, version, launch, known)
					if started(t, version, launch) == without {
						t.Errorf("variable %s changes nothing", name)
					}
				}
			})
		}
	}
}

// checkKnown checks that the engine knows all flags and environment variables of a start.
func checkKnown(t *testing.T, version Version, launch Launch, known []string) {
	t.Helper()
	command, env := rendered(t, version, launch)
	for _, argument := range command {
		if strings.HasPrefix(argument, "--") && argument != "--factory" && !slices.Contains(known, argument) { // --factory is uvicorn's
			t.Errorf("%v: the engine has no flag %s", launch.Variables, argument)
		}
	}
	for name := range env {
		if !slices.Contains(known, name) {
			t.Errorf("%v: the engine knows no %s", launch.Variables, name)
		}
	}
}

// sample returns a value that fits the schema of a variable and is not its default.
func sample(schema map[string]any) any {
	if values, ok := schema["enum"].([]any); ok {
		if values[0] == schema["default"] {
			return values[1]
		}
		return values[0]
	}
	if _, ok := schema["anyOf"]; ok {
		return 1
	}
	kind := schema["type"]
	if kinds, ok := kind.([]any); ok {
		kind = kinds[0]
	}
	switch kind {
	case "boolean":
		return schema["default"] != true
	case "integer":
		least, _ := schema["minimum"].(int)
		if more, ok := schema["exclusiveMinimum"].(int); ok {
			least = more + 1
		}
		if least == schema["default"] {
			return least + 1
		}
		return least
	case "number":
		least, _ := schema["minimum"].(int)
		return float64(least) + 0.5
	case "array":
		if items, ok := schema["items"].(map[string]any); ok {
			return []any{sample(items)}
		}
		return []any{"x"}
	case "object":
		return map[string]any{"a": 1}
	}
	return "x"
}

// A fault about an unknown variable lists the known ones. A fault about a wrong value says what the
// variable means.
func TestBuiltinVariablesAreChecked(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		engine, version, name string
		value                 any
		want                  string
	}{
		{"vllm", "0.33", "gpu_memory_utilization", 90, "gpu_memory_utilization: must be at most 1, is 90 (share of the GPU's memory for weights, activations and cache)"},
		{"vllm", "0.33", "max_lora_rank", 12, "max_lora_rank: must be one of 1, 8, 16, 32, 64, 128, 256, 320, 512 (largest rank of a LoRA adapter)"},
		{"vllm", "0.33", "tensor_parallel_size", "2", "tensor_parallel_size: must be integer, is string (GPUs that share each layer; all of the replica when nothing is said)"},
		{"sglang", "0.4.10", "schedule_policy", "priority", "schedule_policy: must be one of lpm, random, fcfs, dfs-weight (which waiting request is next)"},
		{"ollama", "0.32", "kv_cache_type", "q2", "kv_cache_type: must be one of f16, q8_0, q4_0 (type of the cache; needs flash attention)"},
		{"tei", "1.9", "pooling", "max", "pooling: must be one of cls, mean, splade, last-token (how token vectors become one vector)"},
		{"faster-whisper", "0.9", "num_workers", 0, "num_workers: must be at least 1, is 0 (files transcribed at once)"},
		{"llama-cpp", "python-0.3", "n_ctx", -1, "n_ctx: must be at least 0, is -1 (tokens of context; 0: what the model was trained with)"},
	} {
		version, ok := Find(Builtin(), tt.engine, tt.version)
		if !ok {
			t.Fatalf("no %s %s", tt.engine, tt.version)
		}
		got := words(version.CheckVariables(version.Tasks[0], map[string]any{tt.name: tt.value}))
		if diff := cmp.Diff([]string{tt.want}, got); diff != "" {
			t.Errorf("%s: %s", tt.engine, diff)
		}
	}
	// Flags that a version has removed or added are unknown to the other version.
	for _, tt := range []struct{ engine, version, name string }{
		{"vllm", "0.8", "runner"}, {"vllm", "0.11", "task"}, {"vllm", "0.33", "swap_space"}, {"sglang", "0.5.23", "cuda_graph_max_bs"},
		{"tei", "1.7", "dense_path"}, {"ollama", "0.32", "new_engine"}, {"faster-whisper", "0.9", "use_batched_mode"}, {"llama-cpp", "0.5", "n_ctx"},
	} {
		version, _ := Find(Builtin(), tt.engine, tt.version)
		faults := version.CheckVariables(version.Tasks[0], map[string]any{tt.name: "x"})
		if len(faults) != 1 || len(faults[0].Known) == 0 {
			t.Errorf("%s %s has %s: %v", tt.engine, tt.version, tt.name, faults)
		}
	}
}

// Engines that spread a model over GPUs use all GPUs of the replica, unless a variable says
// otherwise.
func TestBuiltinUseAllGPUs(t *testing.T) {
	t.Parallel()
	for _, engine := range Builtin() {
		if engine.Name != "vllm" && engine.Name != "sglang" {
			continue
		}
		for _, version := range engine.Versions {
			for _, tt := range []struct {
				gpus      int
				variables map[string]any
				want      []string
			}{
				{0, nil, nil},
				{4, nil, []string{"4"}},
				{4, map[string]any{"tensor_parallel_size": 2}, []string{"2"}},
				{4, map[string]any{"pipeline_parallel_size": 2}, []string{"2"}},
				{8, map[string]any{"pipeline_parallel_size": 2, "data_parallel_size": 2}, []string{"2"}},
				{4, map[string]any{"nnodes": 2}, nil},
			} {
				launch := launchOf(TextGeneration)
				launch.GPUs, launch.Variables = tt.gpus, tt.variables
				command, _ := rendered(t, version, launch)
				var got []string
				for i, argument := range command {
					if argument == "--tensor-parallel-size" {
						got = append(got, command[i+1])
					}
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("%s %s, %d GPUs, %v: %s", engine.Name, version.Version, tt.gpus, tt.variables, diff)
				}
			}
		}
	}
}

// fakeOllama records its calls. It serves until it is killed.
const fakeOllama = `#!/bin/sh
case $1 in
list) grep -qs serve "$ASKED"; exit ;;
create) echo "$OLLAMA_HOST $1 $2 $(cat "$4")" >>"$ASKED"; exit 0 ;;
esac
echo "$OLLAMA_HOST $*" >>"$ASKED"
case "$1 $OLLAMA_HOST" in
"serve 127.0.0.2:9001") exec sleep 60 ;;
"pull "*) exit $PULL ;;
"show "*) exit $SHOW ;;
esac
`

// The script of ollama serves at the replica's address only after it has the model.
func TestOllamaScript(t *testing.T) {
	t.Parallel()
	const before, after = "127.0.0.2:9001 serve\n", "127.0.0.1:9001 serve\n"
	for _, tt := range []struct {
		name   string
		launch Launch
		pull   string // exit statuses of pull and show
		show   string
		want   string
	}{
		{"library", Launch{Name: "llama3.2:1b"}, "0", "0", before + "127.0.0.2:9001 pull llama3.2:1b\n" + after},
		{"library, out of reach", Launch{Name: "llama3.2:1b"}, "1", "0",
			before + "127.0.0.2:9001 pull llama3.2:1b\n127.0.0.2:9001 show llama3.2:1b\n" + after},
		{"hugging face", Launch{Name: "chat", Model: "org/gguf", Registry: "huggingface"}, "0", "1",
			before + "127.0.0.2:9001 pull hf.co/org/gguf\n127.0.0.2:9001 cp hf.co/org/gguf chat\n" + after},
		{"directory", Launch{Name: "chat", Model: "/models/a b.gguf", Registry: "directory"}, "0", "1",
			before + "127.0.0.2:9001 create chat FROM /models/a b.gguf\n" + after},
		{"nowhere", Launch{Name: "llama3.2:1b"}, "1", "1", before + "127.0.0.2:9001 pull llama3.2:1b\n127.0.0.2:9001 show llama3.2:1b\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			testutil.WriteProgram(t, filepath.Join(folder, "ollama"), fakeOllama)
			tt.launch.Host, tt.launch.Port = "127.0.0.1", 9001
			version, _ := Find(Builtin(), "ollama", "")
			command, env := rendered(t, version, tt.launch)
			asked := filepath.Join(folder, "asked")
			run := exec.CommandContext(t.Context(), command[0], command[1:]...)
			run.Env = []string{"PATH=" + folder + ":" + os.Getenv("PATH"), "ASKED=" + asked, "PULL=" + tt.pull, "SHOW=" + tt.show,
				"OLLAMA_HOST=" + env["OLLAMA_HOST"], "TMPDIR=" + folder}
			serves := strings.HasSuffix(tt.want, after)
			if output, err := alone(t, run); (err == nil) != serves {
				t.Fatalf("%v: %s", err, output)
			}
			got, err := os.ReadFile(asked)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(sorted(tt.want), sorted(string(got))); diff != "" {
				t.Error(diff)
			}
			if serves && !strings.HasSuffix(string(got), after) {
				t.Errorf("it serves before the model is there: %s", got)
			}
		})
	}
}

// alone runs a command and waits for it and for all processes that it has started, which hold its
// output open.
func alone(t *testing.T, run *exec.Cmd) (string, error) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	run.Stdout, run.Stderr = writer, writer
	result := run.Run()
	_ = writer.Close()
	if err := reader.SetReadDeadline(time.Now().Add(testutil.Patience)); err != nil {
		t.Fatal(err)
	}
	output, err := io.ReadAll(reader)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("it has left a server behind")
	} else if err != nil {
		t.Fatal(err)
	}
	return string(output), result
}

// sorted sorts lines, because the server in the background writes its lines at any time.
func sorted(text string) []string {
	return slices.Sorted(strings.Lines(text))
}
