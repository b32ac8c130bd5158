package kubernetes

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var testInstall = install{name: "sluice", drainTimeout: 30 * time.Minute}

// simpleModel returns a model of the simulated engine.
func simpleModel(name string) Model {
	version, _ := engines.Find(engines.Builtin(), "sim", "1")
	version.Image = "registry.example/sluice:1"
	return Model{
		Model:   engines.Model{Name: name, Task: engines.TextGeneration, Desired: 1},
		Version: version,
		Launch:  engines.Launch{Name: name, Task: engines.TextGeneration},
	}
}

// fullModel returns a model with a value in every field.
func fullModel() Model {
	version, _ := engines.Find(engines.Builtin(), "vllm", "0.11")
	version.Env = map[string]string{"HF_HOME": "/cache", "LOGGING": "level $(x)"}
	version.Kubernetes = `
metadata:
  labels: {team: chat, sluice.dev/install: theirs}
spec:
  replicas: 7
  selector: {matchLabels: {app: other}}
  template:
    metadata:
      labels: {app: "{{.Name}}"}
    spec:
      nodeSelector: {pool: gpu}
      containers:
        - name: engine
          image: {{.Image}}-patched
          resources: {limits: {memory: 40Gi}}
        - name: metrics
          image: exporter:1
          args: ["--length={{.Variables.max_model_len}}", "--gpus={{.GPUs}}"]
`
	return Model{
		Model:   engines.Model{Name: "Org/Llama 3.1:8B", Task: engines.TextGeneration},
		Version: version,
		Launch: engines.Launch{Name: "Org/Llama 3.1:8B", Model: "meta/llama", Registry: "huggingface", Task: engines.TextGeneration,
			Variables: map[string]any{"max_model_len": 4096, "max_num_seqs": 32}},
		Env:          map[string]string{"HF_HOME": "/models", "VLLM_HOST_IP": "$(POD_IP)", "PRICE": "5$"},
		Secrets:      map[string]SecretKey{"HF_TOKEN": {Name: "hub", Key: "token"}},
		Resources:    &engines.Resources{CPU: 3.5, Memory: 32 << 30, GPU: 2},
		Placement:    "pack",
		Volumes:      []Volume{{Claim: "weights", Path: "/models"}},
		StartTimeout: 20 * time.Minute, DrainTimeout: time.Hour,
		Owner: &Owner{APIVersion: "sluice.dev/v1alpha1", Kind: "InferenceModel", Name: "llama", UID: "1-2-3"},
	}
}

func TestManifests(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	for _, m := range []Model{simpleModel("chat"), fullModel()} {
		d, err := testInstall.manifest(m)
		if err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString("---\n" + string(text))
	}
	testutil.Golden(t, "testdata/deployments.golden", got.String(), *update)
}

// Every version of every built-in engine has a valid Deployment for each task, with and without a
// GPU.
func TestEveryEngineHasAManifest(t *testing.T) {
	t.Parallel()
	for _, engine := range engines.Builtin() {
		for _, version := range engine.Versions {
			if version.Image == "" {
				version.Image = "image"
			}
			for _, task := range version.Tasks {
				m := Model{Model: engines.Model{Name: "m"}, Version: version, Resources: &engines.Resources{GPU: 1},
					Launch: engines.Launch{Name: "m", Model: "org/m", Registry: "huggingface", Task: task}}
				d, err := testInstall.manifest(m)
				if err != nil {
					t.Errorf("%s %s %s: %v", engine.Name, version.Version, task, err)
					continue
				}
				c := d.Spec.Template.Spec.Containers[0]
				if gpus := c.Resources.Limits["nvidia.com/gpu"]; gpus.Value() != 1 {
					t.Errorf("%s: %v", engine.Name, c.Resources)
				}
				for _, env := range c.Env {
					if env.Name == "CUDA_VISIBLE_DEVICES" {
						t.Errorf("%s: a variable selects GPUs, which is the device plugin's task", engine.Name)
					}
				}
			}
		}
	}
}

