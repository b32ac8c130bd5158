package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// fileOfObjects is the file that the objects of these tests are added to.
const fileOfObjects = `
auth: {mode: none}
listen: 127.0.0.1:8080
upstreams: [{url: "http://a:1", slots: 2}]
kubernetes: {}
models:
  - {name: own, engine: sim, task: embedding}
pools:
  - {name: any, models: [own, guest]}
`

// withObjects returns the configuration of file with objects, and the faults of the rejected
// objects as lines of text.
func withObjects(t *testing.T, file string, objects ...Object) (*Config, []string) {
	t.Helper()
	c, err := Parse("f.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	next, refused, err := c.WithObjects(objects)
	if err != nil {
		t.Fatal(err)
	}
	var faults []string
	for _, r := range refused {
		for _, f := range r.Faults {
			faults = append(faults, objects[r.Object].Name+": "+f.Path+": "+f.Message)
		}
	}
	return next, faults
}

// modelNamesOf returns the names of the models, separated by spaces.
func modelNamesOf(c *Config) string {
	var all []string
	for _, m := range c.Models {
		all = append(all, m.Name)
	}
	return strings.Join(all, " ")
}

func TestWithObjects(t *testing.T) {
	t.Parallel()
	c, faults := withObjects(t, fileOfObjects,
		Object{Name: "guest", Spec: []byte(`{"engine":"vllm","source":{"name":"a/b"},"replicas":{"min":0,"max":3},"routing":{"load_factor":1.5}}`)},
		Object{Name: "engine-x", Engine: true, Spec: []byte(`{"name":"x","versions":[{"version":"1","tasks":["embedding"],"command":["x"],"image":"x:1"}]}`)},
		Object{Name: "by-x", Spec: []byte(`{"name":"org/by-x","engine":"x","cooldown":"1m"}`)},
		Object{Name: "elsewhere", Spec: []byte(`{"launcher":"upstream","upstreams":["http://b:1"]}`)})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if modelNamesOf(c) != "own guest org/by-x elsewhere" {
		t.Error(modelNamesOf(c))
	}
	guest := c.Models[1]
	if guest.Launcher != engines.Kubernetes || guest.Version == "" || guest.Replicas != (Replicas{0, 3}) || guest.Routing.LoadFactor != 1.5 {
		t.Errorf("%+v", guest)
	}
	if v, l := c.Launch(c.Models[2]); v.Image != "x:1" || l.Name != "org/by-x" {
		t.Errorf("%+v %+v", v, l)
	}
}

// TestAnObjectsEngineIsNotForTheFilesModels checks that an Engine object cannot make models of the
// file run its command, neither by replacing a version nor by adding a last one. Otherwise whoever
// may write an Engine object could run any program on this node and with the secrets of the file's
// models.
func TestAnObjectsEngineIsNotForTheFilesModels(t *testing.T) {
	t.Parallel()
	sim, _ := engines.Find(engines.Builtin(), "sim", "")
	const text = `{"versions":[{"version":"%s","tasks":["embedding"],"command":["evil"],"image":"i"}]}`
	const pods = "  - {name: pods, engine: sim, launcher: kubernetes, secrets: {TOKEN: hf/token}}\npools:"
	for _, version := range []string{sim.Version, "999"} {
		c, faults := withObjects(t, strings.Replace(fileOfObjects, "pools:", pods, 1),
			Object{Name: "sim", Engine: true, Spec: fmt.Appendf(nil, text, version)},
			Object{Name: "guest", Spec: []byte(`{"engine":"sim"}`)})
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		for i, m := range c.Models {
			v, _ := c.Launch(m)
			if evil, guest := v.Command[0] == "evil", i == 2; evil != guest || (m.Version != sim.Version) && !guest {
				t.Errorf("%s runs %q, version %s", m.Name, v.Command, m.Version)
			}
		}
	}
}

// TestObjectsAtFault checks that an object with a fault is rejected alone. Only the models that
// name a rejected engine are rejected with it.
func TestObjectsAtFault(t *testing.T) {
	t.Parallel()
	c, faults := withObjects(t, fileOfObjects,
		Object{Name: "good", Spec: []byte(`{"engine":"sim","task":"embedding"}`)},
		Object{Name: "own", Spec: []byte(`{"engine":"sim","task":"embedding"}`)},
		Object{Name: "any", Spec: []byte(`{"engine":"sim","task":"embedding"}`)},
		Object{Name: "wrong", Spec: []byte(`{"engine":"vllm","source":{"name":"a/b"},"variables":{"max_num_seqs":0},"replicas":{"min":2,"max":1},"typo":1}`)},
		Object{Name: "broken", Engine: true, Spec: []byte(`{"versions":[{"version":"1","tasks":["embedding"],"command":["{{.X}}"]}]}`)},
		Object{Name: "hangs", Spec: []byte(`{"engine":"broken"}`)},
		Object{Name: "here", Spec: []byte(`{"engine":"sim","launcher":"local"}`)},
		Object{Name: "thief", Spec: []byte(`{"launcher":"upstream","upstreams":[{"url":"http://c:1","api_key_env":"HOME"}]}`)},
		Object{Name: "other-way", Spec: []byte(`{"launcher":"upstream","upstreams":["http://a:1"]}`)},
		Object{Name: "roams", Spec: []byte(`{"engine":"sim","cluster":"other/kube-system"}`)},
		Object{Name: "list", Spec: []byte(`[]`)},
		Object{Name: "empty", Spec: []byte(`null`)})
	want := []string{
		"own: spec.name: own is already used by models[own].name on line 7: choose another name",
		"any: pools[any].name: any is already used by models[any].name: choose another name",
		"wrong: spec.replicas.max: must be at least min, which is 2",
		"wrong: spec.typo: unknown field; ",
		"wrong: spec.variables.max_num_seqs: must be at least 1",
		"broken: spec.versions[1].command: ",
		"hangs: spec.engine: there is no engine broken",
		"here: spec: launcher must be kubernetes, upstream or none in a custom resource, is local",
		"thief: spec: upstreams must be URLs alone in a custom resource, and api_key_env is only allowed in the file: remove it",
		"other-way: spec.upstreams[0]: the same server is on line 4, at upstreams[0], with other settings",
		"roams: spec: cluster is not allowed in a custom resource",
		"list: spec: must be a JSON object",
		"empty: spec.engine: required with launcher: kubernetes",
	}
	if len(faults) != len(want) {
		t.Fatal(cmp.Diff(want, faults))
	}
	for _, w := range want {
		found := false
		for _, f := range faults {
			found = found || strings.HasPrefix(f, w)
		}
		if !found {
			t.Errorf("missing: %s\nof %s", w, strings.Join(faults, "\n"))
		}
	}
	if modelNamesOf(c) != "own good" {
		t.Error(modelNamesOf(c))
	}
}

func TestWithoutObjectsNothingChanges(t *testing.T) {
	t.Parallel()
	for _, file := range []string{fileOfObjects, "auth: {mode: keys}", "{}"} {
		c, err := Parse("f.yaml", []byte(file))
		if err != nil {
			t.Fatal(err)
		}
		next, refused, err := c.WithObjects(nil)
		if err != nil || len(refused) > 0 {
			t.Fatal(err, refused)
		}
		if diff := cmp.Diff(c, next, ignorePrivate); diff != "" {
			t.Error(diff)
		}
	}
}
