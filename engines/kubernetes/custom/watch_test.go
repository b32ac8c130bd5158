package custom_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines/kubernetes/custom"
	"github.com/sluice-gateway/sluice/internal/kubetest"
)

// OnChange gets all objects in order, and again when a spec changes or an object is deleted, and
// not after other changes.
func TestObjectsAreDelivered(t *testing.T) {
	t.Parallel()
	c := installed(t)
	ns := c.Namespace(t)
	g := run(t, c.Kubeconfig, ns, false)
	until(t, "told of nothing", g.knows())
	c.Apply(t, ns, model("b", "{engine: mine, variables: {x: 0.5, deep: {list: [1, a]}}}")+model("a", "{launcher: none}")+
		engine("z", "{versions: [{version: '0.10', tasks: [rerank], command: [run]}]}"))
	until(t, "told of all", g.knows("z", "a", "b"))
	b := g.one("b")
	if string(b.Spec) != `{"engine":"mine","variables":{"deep":{"list":[1,"a"]},"x":0.5}}` || b.Generation != 1 || b.Namespace != ns || b.UID == "" ||
		b.Kind != custom.Model || b.APIVersion != "sluice.dev/v1alpha1" || b.Deleting {
		t.Errorf("told %+v, %s", b, b.Spec)
	}
	before, _ := g.told()
	c.Kubectl(t, "label", "im", "-n", ns, "b", "x=y")
	c.Kubectl(t, "patch", "im", "-n", ns, "b", "--subresource=status", "--type=merge", "-p", `{"status": {"phase": "Ready"}}`)
	c.Kubectl(t, "patch", "im", "-n", ns, "a", "--type=merge", "-p", `{"spec": {"aliases": ["c"]}}`)
	until(t, "told of the change", func() bool { return g.one("a").Generation == 2 })
	if after, _ := g.told(); after != before+1 {
		t.Errorf("told %d times of one change", after-before)
	}
	c.Kubectl(t, "delete", "im", "-n", ns, "b")
	until(t, "told of the deletion", g.knows("z", "a"))
}

// Two gateways deliver the same objects. Only the leader writes. The other gateway writes its
// statuses when it becomes the leader.
func TestOnlyTheLeaderWrites(t *testing.T) {
	t.Parallel()
	c := installed(t)
	ns := c.Namespace(t)
	c.Apply(t, ns, model("a", "{engine: sim}")+model("b", "{launcher: none}")+engine("e", "{versions: []}"))
	first, second := run(t, c.Kubeconfig, ns, true), run(t, c.Kubeconfig, ns, false)
	theirs := []custom.Status{
		{Kind: custom.Model, Name: "a", Generation: 1, Phase: "Failed", Message: "by the second"},
		// The leader has no status for this object.
		{Kind: custom.Model, Name: "b", Generation: 1, Message: "by the second"},
	}
	for _, g := range []*gateway{first, second} {
		until(t, "told", g.knows("e", "a", "b"))
	}
	second.Report(theirs)
	first.Report([]custom.Status{
		{Kind: custom.Model, Name: "a", Generation: 1, Phase: "Starting", Replicas: 1, Desired: 2, Accepted: true, Message: "by the first"},
		{Kind: custom.Engine, Name: "e", Generation: 1, Message: "spec.versions: must have at least one version"},
	})
	until(t, "the first wrote", func() bool { return field(t, c, ns, "a", ".status.message") == "by the first" })
	until(t, "the engine's too", func() bool {
		out := c.Kubectl(t, "get", "engines.sluice.dev", "-n", ns, "-o", "wide")
		return strings.Contains(out, "False") && strings.Contains(out, "must have at least one version")
	})
	if got := field(t, c, ns, "b", ".status"); got != "" {
		t.Errorf("one that does not lead has written %s", got)
	}
	first.lead(false)
	second.lead(true)
	until(t, "the second wrote", func() bool { return field(t, c, ns, "a", ".status.message") == "by the second" })
	for _, g := range []*gateway{first, second} {
		if g.Errors() != "" {
			t.Errorf("Problem says %q", g.Errors())
		}
	}
}

