package engines

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// helpFlags returns the long flags in the help of a program: the names at the beginnings of lines.
func helpFlags(t *testing.T, program string, arguments ...string) []string {
	t.Helper()
	help, err := exec.Command(program, arguments...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var flags []string
	for _, line := range regexp.MustCompile(`(?m)^ {0,4}-[^\n]*`).FindAllString(string(help), -1) {
		for part := range strings.SplitSeq(line, ",") {
			name, rest, _ := strings.Cut(strings.TrimSpace(part), " ")
			if !strings.HasPrefix(name, "-") {
				break
			}
			if strings.HasPrefix(name, "--") && !strings.HasPrefix(name, "---") && !strings.ContainsAny(name, ".=+") { // examples
				flags = append(flags, name)
			}
			if strings.Contains(rest, "  ") {
				break // the description stands apart
			}
		}
	}
	slices.Sort(flags)
	return slices.Compact(flags)
}

// compareWithHelp fails for each flag that either the program or the version lacks. The version
// knows the flags of its variables and those that Sluice owns. except are flags that only print, or
// cannot be variables.
func compareWithHelp(t *testing.T, version Version, help []string, except ...string) {
	t.Helper()
	known := slices.Concat(version.ownedFlags(), except)
	for _, flag := range version.ownedFlags() {
		known = append(known, "--no-"+strings.TrimLeft(flag, "-"))
	}
	for name := range version.properties() {
		flag := "--" + strings.ReplaceAll(name, "_", "-")
		known = append(known, flag)
		if !slices.Contains(help, flag) {
			t.Errorf("the engine has no %s", flag)
		}
	}
	for _, flag := range help {
		if !slices.Contains(known, flag) {
			t.Errorf("no variable is %s", flag)
		}
	}
	if len(help) < 200 {
		t.Errorf("only %d flags in the help, which cannot be all", len(help))
	}
}

func TestU11_LlamaServerTakesWhatTheSchemaHas(t *testing.T) {
	t.Parallel()
	help := helpFlags(t, testutil.Tool(t, "llama-server"), "--help")
	version, _ := Find(Builtin(), "llama-cpp", "0.5")
	compareWithHelp(t, version, help, "--help", "--usage", "--version", "--cache-list", "--completion-bash", "--license",
		"--list-devices")
}

// vLLM is asked where scripts/vllm.sh has installed it: it is a download of a gigabyte.
func TestU11_VLLMTakesWhatTheSchemaHas(t *testing.T) {
	t.Parallel()
	program, err := filepath.EvalSymlinks(filepath.Join(testutil.Root(), ".tools/vllm"))
	if err != nil {
		t.Skip("scripts/vllm.sh has not been run")
	}
	version, _ := Find(Builtin(), "vllm", "0.32")
	compareWithHelp(t, version, helpFlags(t, program, "serve", "--help=all"), "--help", "--json-arg")
}

// Each table is read, in order, without a row twice, and has only types, bounds and values that a
// schema can say.
func TestU11_TablesAreSound(t *testing.T) {
	t.Parallel()
	files, err := os.ReadDir("variables")
	if err != nil || len(files) < 12 {
		t.Fatalf("%d tables, %v", len(files), err)
	}
	kinds := []string{"flag", "switch", "boolean", "integer", "number", "string", "object", "json", "list string", "list integer", "list number", "list"}
	for _, file := range files {
		name := strings.TrimSuffix(file.Name(), ".tsv")
		cut := strings.LastIndex(name, "-")
		rows := table(name[:cut], name[cut+1:])
		if len(rows) < 15 || !slices.IsSortedFunc(rows, func(a, b tableRow) int { return strings.Compare(a.name, b.name) }) {
			t.Errorf("%s: %d rows, in order of their names", name, len(rows))
		}
		for i, row := range rows {
			for kind := range strings.SplitSeq(row.kind, "|") {
				if !slices.Contains(kinds, kind) {
					t.Errorf("%s: %s is of kind %q", name, row.name, kind)
				}
			}
			if i > 0 && rows[i-1].name == row.name || !isVariableName(row.name) {
				t.Errorf("%s: the name %q", name, row.name)
			}
			if _, err := compile(variables(map[string]any{row.name: row.schema()})); err != nil {
				t.Errorf("%s: %s: %v", name, row.name, err)
			}
		}
	}
}

// A variable is checked by what the engine itself says of it.
func TestU11_VariablesAreCheckedByTheTable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		engine string
		given  map[string]any
		want   []string
	}{
		{"vllm", map[string]any{"enable_sleep_mode": true, "max_model_len": "32k", "cudagraph_capture_sizes": []any{1, 2},
			"allowed_origins": []any{"*"}, "compilation_config": map[string]any{"level": 3}}, nil},
		{"vllm", map[string]any{"data_parallel_rpc_port": 70000}, []string{"data_parallel_rpc_port: must be at most 65535, is 70000"}},
		{"vllm", map[string]any{"watermark": 1.0}, []string{"watermark: must be less than 1, is 1 (the engine's own default is 0.0)"}},
		{"vllm", map[string]any{"performance_mode": "fast"},
			[]string{"performance_mode: must be one of balanced, interactivity, throughput (what is tuned for; since 0.17.1 at the latest)"}},
		{"vllm", map[string]any{"enable_sleep_mode": "yes"}, []string{"enable_sleep_mode: must be boolean, is string (the engine's own default is false)"}},
		{"sglang", map[string]any{"disaggregation_mode": "both"},
			[]string{"disaggregation_mode: must be one of null, prefill, decode (the engine's own default is null)"}},
		{"sglang", map[string]any{"kv_cache_dtype": "fp8_e4m3", "enable_memory_saver": true}, nil},
		{"llama-cpp", map[string]any{"n_gpu_layers": "auto", "top_k": 40, "jinja": false}, nil},
		{"llama-cpp", map[string]any{"top_k": 1.5}, []string{"top_k: must be integer, is number (the engine's own default is 40)"}},
		{"ollama", map[string]any{"max_transfer_streams": -1}, []string{"max_transfer_streams: must be at least 0, is -1 (the engine's own default is 4)"}},
		{"tei", map[string]any{"prometheus_port": "x"}, []string{"prometheus_port: must be integer, is string (the engine's own default is 9000)"}},
		{"faster-whisper", map[string]any{"tts_model_ttl": -2}, []string{"tts_model_ttl: must be at least -1, is -2 (the engine's own default is 300)"}},
	} {
		version, _ := Find(Builtin(), tt.engine, "")
		if diff := cmp.Diff(tt.want, words(version.CheckVariables(version.Tasks[0], tt.given))); diff != "" {
			t.Errorf("%s %v: %s", tt.engine, tt.given, diff)
		}
	}
}

