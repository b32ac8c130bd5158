package gateway

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines/kubernetes/custom"
	"github.com/sluice-gateway/sluice/engines/upstream"
	"github.com/sluice-gateway/sluice/internal/condition"
)

// TestX3_NamesOfCustomResources: an object cannot take a name of the file or of another object, and
// the operator is told. Discovered servers cannot take the names of accepted objects.
func TestX3_NamesOfCustomResources(t *testing.T) {
	file := parse(t, t.TempDir(), `
kubernetes: {custom_resources: true}
models: [{name: chat, aliases: [talk], launcher: none}]
pools: [{name: auto, models: [chat]}]
upstreams: [{url: http://h, join: true}]
`)
	r := &customResources{inForce: new(verdicts), changed: make(chan struct{})}
	for _, name := range []string{"chat", "talk", "auto", "own"} {
		r.seen = append(r.seen, custom.Object{Kind: custom.Model, Name: name, UID: name, Spec: []byte(`{"launcher":"upstream","upstreams":["http://x"]}`)})
	}
	merged, err := r.merge(file)
	if err != nil {
		t.Fatal(err)
	}
	r.commit(merged)
	told := map[string]string{}
	for _, c := range r.nameConditions() {
		told[c.Subject] = c.Message
		if c.Type != condition.NameClash {
			t.Errorf("%s is told as %s", c.Subject, c.Type)
		}
	}
	for name, owner := range map[string]string{"chat": "a model", "talk": "another name of the model chat", "auto": "a pool"} {
		if want := "The custom resource " + name + " asks for the name " + name + ", which is " + owner; !strings.HasPrefix(told[name], want) {
			t.Errorf("%s: told %q, want %q", name, told[name], want)
		}
	}
	if len(told) != 3 {
		t.Errorf("told %v", told)
	}
	got := upstreams(merged)
	if d := cmp.Diff([]upstream.Discovered{{URL: "http://h:80", Join: true}}, got.Discover); d != "" {
		t.Error(d)
	}
	joinable := map[string]bool{"chat": false, "talk": false, "auto": false, "own": true}
	for name, want := range joinable {
		if owner, ok := got.Reserved[name]; !ok || owner.Joinable != want {
			t.Errorf("%s is reserved as %+v (%v)", name, owner, ok)
		}
	}
}