func TestNamesDifferByModelAndTemplate(t *testing.T) {
	t.Parallel()
	name := func(m Model) string {
		d, err := testInstall.manifest(m)
		if err != nil {
			t.Fatal(err)
		}
		if faults := validation.IsDNS1123Label(d.Name); len(faults) > 0 {
			t.Errorf("%s: %v", d.Name, faults)
		}
		return d.Name
	}
	seen := map[string]string{}
	for _, model := range []string{"a/b", "a-b", "a b", "A/B", "a.b", "ü", "日本", "-", strings.Repeat("x", 300), strings.Repeat("x", 301)} {
		n := name(simpleModel(model))
		if other, taken := seen[n]; taken {
			t.Errorf("%q and %q have the same name %s", model, other, n)
		}
		seen[n] = model
	}
	base := simpleModel("chat")
	same := func(change func(*Model)) bool {
		m := base
		change(&m)
		return name(m) == name(base)
	}
	for what, change := range map[string]func(*Model){
		"number":  func(m *Model) { m.Desired, m.MaxReplicas = 5, 9 },
		"aliases": func(m *Model) { m.Aliases = []string{"x"} },
		"owner":   func(m *Model) { m.Owner = &Owner{UID: "1"} },
		"drain":   func(m *Model) { m.DrainTimeout = time.Minute },
	} {
		if !same(change) {
			t.Errorf("%s: the Deployment's name changed although the pod template is the same", what)
		}
	}
	for what, change := range map[string]func(*Model){
		"image":     func(m *Model) { m.Version.Image = "other" },
		"variables": func(m *Model) { m.Launch.Variables = map[string]any{"seed": 1} },
		"env":       func(m *Model) { m.Env = map[string]string{"A": "b"} },
		"resources": func(m *Model) { m.Resources = &engines.Resources{CPU: 1} },
		"slots":     func(m *Model) { m.Version.Slots.Default, m.Version.Slots.Variable = 3, "" },
		"placement": func(m *Model) { m.Placement = "pack" },
	} {
		if same(change) {
			t.Errorf("%s: the Deployment's name is the same although the pod template changed", what)
		}
	}
	long := install{name: "an-installation-of-thirty-char"}
	d, err := long.manifest(base)
	if err != nil || len(d.Name) > 63 {
		t.Errorf("%v, %d characters", err, len(d.Name))
	}
}

