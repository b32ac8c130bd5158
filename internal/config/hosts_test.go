package config

import (
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

func hostsCases() []ruleCase {
	const head = "kubernetes: {}\n"
	const large = "models: [{name: a, engine: vllm, source: {name: org/a}, launcher: kubernetes, "
	return []ruleCase{
		{"hosts", head + large + "hosts: 2, resources: {gpu: 16}}]", nil},
		{"one host", head + large + "hosts: 1}]", nil},
		{"no host", head + large + "hosts: 0}]", []string{"2: models[a].hosts: must be at least 1, is 0"}},
		{"too many hosts", head + large + "hosts: 65, resources: {gpu: 65}}]", []string{
			"2: models[a].hosts: must be at most 64, is 65", "2: models[a].resources.gpu: must be at most 64, is 65"}},
		{"hosts without GPUs", head + large + "hosts: 2}]", []string{
			"2: models[a].hosts: needs resources.gpu, the GPUs of all hosts of a replica together"}},
		{"hosts that do not divide the GPUs", head + large + "hosts: 3, resources: {gpu: 8}}]", []string{
			"2: models[a].hosts: must divide resources.gpu, which is 8, is 3: each host gets an equal part of the GPUs"}},
		{"hosts of an engine that cannot spread", head + "models: [{name: a, engine: tei, source: {name: org/a}, launcher: kubernetes, hosts: 2, resources: {gpu: 2}}]",
			[]string{"2: models[a].hosts: engine tei 1.9 cannot spread a replica over several hosts: remove hosts, or set multi_host in the engine's version"}},
		{"hosts and a name that begins with a digit", "kubernetes: {name: 1st}\n" + large + "hosts: 2, resources: {gpu: 2}}]", []string{
			"2: models[a].hosts: needs a kubernetes.name that begins with a letter, because LeaderWorkerSets have Services of their name, is 1st"}},
		{"hosts of a local model", "models: [{name: a, engine: sim, launcher: local, hosts: 2}]", []string{
			"1: models[a].hosts: has no effect with launcher: local; remove it"}},
		{"multi_host without workers", "engines: [{name: e, versions: [{version: '1', tasks: [embedding], command: [e], multi_host: {leader: [x]}, " +
			"ready: {path: /}, health: {path: /}}]}]", []string{
			"1: engines[e].versions[1].multi_host.worker: required: the program of the workers and its arguments"}},
	}
}

// TestN4_EnginesSayHowTheySpread: a version of the file may say it, and inherits it from a built-in
// one.
func TestN4_EnginesSayHowTheySpread(t *testing.T) {
	t.Parallel()
	c := parsed(t, "kubernetes: {}\n"+
		"engines:\n  - {name: vllm, versions: [{version: '0.33', image: own}]}\n"+
		"  - name: e\n    versions: [{version: '1', tasks: [embedding], image: i, command: [e], ready: {path: /}, health: {path: /}, "+
		"multi_host: {leader: [l, '{{.Command}}'], worker: [w], variables: {a: 1}, hosts: n}}]\n"+
		"models:\n  - {name: a, engine: e, launcher: kubernetes, hosts: 4, resources: {gpu: 8}}\n"+
		"  - {name: b, engine: vllm, source: {name: org/b}, launcher: kubernetes, hosts: 4, resources: {gpu: 8}}")
	version, launch := c.Launch(c.Models[0])
	version, launch = version.OnHosts(launch, 4)
	if got := version.Command; len(got) != 2 || got[0] != "l" || got[1] != "e" || launch.Variables["n"] != 4 || launch.Variables["a"] != 1 {
		t.Errorf("the leader is %v with %v", got, launch.Variables)
	}
	version, launch = c.Launch(c.Models[0])
	if version, _ = version.AsWorker(launch, 4); len(version.Command) != 1 || version.Command[0] != "w" || version.Ready.Path != "" {
		t.Errorf("a worker is %v with the probe %v", version.Command, version.Ready)
	}
	if version, _ := c.Launch(c.Models[1]); !version.MultiHost.Supported() || version.Image != "own" {
		t.Errorf("a version of vllm inherits %+v", version.MultiHost)
	}
}

// TestN4_SizesOfHosts: GPUs of one host share the layers, and hosts follow each other, unless the
// model says otherwise.
func TestN4_SizesOfHosts(t *testing.T) {
	t.Parallel()
	version, _ := engines.Find(engines.Builtin(), "vllm", "")
	for _, tt := range []struct {
		given, want map[string]any
	}{
		{nil, map[string]any{"pipeline_parallel_size": 2}},
		{map[string]any{"tensor_parallel_size": 16}, map[string]any{"pipeline_parallel_size": nil, "tensor_parallel_size": 16}},
		{map[string]any{"distributed_executor_backend": "mp"}, map[string]any{"distributed_executor_backend": "mp", "pipeline_parallel_size": 2}},
	} {
		_, launch := version.OnHosts(engines.Launch{GPUs: 16, Variables: tt.given}, 2)
		for name, want := range tt.want {
			if got := launch.Variables[name]; got != want {
				t.Errorf("with %v: %s is %v, want %v", tt.given, name, got, want)
			}
		}
	}
}
