package config

import (
	"strings"
	"testing"
)

// resourceCases are the cases about resources and placement.
func resourceCases() []ruleCase {
	return []ruleCase{
		{"one GPU, several, a share", "models: [{name: a, engine: sim, resources: {gpu: 1}}, {name: b, engine: sim, resources: {gpu: 8}},\n" +
			"  {name: c, engine: sim, resources: {cpu: 0.5, memory: 16Gi, gpu: 0.25}, placement: pack}]", nil},
		{"no GPU", sims + ", resources: {gpu: 0}}]", nil},
		{"nothing of anything", sims + ", resources: {}}]", nil},
		{"placement of nothing", sims + ", placement: spread}]", nil},
		{"one and a half GPUs", sims + ",\n  resources: {\n    gpu: 1.5}}]",
			[]string{"3: models[a].resources.gpu: must be a whole number of GPUs, or less than 1 for a share of one GPU, is 1.5"}},
		{"too many GPUs", sims + ", resources: {gpu: 65}}]", []string{"1: models[a].resources.gpu: must be at most 64, is 65"}},
		{"a share of nothing", sims + ", resources: {gpu: 0.0001}}]", []string{"1: models[a].resources.gpu: must be at least 0.001 of a GPU, is 0.0001"}},
		{"fewer than none", sims + ", resources: {cpu: -1, gpu: -1}}]", []string{
			"1: models[a].resources.cpu: must be at least 0, is -1", "1: models[a].resources.gpu: must be at least 0, is -1"}},
		{"resources of nobody", sims + ", resources: {gpus: 1}}]", []string{"1: models[a].resources.gpus: unknown field; did you mean gpu?"}},
		{"placement by name", sims + ", placement: first}]", []string{"1: models[a].placement: must be one of spread, pack, is first"}},
		{"devices named twice", sims + ", resources: {gpu: 1}, env: {CUDA_VISIBLE_DEVICES: '0'}}]",
			[]string{"1: models[a].env.CUDA_VISIBLE_DEVICES: has no effect with resources, which assign the GPUs of a replica; remove it"}},
		{"devices named by hand", sims + ", env: {CUDA_VISIBLE_DEVICES: '0'}}]", nil},
		{"resources of an upstream", "models: [{name: a, launcher: upstream, upstreams: [http://h:1], resources: {gpu: 1}, placement: pack}]", []string{
			"1: models[a].placement: has no effect with launcher: upstream; remove it", "1: models[a].resources: has no effect with launcher: upstream; remove it"}},
		{"resources of nobody's", "models: [{name: a, launcher: none, resources: {gpu: 1}}]", []string{"1: models[a].resources: has no effect with launcher: none; remove it"}},
	}
}

// TestGPUsOfALaunch checks the number of GPUs that a command may use.
func TestGPUsOfALaunch(t *testing.T) {
	t.Parallel()
	for resources, want := range map[string]int{"": 0, ", resources: {cpu: 1}": 0, ", resources: {gpu: 0.3}": 1, ", resources: {gpu: 4}": 4} {
		c := parsed(t, "engines: [{name: e, versions: [{version: 1, tasks: [rerank], command: [run, '--tensor-parallel-size={{.GPUs}}']}]}]\n"+
			"models: [{name: a, engine: e"+resources+"}]")
		if _, launch := c.Launch(c.Models[0]); launch.GPUs != want {
			t.Errorf("%q: %d GPUs, want %d", resources, launch.GPUs, want)
		}
	}
}

// Variables that contradict the resources are faults on their own lines.
func TestU12_VariablesThatContradictTheResources(t *testing.T) {
	t.Parallel()
	const head = "models:\n- name: a\n  engine: vllm\n  source: {name: org/x}\n"
	for text, want := range map[string]string{
		head + "  resources: {gpu: 0.5}\n  variables:\n    gpu_memory_utilization: 0.9\n": "f:7: models[a].variables.gpu_memory_utilization: must be at most 0.5",
		head + "  resources: {gpu: 2}\n  variables: {tensor_parallel_size: 4}\n":          "f:6: models[a].variables.tensor_parallel_size: tensor_parallel_size is 4 and must be 2",
		head + "  resources: {gpu: 2}\n  args: [--tensor-parallel-size, '4']\n":           "f:6: models[a].args[0]: --tensor-parallel-size is set by Sluice",
		head + "  resources: {gpu: 0.5}\n":                                                "",
		head + "  variables: {tensor_parallel_size: 4}\n":                                 "",
	} {
		_, err := Parse("f", []byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