// kubectl shows the status of models and waits for their conditions.
func TestKubectlShowsTheStatus(t *testing.T) {
	t.Parallel()
	c := installed(t)
	ns := c.Namespace(t)
	c.Apply(t, ns, model("a", "{engine: vllm, version: '0.11'}"))
	g := run(t, c.Kubeconfig, ns, true)
	until(t, "told", g.knows("a"))
	status := custom.Status{Kind: custom.Model, Name: "a", Generation: 1, Phase: "Starting", Replicas: 3, Desired: 3, Accepted: true, Message: "pulling"}
	g.Report([]custom.Status{status})
	c.Kubectl(t, "wait", "-n", ns, "--for=condition=Accepted", "--timeout=60s", "im/a")
	since := field(t, c, ns, "a", `.status.conditions[?(@.type=="Accepted")].lastTransitionTime`)
	status.Phase, status.Ready, status.Message = "Ready", 2, "2 of 3"
	g.Report([]custom.Status{status})
	c.Kubectl(t, "wait", "-n", ns, "--for=condition=Ready", "--timeout=60s", "im/a")
	if now := field(t, c, ns, "a", `.status.conditions[?(@.type=="Accepted")].lastTransitionTime`); now != since || since == "" {
		t.Errorf("a condition that holds since %q is said to hold since %q", since, now)
	}
	lines := strings.Split(c.Kubectl(t, "get", "im", "-n", ns, "-o", "wide"), "\n")
	if got := strings.Fields(lines[0]); strings.Join(got, " ") != "NAME ENGINE VERSION PHASE READY AGE MESSAGE" {
		t.Errorf("columns %v", got)
	}
	row := strings.Fields(lines[1])
	if row[5] = "1s"; strings.Join(row, " ") != "a vllm 0.11 Ready 2/3 1s 2 of 3" {
		t.Errorf("row %v", row)
	}
	if narrow := c.Kubectl(t, "get", "im", "-n", ns); strings.Contains(narrow, "MESSAGE") {
		t.Errorf("the message is wide: %s", narrow)
	}
}

// A deleted model that has pods stays until it is released. Finalizers of others stay.
func TestFinalizer(t *testing.T) {
	t.Parallel()
	c := installed(t)
	ns := c.Namespace(t)
	c.Apply(t, ns, strings.Replace(model("a", "{engine: sim}"), "{name: a}", "{name: a, finalizers: [example.com/other]}", 1)+
		model("u", "{launcher: upstream, upstreams: ['http://h:1']}"))
	g := run(t, c.Kubeconfig, ns, false)
	until(t, "told", g.knows("a", "u"))
	g.lead(true)
	until(t, "held", func() bool { return strings.Contains(field(t, c, ns, "a", ".metadata.finalizers"), custom.Finalizer) })
	g.ReleaseFinalizers([]string{"a"})
	c.Kubectl(t, "delete", "im", "-n", ns, "--wait=false", "a", "u")
	until(t, "told that it is to go, and that the other is gone", func() bool { return g.one("a").Deleting && g.knows("a")() })
	// A release before the deletion has no effect. The status is written after the release would
	// have been applied.
	g.Report([]custom.Status{{Kind: custom.Model, Name: "a", Generation: 2, Phase: "Draining", Accepted: true}})
	until(t, "said to drain", func() bool { return field(t, c, ns, "a", ".status.phase") == "Draining" })
	if got := field(t, c, ns, "a", ".metadata.finalizers"); !strings.Contains(got, custom.Finalizer) {
		t.Errorf("not held any more: %s", got)
	}
	g.ReleaseFinalizers([]string{"a"})
	until(t, "released", func() bool { return field(t, c, ns, "a", ".metadata.finalizers") == `["example.com/other"]` })
	c.Kubectl(t, "patch", "im", "-n", ns, "a", "--type=merge", "-p", `{"metadata": {"finalizers": null}}`)
	until(t, "gone", g.knows())
}

