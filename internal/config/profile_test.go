package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const profiles = `kubernetes: {}
profiles:
  - name: a100
    resources: {cpu: 8, memory: 64GiB, gpu: 2}
    gpu_resource: example.com/gpu
    pod: {spec: {nodeSelector: {gpu: a100}}}
  - name: spot
    resources: {cpu: 4}
    pod: {spec: {tolerations: [{key: spot, operator: Exists}]}}
`

// TestU13_Profiles: a model has the resources of its profiles where it says none, a later profile
// before an earlier one, and all patches in their order.
func TestU13_Profiles(t *testing.T) {
	t.Parallel()
	c := parsed(t, profiles+`models:
  - {name: m, launcher: kubernetes, engine: sim, profiles: [a100, spot], resources: {memory: 1GiB}, pod: {metadata: {labels: {team: x}}}}
  - {name: plain, launcher: kubernetes, engine: sim}
`)
	m := c.Models[0]
	if d := cmp.Diff(&Resources{CPU: 4, Memory: 1 << 30, GPU: 2}, m.Resources); d != "" {
		t.Error(d)
	}
	if m.GPUResource != "example.com/gpu" {
		t.Errorf("gpu_resource is %s", m.GPUResource)
	}
	if d := cmp.Diff([]map[string]any{c.Profiles[0].Pod, c.Profiles[1].Pod, m.Pod}, m.PodPatches); d != "" {
		t.Error(d)
	}
	if plain := c.Models[1]; plain.Resources != nil || plain.PodPatches != nil {
		t.Errorf("a model without profiles has %+v %+v", plain.Resources, plain.PodPatches)
	}
}

// TestU13_PodFaults: what a patch may not do is told with its line.
func TestU13_PodFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, file, want string }{
		{"unknown field", "models:\n  - name: m\n    launcher: kubernetes\n    engine: sim\n    pod:\n      spec:\n        tolerationz: []\n",
			"f:7: models[m].pod.spec.tolerationz: unknown field; did you mean tolerations?"},
		{"owned field", "models:\n  - name: m\n    launcher: kubernetes\n    engine: sim\n    pod:\n      spec:\n        containers:\n        - name: engine\n          args: [a]\n",
			"f:9: models[m].pod.spec.containers[0].args: belongs to Sluice;"},
		{"of a profile", "profiles:\n  - name: p\n    pod: {spec: {hostNetwork: 5}}\n",
			"f:3: profiles[p].pod.spec.hostNetwork: must be true or false, is 5"},
		{"unknown profile", "profiles: [{name: a100}]\nmodels: [{name: m, launcher: kubernetes, engine: sim, profiles: [a10]}]\n",
			"f:2: models[m].profiles[0]: there is no profile a10; did you mean a100?"},
		{"two of a name", "profiles: [{name: a}, {name: a}]\n", "profiles[a].name:"},
		{"another launcher", "models: [{name: m, engine: sim, pod: {spec: {hostNetwork: true}}}]\n",
			"f:1: models[m].pod: has no effect with launcher: local; remove it"},
	} {
		_, faults := parsedIn(t, t.TempDir(), c.file+"kubernetes: {}\n")
		if !strings.Contains(faults, c.want) {
			t.Errorf("%s: faults %q, want %q", c.name, faults, c.want)
		}
	}
}