// What YAML says becomes what the engine reads: JSON where it reads JSON, and a switch that is off.
func TestU11_VariablesBecomeWhatTheEngineReads(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		engine string
		given  map[string]any
		want   string
	}{
		{"vllm", map[string]any{"allowed_origins": []any{"a", "b"}}, `--allowed-origins ["a","b"]`},
		{"vllm", map[string]any{"cudagraph_capture_sizes": []any{3, 5}}, "--cudagraph-capture-sizes 3 5"},
		{"vllm", map[string]any{"enable_prefix_caching": false}, "--no-enable-prefix-caching"},
		{"vllm", map[string]any{"enable_prefix_caching": true}, "--enable-prefix-caching"},
		{"vllm", map[string]any{"disable_log_stats": false}, ""},
		{"llama-cpp", map[string]any{"jinja": false, "metrics": false}, "--no-jinja"},
		{"llama-cpp", map[string]any{"device": []any{"CUDA0", "CUDA1"}, "metrics": false}, "--device CUDA0,CUDA1"},
	} {
		version, _ := Find(Builtin(), tt.engine, "")
		launch := launchOf(TextGeneration)
		base, _ := rendered(t, version, launch)
		launch.Variables = tt.given
		got, _ := rendered(t, version, launch)
		got = slices.DeleteFunc(got, func(word string) bool { return slices.Contains(base, word) })
		if line := strings.Join(got, " "); line != tt.want {
			t.Errorf("%s %v: %s, want %s", tt.engine, tt.given, line, tt.want)
		}
	}
	whisper, _ := Find(Builtin(), "faster-whisper", "")
	launch := launchOf(Transcription)
	launch.Variables = map[string]any{"allow_origins": []any{"a", "b"}}
	if _, env := rendered(t, whisper, launch); env["ALLOW_ORIGINS"] != `["a","b"]` {
		t.Errorf("a list in the environment: %v", env)
	}
	for _, name := range slices.Sorted(maps.Keys(whisper.properties())) {
		if slices.Contains([]string{"host", "port", "api_key", "preload_models"}, name) {
			t.Errorf("%s belongs to Sluice", name)
		}
	}
}

// What a launcher gets is small and starts the same command.
func TestU11_ALauncherGetsTheSchemaOfWhatIsGiven(t *testing.T) {
	t.Parallel()
	for _, engine := range Builtin() {
		for _, version := range engine.Versions {
			launch := launchOf(version.Tasks[0])
			launch.Variables = typical(engine.Name, version.Version)
			small := version.ForReplicas(launch.Variables)
			if diff := cmp.Diff(started(t, version, launch), started(t, small, launch)); diff != "" {
				t.Errorf("%s %s: %s", engine.Name, version.Version, diff)
			}
			if n := len(small.properties()); n > 20 {
				t.Errorf("%s %s: %d variables for a replica", engine.Name, version.Version, n)
			}
		}
	}
	vllm, _ := Find(Builtin(), "vllm", "")
	launch := launchOf(TextGeneration)
	launch.Variables = map[string]any{"enable_prefix_caching": false, "allowed_origins": []any{"a"}}
	if diff := cmp.Diff(started(t, vllm, launch), started(t, vllm.ForReplicas(launch.Variables), launch)); diff != "" {
		t.Error(diff)
	}
}

func BenchmarkCatalogue(b *testing.B) {
	for b.Loop() {
		Builtin()
	}
}

func BenchmarkCheckVariables(b *testing.B) {
	version, _ := Find(Builtin(), "sglang", "")
	given := typical("sglang", "")
	for b.Loop() {
		version.CheckVariables(TextGeneration, given)
	}
}