// The resources may be installed after the gateway has started, and the API may be unreachable for
// a while.
func TestAPIComesAndGoes(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t)
	g := run(t, c.Kubeconfig, "default", true)
	until(t, "the resources are missed", func() bool { return strings.Contains(g.Errors(), "CustomResourceDefinition is not installed") })
	if n, _ := g.told(); n != 0 {
		t.Error("told something while nothing could be read")
	}
	install(t, c)
	until(t, "told of nothing", g.knows())
	until(t, "all is well", func() bool { return g.Errors() == "" })
	c.Apply(t, "default", model("a", "{engine: sim}")+model("b", "{engine: sim}"))
	until(t, "told", g.knows("a", "b"))
	until(t, "held", func() bool {
		return strings.Contains(field(t, c, "default", "b", ".metadata.finalizers"), custom.Finalizer)
	})
	c.StopAPI(t)
	until(t, "the API is missed", func() bool { return strings.Contains(g.Errors(), "the cluster's API cannot be read") })
	before, _ := g.told()
	g.Report([]custom.Status{{Kind: custom.Model, Name: "b", Generation: 1, Phase: "Ready", Replicas: 1, Ready: 1, Desired: 1, Accepted: true}})
	until(t, "the write has failed", func() bool { return strings.Contains(g.Errors(), "cannot be written") })
	if after, _ := g.told(); after != before || !g.knows("a", "b")() {
		t.Error("the outage was told as a change")
	}
	c.StartAPI(t)
	until(t, "written after the outage", func() bool { return field(t, c, "default", "b", ".status.phase") == "Ready" })
	c.Apply(t, "default", model("c", "{launcher: none}"))
	until(t, "told after the outage", g.knows("a", "b", "c"))
	until(t, "all is well again", func() bool { return g.Errors() == "" })

	serve := func(patch string) {
		t.Helper()
		c.Kubectl(t, "patch", "crd", "inferencemodels.sluice.dev", "--type=json", "-p", patch)
	}
	serve(`[{"op": "add", "path": "/spec/versions/1", "value": {"name": "v1", "served": true, "storage": true,
			"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		{"op": "replace", "path": "/spec/versions/0/storage", "value": false}, {"op": "replace", "path": "/spec/versions/0/served", "value": false}]`)
	until(t, "the version is missed", func() bool { return strings.Contains(g.Errors(), "or does not serve this version") })
	if !g.knows("a", "b", "c")() {
		t.Error("the objects of a version that is not served are gone")
	}
	serve(`[{"op": "replace", "path": "/spec/versions/0/served", "value": true}]`)
	until(t, "the version is served again", func() bool { return g.Errors() == "" })
}

// Five hundred objects, including invalid ones, are delivered and written.
func TestManyObjects(t *testing.T) {
	t.Parallel()
	const n = 500
	c := installed(t)
	ns := c.Namespace(t)
	var all strings.Builder
	var names []string
	var statuses []custom.Status
	for i := range n {
		name := fmt.Sprintf("m%03d", i)
		names = append(names, name)
		all.WriteString(model(name, fmt.Sprintf("{launcher: upstream, upstreams: ['http://10.0.0.%d:%d']}", i%250, 1000+i)))
		statuses = append(statuses, custom.Status{Kind: custom.Model, Name: name, Generation: 1, Phase: "Ready", Ready: 1, Replicas: 1, Desired: 1, Accepted: true})
	}
	g := run(t, c.Kubeconfig, ns, true)
	g.Report(statuses)
	c.Apply(t, ns, all.String())
	applied := time.Now()
	until(t, "told of all", g.knows(names...))
	t.Logf("%d objects told %v after they were there, in %d lists", n, time.Since(applied), func() int { n, _ := g.told(); return n }())
	until(t, "all are written", func() bool {
		out := c.Kubectl(t, "get", "im", "-n", ns, "--no-headers")
		return strings.Count(out, "1/1") == n
	})
	t.Logf("%d statuses written %v after the objects were there", n, time.Since(applied))
}
