package gateway

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines/kubernetes/custom"
	"github.com/sluice-gateway/sluice/internal/config"
)

const (
	soundSpec = `{"engine":"sim","task":"text-generation","replicas":{"min":1,"max":1},"resources":{"cpu":1}}`
	typoSpec  = `{"engine":"sim","task":"text-generation","variables":{"max_num_seq":8}}`
)

// resourcesWith returns custom resources that are in force, and their statuses by name.
func resourcesWith(t *testing.T, objects ...custom.Object) (*customResources, *verdicts) {
	t.Helper()
	file := parse(t, t.TempDir(), "kubernetes: {custom_resources: true}\nmodels: [{name: taken, launcher: none}]\n")
	r := &customResources{inForce: new(verdicts), changed: make(chan struct{}), seen: objects}
	merged, err := r.merge(file)
	if err != nil {
		t.Fatal(err)
	}
	r.commit(merged)
	return r, r.inForce
}

// modelNamed returns a model of the configuration, or the zero model.
func modelNamed(v *verdicts, name string) config.Model {
	for _, m := range v.config.Models {
		if m.Name == name {
			return m
		}
	}
	return config.Model{}
}

func modelObject(name, spec, accepted string) custom.Object {
	return custom.Object{Kind: custom.Model, Name: name, UID: name, Spec: []byte(spec), Accepted: []byte(accepted)}
}

// TestU15_AStartWithARefusedSpec: a gateway that starts after a spec was refused serves the spec
// that the status tells as accepted, and keeps telling it.
func TestU15_AStartWithARefusedSpec(t *testing.T) {
	r, v := resourcesWith(t, modelObject("chat", typoSpec, soundSpec), modelObject("new", typoSpec, ""))
	if got := modelNamed(v, "chat"); got.Resources == nil || got.Resources.CPU != 1 {
		t.Fatalf("the model is %+v", got)
	}
	if modelNamed(v, "new").Name != "" {
		t.Error("a model that was never accepted is in force")
	}
	if got := string(v.accepted["chat"]); got != soundSpec {
		t.Errorf("told as accepted: %s", got)
	}
	if owner := r.owner("chat"); owner == nil || owner.UID != "chat" {
		t.Errorf("the owner is %+v", owner)
	}
	for _, object := range v.objects {
		says := object.consequence()
		if want := object.Name == "chat"; want != strings.Contains(says, "stays in force") {
			t.Errorf("%s: %q", object.Name, says)
		}
	}
	if held := r.held(); len(held) > 0 {
		t.Errorf("held: %+v", held)
	}
}

// TestU15_AnAcceptedSpecThatIsRefusedNow: the pods stay, also when the accepted spec has become
// invalid. A name that belongs to another model is not held.
func TestU15_AnAcceptedSpecThatIsRefusedNow(t *testing.T) {
	gone := strings.Replace(soundSpec, "sim", "deleted-engine", 1)
	r, v := resourcesWith(t, modelObject("chat", gone, gone), modelObject("taken", gone, gone),
		modelObject("renamed", gone, strings.Replace(gone, "{", `{"name":"before",`, 1)))
	names := map[string]bool{}
	for _, m := range r.held() {
		names[m.Name] = m.Frozen && m.Owner != nil
	}
	if len(names) != 2 || !names["chat"] || !names["before"] {
		t.Errorf("held: %v", names)
	}
	if got := string(v.accepted["chat"]); got != gone {
		t.Errorf("told as accepted: %s", got)
	}
}
