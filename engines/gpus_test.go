package engines

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// An engine that shares a GPU is told to use its share of the memory, less the headroom.
func TestU12_SharesAreHandedToTheEngine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		engine    string
		share     float64
		variables map[string]any
		want      string
	}{
		{"vllm", 0.5, nil, "--gpu-memory-utilization 0.45"},
		{"vllm", 0.3, nil, "--gpu-memory-utilization 0.27"},
		{"vllm", 0.5, map[string]any{"gpu_memory_utilization": 0.4}, "--gpu-memory-utilization 0.4"},
		{"vllm", 0, nil, ""},
		{"sglang", 0.25, nil, "--mem-fraction-static 0.225"},
		{"llama-cpp", 0.5, nil, ""},
	} {
		version, _ := Find(Builtin(), tt.engine, "")
		launch := launchOf(TextGeneration)
		launch.GPUs, launch.GPUShare, launch.Variables = 1, tt.share, tt.variables
		command, _ := rendered(t, version, launch)
		got := ""
		for i, word := range command {
			if word == "--gpu-memory-utilization" || word == "--mem-fraction-static" {
				got += word + " " + command[i+1]
			}
		}
		if got != tt.want {
			t.Errorf("%s with %v and %v: %q, want %q", tt.engine, tt.share, tt.variables, got, tt.want)
		}
	}
}

// Shares that are exceeded and parallel sizes that do not fit the GPUs are faults.
func TestU12_VariablesAreCheckedAgainstTheGPUs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		engine string
		gpus   int
		share  float64
		given  map[string]any
		want   []string
	}{
		{"vllm", 4, 0, nil, nil},
		{"vllm", 4, 0, map[string]any{"tensor_parallel_size": 4}, nil},
		{"vllm", 4, 0, map[string]any{"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, nil},
		{"vllm", 4, 0, map[string]any{"pipeline_parallel_size": 2}, nil},
		{"vllm", 0, 0, map[string]any{"tensor_parallel_size": 8}, nil},
		{"vllm", 4, 0, map[string]any{"tensor_parallel_size": 8, "nnodes": 2}, nil},
		{"vllm", 4, 0, map[string]any{"tensor_parallel_size": 8},
			[]string{"tensor_parallel_size: tensor_parallel_size is 8 and must be 4, the GPUs of a replica in resources.gpu"}},
		{"vllm", 4, 0, map[string]any{"tensor_parallel_size": 2},
			[]string{"tensor_parallel_size: tensor_parallel_size is 2 and must be 4, the GPUs of a replica in resources.gpu"}},
		{"vllm", 4, 0, map[string]any{"tensor_parallel_size": 2, "data_parallel_size": 4},
			[]string{"tensor_parallel_size: tensor_parallel_size × data_parallel_size is 8 and must be 4, the GPUs of a replica in resources.gpu"}},
		{"vllm", 4, 0, map[string]any{"pipeline_parallel_size": 3},
			[]string{"pipeline_parallel_size: pipeline_parallel_size is 3 and must divide 4, the GPUs of a replica in resources.gpu"}},
		{"vllm", 1, 0.5, map[string]any{"gpu_memory_utilization": 0.5}, nil},
		{"vllm", 1, 0.5, map[string]any{"gpu_memory_utilization": 0.9}, []string{"gpu_memory_utilization: must be at most 0.5, " +
			"the share of the GPU in resources.gpu, is 0.9: replicas that share the GPU would have too little memory"}},
		{"vllm", 1, 0, map[string]any{"gpu_memory_utilization": 0.95}, nil},
		{"sglang", 4, 0, map[string]any{"tp_size": 4, "dp_size": 4, "enable_dp_attention": true}, nil},
		{"sglang", 4, 0, map[string]any{"tp_size": 4, "dp_size": 4},
			[]string{"tp_size: tp_size × dp_size is 16 and must be 4, the GPUs of a replica in resources.gpu"}},
		{"llama-cpp", 2, 0, map[string]any{"tensor_split": []any{1, 1}}, nil},
	} {
		version, _ := Find(Builtin(), tt.engine, "")
		if diff := cmp.Diff(tt.want, words(version.CheckGPUs(tt.gpus, tt.share, tt.given))); diff != "" {
			t.Errorf("%s, %d GPUs, %v: %s", tt.engine, tt.gpus, tt.given, diff)
		}
	}
	vllm, _ := Find(Builtin(), "vllm", "")
	if got := words(vllm.CheckArgs([]string{"--gpu-memory-utilization=0.9"})); len(got) != 1 || !strings.Contains(got[0], "use the variable gpu_memory_utilization") {
		t.Errorf("as an argument: %q", got)
	}
}
