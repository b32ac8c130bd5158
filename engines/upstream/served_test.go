package upstream

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// TestU4_NamesOnServers: a model has another name on each server. Servers with different names are
// different groups, and a server that does not list the name is told.
func TestU4_NamesOnServers(t *testing.T) {
	a, b := newTestServer(t, "/v1/models", "Qwen/Qwen2.5-7B"), newTestServer(t, "/v1/models", "/models/qwen")
	c, d := newTestServer(t, "/v1/models", "pretty"), newTestServer(t, "/v1/models", "other")
	l, fleet := newTestLauncher(t, Desired{Models: []Model{{
		Model: engines.Model{Name: "pretty", Launcher: engines.Upstream}, URLs: []string{a.URL, b.URL, c.URL, d.URL},
		Names: map[string]string{a.URL: "Qwen/Qwen2.5-7B", b.URL: "/models/qwen", d.URL: "Qwen/Qwen2.5-7B"},
	}}})
	if got := l.Unlisted(); len(got) != 0 {
		t.Errorf("before the first check: %+v", got)
	}
	l.CheckOnce(t.Context())
	served := map[string]string{}
	for _, r := range fleet.Snapshot().Models["pretty"].Replicas {
		served[r.ID] = r.ServedModel
	}
	if diff := cmp.Diff(map[string]string{a.id(): "Qwen/Qwen2.5-7B", b.id(): "/models/qwen", c.id(): "", d.id(): "Qwen/Qwen2.5-7B"}, served); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	groups := groupsOf(fleet, "pretty")
	want := map[string]string{a.id(): "=Qwen%2FQwen2.5-7B", b.id(): "=%2Fmodels%2Fqwen", c.id(): "", d.id(): "=Qwen%2FQwen2.5-7B"}
	if diff := cmp.Diff(want, groups); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	unlisted := []Unlisted{{Model: "pretty", Name: "Qwen/Qwen2.5-7B", Server: d.URL}}
	if diff := cmp.Diff(unlisted, l.Unlisted()); diff != "" {
		t.Errorf("not listed (-want +got):\n%s", diff)
	}
}
