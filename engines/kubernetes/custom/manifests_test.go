package custom_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines/kubernetes/custom"
)

// The API accepts the manifests in examples/kubernetes.
func TestManifestsAreAccepted(t *testing.T) {
	t.Parallel()
	c := installed(t)
	ns := c.Namespace(t)
	out := c.Kubectl(t, "apply", "-k", overlay(t, ns), "--dry-run=server")
	for _, what := range []string{"inferencemodels.sluice.dev", "serviceaccount/sluice", "role.rbac.authorization.k8s.io/sluice", "configmap/sluice",
		"rolebinding.rbac.authorization.k8s.io/sluice", "service/sluice", "deployment.apps/sluice", "networkpolicy.networking.k8s.io/sluice"} {
		if !strings.Contains(out, what) {
			t.Errorf("the API did not accept %s: %s", what, out)
		}
	}
	files, err := filepath.Glob("../../../examples/kubernetes/models/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		c.Kubectl(t, "apply", "-n", ns, "-f", file)
	}
}

// The Role suffices for all that a Watcher does. Without it the Watcher writes nothing and reports
// the error.
func TestRole(t *testing.T) {
	t.Parallel()
	c := installed(t)
	ns := c.Namespace(t)
	c.Kubectl(t, "create", "serviceaccount", "-n", ns, "sluice")
	c.Apply(t, ns, model("a", "{engine: sim}")+engine("e", "{versions: []}"))
	g := run(t, c.User(t, ns, "sluice"), "", true)
	until(t, "the API forbids it", func() bool { return strings.Contains(g.Errors(), `inferencemodels.sluice.dev is forbidden`) })
	// all but the gateway's own Deployment
	c.Kubectl(t, "apply", "-k", overlay(t, ns), "-l", "!app.kubernetes.io/name")
	until(t, "told", g.knows("e", "a"))
	g.Report([]custom.Status{{Kind: custom.Engine, Name: "e", Generation: 1, Accepted: true},
		{Kind: custom.Model, Name: "a", Generation: 1, Accepted: true, Phase: "Idle"}})
	until(t, "written", func() bool { return field(t, c, ns, "a", ".status.phase") == "Idle" })
	until(t, "the engine's too", func() bool {
		return strings.Contains(c.Kubectl(t, "get", "engines.sluice.dev", "-n", ns), "True")
	})
	c.Kubectl(t, "delete", "im", "-n", ns, "--wait=false", "a")
	until(t, "told of the deletion", func() bool { return g.one("a").Deleting })
	g.ReleaseFinalizers([]string{"a"})
	until(t, "gone", g.knows("e"))
	until(t, "all is well", func() bool { return g.Errors() == "" })
}

// A model with replicas has a scale, also without replicas.min.
func TestModelsHaveAScale(t *testing.T) {
	t.Parallel()
	c := installed(t)
	ns := c.Namespace(t)
	for name, replicas := range map[string]string{"empty": "{}", "most": "{max: 4}", "both": "{min: 1, max: 4}"} {
		c.Apply(t, ns, model(name, "{engine: sim, replicas: "+replicas+"}"))
		scale := c.Kubectl(t, "get", "--raw", "/apis/sluice.dev/v1alpha1/namespaces/"+ns+"/inferencemodels/"+name+"/scale")
		if !strings.Contains(scale, `"spec":{"replicas":1}`) {
			t.Errorf("%s: %s", name, scale)
		}
		c.Kubectl(t, "scale", "-n", ns, "im", name, "--replicas=2")
		if least := field(t, c, ns, name, ".spec.replicas.min"); least != "2" {
			t.Errorf("%s: after kubectl scale replicas.min is %s", name, least)
		}
	}
}

// The API rejects invalid objects and names the field.
func TestInvalidObjectsAreRefused(t *testing.T) {
	t.Parallel()
	c := installed(t)
	ns := c.Namespace(t)
	for spec, want := range map[string]string{
		`{}`:                                                     "spec.engine",
		`{launcher: kubernetes}`:                                 "spec.engine",
		`{launcher: local}`:                                      `spec.launcher: Unsupported value: "local"`,
		`{launcher: upstream}`:                                   "spec.upstreams",
		`{engine: sim, version: 0.10}`:                           "spec.version",
		`{engine: sim, enginee: sim}`:                            `unknown field "spec.enginee"`,
		`{engine: sim, replicas: {min: -1}}`:                     "spec.replicas.min",
		`{engine: sim, replicas: {min: 3, max: 2}}`:              "spec.replicas.max",
		`{engine: sim, replicas: {min: two}}`:                    "spec.replicas.min",
		`{engine: sim, resources: {memory: 16Gb}}`:               "spec.resources.memory",
		`{engine: sim, resources: {gpu: -1}}`:                    "spec.resources.gpu",
		`{engine: sim, cooldown: 30}`:                            "spec.cooldown",
		`{engine: sim, cooldown: 30 s}`:                          "spec.cooldown",
		`{engine: sim, placement: alphabetical}`:                 "spec.placement",
		`{engine: sim, task: cooking}`:                           "spec.task",
		`{engine: sim, source: {registry: huggingface}}`:         "spec.source.name",
		`{engine: sim, routing: {load_factor: 0.5}}`:             "spec.routing.load_factor",
		`{engine: sim, admission: {max_per_replica: none}}`:      "spec.admission.max_per_replica",
		`{engine: sim, unhealthy_on: [4xx]}`:                     "spec.unhealthy_on[0]",
		`{launcher: upstream, upstreams: [{url: 'http://h:1'}]}`: "spec.upstreams[0]",
		`{engine: sim, env: {A: 1}}`:                             "spec.env.A",
	} {
		if err := c.TryApply(t, ns, model("a", spec)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, which does not name %s", spec, err, want)
		}
	}
	if err := c.TryApply(t, ns, engine("e", "{versions: [{tasks: [rerank]}]}")); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("a version without a name: %v", err)
	}
	// These are all forms that the configuration file allows.
	c.Apply(t, ns, model("a", `{engine: sim, resources: {memory: 1024, cpu: 0.5, gpu: 1}, admission: {max_per_replica: 3}, unhealthy_on: [503, connect]}`)+
		model("b", `{name: Org/Model, engine: sim, resources: {memory: 1.5Gi}, admission: {max_per_replica: auto}, unhealthy_on: ["503"], cooldown: 1h30m}`))
}
