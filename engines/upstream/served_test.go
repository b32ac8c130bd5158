package upstream

import (
	"io"
	"net/http"
	"net/http/httptest"
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

// TestU4_NamesThatVLLMDoesNotList: vLLM refuses requests for names that it does not list, so a
// model of the file that it does not list is told. Servers such as llama-server answer for any
// name.
func TestU4_NamesThatVLLMDoesNotList(t *testing.T) {
	t.Parallel()
	vllm := serveList(t, `{"data":[{"id":"Qwen/Qwen2.5-7B","owned_by":"vllm"}]}`)
	llama := serveList(t, `{"data":[{"id":"qwen.gguf","owned_by":"llamacpp"}]}`)
	l, _ := newTestLauncher(t, Desired{Models: []Model{
		{Model: engines.Model{Name: "qwen", Launcher: engines.Upstream}, URLs: []string{vllm, llama}},
		{Model: engines.Model{Name: "Qwen/Qwen2.5-7B", Launcher: engines.Upstream}, URLs: []string{vllm}},
	}})
	l.CheckOnce(t.Context())
	if diff := cmp.Diff([]Unlisted{{Model: "qwen", Name: "qwen", Server: vllm}}, l.Unlisted()); diff != "" {
		t.Errorf("not listed (-want +got):\n%s", diff)
	}
}

// serveList returns the URL of a server whose list of models is the JSON.
func serveList(t *testing.T, list string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, list) }))
	t.Cleanup(s.Close)
	return s.URL
}

// TestU4_AnAdapterOfSGLangIsAskedForWithItsBase: SGLang lists an adapter by its own name, and
// answers a request for that name with the base model.
func TestU4_AnAdapterOfSGLangIsAskedForWithItsBase(t *testing.T) {
	list := func(owner string) string {
		return `{"data":[{"id":"base","owned_by":"` + owner + `"},{"id":"sql","owned_by":"` + owner + `","parent":"base"}]}`
	}
	sglang, vllm := serveList(t, list("sglang")), serveList(t, list("vllm"))
	l, fleet := newTestLauncher(t, Desired{
		Models: []Model{{Model: engines.Model{Name: "pretty", Launcher: engines.Upstream}, URLs: []string{sglang, vllm},
			Names: map[string]string{sglang: "sql", vllm: "sql"}}},
		Discover: discover(sglang, vllm),
	})
	l.CheckOnce(t.Context())
	served := map[string]string{}
	for _, model := range []string{"base", "sql", "pretty"} {
		m := fleet.Snapshot().Models[model]
		for i := range m.Replicas {
			served[model+" at "+m.Replicas[i].ID] = m.NameAt(&m.Replicas[i])
		}
	}
	want := map[string]string{
		"base at " + replicaID(sglang): "base", "sql at " + replicaID(sglang): "base:sql", "pretty at " + replicaID(sglang): "base:sql",
		"base at " + replicaID(vllm): "base", "sql at " + replicaID(vllm): "sql", "pretty at " + replicaID(vllm): "sql",
	}
	if diff := cmp.Diff(want, served); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if unlisted := l.Unlisted(); len(unlisted) > 0 {
		t.Errorf("not listed: %+v", unlisted)
	}
}

// TestU4_AnAdapterOfSGLangHasAnyModelBeforeIt: SGLang reads of MODEL:ADAPTER the adapter alone, so
// servers that know the model by different names serve an adapter under one name.
func TestU4_AnAdapterOfSGLangHasAnyModelBeforeIt(t *testing.T) {
	list := func(base string) string {
		return serveList(t, `{"data":[{"id":"`+base+`","owned_by":"sglang"},{"id":"sql","owned_by":"sglang","parent":"`+base+`"}]}`)
	}
	a, b := list("org/base"), list("/models/base")
	l, _ := newTestLauncher(t, Desired{Models: []Model{{
		Model: engines.Model{Name: "base", Launcher: engines.Upstream, Adapters: []string{"base:sql", "base:other"}}, URLs: []string{a, b},
	}}})
	l.CheckOnce(t.Context())
	for _, u := range l.Unlisted() {
		if u.Name != "base:other" {
			t.Error(u.Message())
		}
	}
	if got := len(l.Unlisted()); got != 2 {
		t.Errorf("%d adapters are not listed, want one at each server", got)
	}
}

// TestU4_AdaptersThatAServerDoesNotList: a server that has not loaded an adapter of the file, or
// knows it by another name, is told.
func TestU4_AdaptersThatAServerDoesNotList(t *testing.T) {
	all := serveList(t, `{"data":[{"id":"base"},{"id":"sql","parent":"base"},{"id":"base:sql"}]}`)
	none := serveList(t, `{"data":[{"id":"base"}]}`)
	sglang := serveList(t, `{"data":[{"id":"base","owned_by":"sglang"},{"id":"sql","owned_by":"sglang","parent":"base"}]}`)
	l, _ := newTestLauncher(t, Desired{Models: []Model{{
		Model: engines.Model{Name: "base", Launcher: engines.Upstream, Adapters: []string{"sql", "base:sql"}}, URLs: []string{all, none, sglang},
	}}})
	l.CheckOnce(t.Context())
	got := map[string]bool{}
	for _, u := range l.Unlisted() {
		got[u.Message()] = true
	}
	want := map[string]bool{
		"The server " + none + ` does not list the adapter "sql" of the model base.`:                                                                         true,
		"The server " + none + ` does not list the adapter "base:sql" of the model base.`:                                                                    true,
		"The server " + sglang + ` lists the adapter "sql" of the model base, but knows it in requests as "base:sql" alone. It answers them with the model.`: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("not listed (-want +got):\n%s", diff)
	}
}