func TestGPUResourceAndShare(t *testing.T) {
	t.Parallel()
	m := simpleModel("chat")
	m.Resources, m.GPUResource = &engines.Resources{GPU: 1}, "nvidia.com/mig-1g.10gb"
	d, err := testInstall.manifest(m)
	if err != nil {
		t.Fatal(err)
	}
	limits := d.Spec.Template.Spec.Containers[0].Resources.Limits
	if n := limits[corev1.ResourceName(m.GPUResource)]; n.Value() != 1 || len(limits) != 1 {
		t.Errorf("limits are %v", limits)
	}
	if len(d.Spec.Template.Spec.Volumes) != 0 {
		t.Error("one GPU needs no shared memory, but a volume was added")
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	schema := map[string]any{"properties": map[string]any{"size": map[string]any{"type": "integer"}}}
	for _, tt := range []struct {
		name, template, want string
		version              engines.Version
	}{
		{name: "nothing", template: ""},
		{name: "part", template: "spec: {template: {spec: {nodeSelector: {a: b}}}}"},
		{name: "variable of the schema", template: "spec: {minReadySeconds: {{.Variables.size}}}", version: engines.Version{Schema: schema}},
		{name: "variable of no schema", template: "spec: {minReadySeconds: {{.Variables.any}}}"},
		{name: "unknown variable", template: "spec: {minReadySeconds: {{.Variables.any}}}", version: engines.Version{Schema: schema}, want: `no entry for key "any"`},
		{name: "unknown field of Launch", template: "spec: {x: {{.Nothing}}}", want: "kubernetes:1:12: {{.Nothing}} is unknown"},
		{name: "unknown field", template: "spec: {template: {spec: {nodeSelectr: {a: b}}}}", want: "nodeSelectr"},
		{name: "unknown scalar", template: "spec: {template: {spec: {hostNetwrk: true}}}", want: "hostNetwrk"},
		{name: "wrong type", template: "spec: {template: {spec: {containers: [{name: engine, ports: x}]}}}", want: "kubernetes"},
		{name: "no YAML", template: "spec: [", want: "yaml"},
		{name: "no template", template: "{{", want: "unclosed action"},
		{name: "another kind", template: "kind: DaemonSet", want: "kind must be Deployment, is DaemonSet"},
		{name: "container taken away", template: "spec: {template: {spec: {containers: [{name: engine, $patch: delete}, {name: b, image: c}]}}}",
			want: `no container "engine"`},
		{name: "quantity", template: "spec: {template: {spec: {containers: [{name: engine, resources: {limits: {memory: lots}}}]}}}", want: "quantities"},
	} {
		v := tt.version
		v.Kubernetes = tt.template
		err := Check(v)
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	for _, engine := range engines.Builtin() {
		for _, v := range engine.Versions {
			if err := Check(v); err != nil {
				t.Errorf("%s %s: %v", engine.Name, v.Version, err)
			}
		}
	}
}

func TestEngineWithoutImageHasNoManifest(t *testing.T) {
	t.Parallel()
	m := simpleModel("chat")
	m.Version.Image = ""
	if _, err := testInstall.manifest(m); err == nil || !strings.Contains(err.Error(), "no image") {
		t.Errorf("got %v", err)
	}
	m.Version.Kubernetes = "spec: {template: {spec: {containers: [{name: engine, image: own}]}}}"
	if _, err := testInstall.manifest(m); err != nil {
		t.Error(err)
	}
}

func TestLocationOf(t *testing.T) {
	t.Parallel()
	home := location{"ctx", "ns"}
	for named, want := range map[string]location{
		"": home, "ctx": home, "/other": {"ctx", "other"}, "far": {"far", ""}, "far/x": {"far", "x"}, "ctx/x": {"ctx", "x"},
	} {
		if got := locationOf(named, home); got != want {
			t.Errorf("%q: %v, want %v", named, got, want)
		}
	}
}

// TestU16_ProbesCostNothing: what is asked again and again is not what makes an idle engine work.
// An engine that has failed a probe ends soon, although a deleted pod may go on for long.
func TestU16_ProbesCostNothing(t *testing.T) {
	version, _ := engines.Find(engines.Builtin(), "sglang", "")
	m := Model{Model: engines.Model{Name: "m"}, Version: version, Launch: engines.Launch{Name: "m", Model: "o/m", Registry: "huggingface", Task: engines.TextGeneration}}
	d, err := install{name: "sluice"}.manifest(m)
	if err != nil {
		t.Fatal(err)
	}
	c := d.Spec.Template.Spec.Containers[0]
	if c.StartupProbe.HTTPGet.Path != "/health_generate" || c.ReadinessProbe.HTTPGet.Path != "/health" || c.LivenessProbe.HTTPGet.Path != "/health" {
		t.Errorf("probes: %v %v %v", c.StartupProbe, c.ReadinessProbe, c.LivenessProbe)
	}
	if i := slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION" }); i < 0 || c.Env[i].Value != "false" {
		t.Errorf("/health generates a token: %v", c.Env)
	}
	for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe} {
		if p.TerminationGracePeriodSeconds == nil || *p.TerminationGracePeriodSeconds > 30 {
			t.Errorf("an engine that hangs ends after %v s", p.TerminationGracePeriodSeconds)
		}
	}
}

// TestU16_WhereEnginesListen: on all addresses of both families where the engine can, else on the
// pod's own address.
func TestU16_WhereEnginesListen(t *testing.T) {
	for engine, want := range map[string]string{"sim": "::", "vllm": "::", "sglang": "$(POD_IP)", "llama-cpp": "::", "tei": "::"} {
		version, _ := engines.Find(engines.Builtin(), engine, "")
		m := Model{Model: engines.Model{Name: "m"}, Version: version,
			Launch: engines.Launch{Name: "m", Model: "o/m", Registry: "huggingface", Task: version.Tasks[0], Variables: map[string]any{}}}
		d, err := install{name: "sluice"}.manifest(m)
		if err != nil {
			t.Fatal(err)
		}
		command := d.Spec.Template.Spec.Containers[0].Command
		i := slices.IndexFunc(command, func(s string) bool { return s == "--host" || s == "--hostname" })
		if i < 0 || command[i+1] != want {
			t.Errorf("%s listens as %v, want %s", engine, command, want)
		}
	}
	version, _ := engines.Find(engines.Builtin(), "ollama", "")
	d, err := install{name: "sluice"}.manifest(Model{Model: engines.Model{Name: "m"}, Version: version, Launch: engines.Launch{Name: "m", Task: engines.TextGeneration}})
	if err != nil {
		t.Fatal(err)
	}
	if env := d.Spec.Template.Spec.Containers[0].Env; !slices.Contains(env, corev1.EnvVar{Name: "OLLAMA_HOST", Value: "[::]:8000"}) {
		t.Errorf("ollama: %v", env)
	}
}
