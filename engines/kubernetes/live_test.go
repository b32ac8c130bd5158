package kubernetes

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

func httpGet(t *testing.T, r engines.Replica, path string) {
	t.Helper()
	response, err := http.Get("http://" + r.Address.String() + path)
	if err == nil {
		response.Body.Close()
	} else if !strings.HasPrefix(path, "/exit") {
		t.Error(err)
	}
}

func TestFromZeroAndBack(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	const name = "Org/Chat: 1" // No Kubernetes object may have this name.
	g.Set([]Model{engine(name, 0)})
	waitUntil(t, "the API", func() bool { return g.IsLeader() })
	g.Set([]Model{engine(name, 2), engine("Org/Chat- 1", 1)})
	g.waitReady(name, 2)
	g.waitReady("Org/Chat- 1", 1)
	for _, r := range g.replicas(name) {
		httpGet(t, r, "/health")
		if r.Slots != 4 || r.Node == "" || r.Launcher != engines.Kubernetes {
			t.Errorf("got %+v", r)
		}
	}
	if n := len(s.deployments()); n != 2 {
		t.Errorf("two models have %d Deployments", n)
	}
	g.Set([]Model{engine(name, 0), engine("Org/Chat- 1", 1)})
	g.waitReplicas(name, "none left", func(all []engines.Replica) bool { return len(all) == 0 })
	g.waitReady("Org/Chat- 1", 1)
	if g.IsGone("Org/Chat- 1", "") {
		t.Error("a model with pods is reported as gone")
	}
	g.Set(nil)
	waitUntil(t, "gone", func() bool { return g.IsGone(name, "") && g.IsGone("Org/Chat- 1", "") })
	waitUntil(t, "nothing left", func() bool { return len(s.objects()) == 0 })
}

func TestReadinessAndCrashes(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	g.Set([]Model{engine("m", 1)})
	g.waitReady("m", 1)
	r := g.replicas("m")[0]
	httpGet(t, r, "/set/503")
	g.waitReplicas("m", "out of rotation", func(all []engines.Replica) bool { return len(idsIn(all, engines.Starting)) == 1 })
	httpGet(t, r, "/set/200")
	g.waitReady("m", 1)
	httpGet(t, r, "/exit/3")
	g.waitReplicas("m", "a restart", func(all []engines.Replica) bool { return len(all) == 1 && all[0].Restarts > 0 })
	if ids := g.waitReady("m", 1); ids[0] != r.ID {
		t.Errorf("the pod was %s and is %s", r.ID, ids[0])
	}
}

func TestReasons(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	g.Set([]Model{
		engine("crash", 1, env("CODE", "exit")),
		engine("image", 1, func(m *Model) { m.Version.Image = "missing/it:1" }),
		engine("large", 1, func(m *Model) { m.Resources = &engines.Resources{GPU: 8} }),
		engine("secret", 1, func(m *Model) { m.Secrets = map[string]SecretKey{"TOKEN": {Name: "none", Key: "k"}} }),
		engine("refused", 1, func(m *Model) { m.Resources, m.GPUResource = &engines.Resources{GPU: 1}, "no such/name" }),
		engine("blocked", 1, func(m *Model) { m.Version.Kubernetes = "spec: {template: {spec: {serviceAccountName: nobody}}}" }),
		engine("faulty", 1, func(m *Model) { m.Version.Command = []string{"{{.Model}}"} }),
	})
	for model, want := range map[string]struct {
		state engines.State
		says  string
	}{
		"crash": {engines.Failed, "exit code 7"}, "large": {engines.Pending, "Insufficient nvidia.com/gpu"},
	} {
		g.waitReplicas(model, want.says, func(all []engines.Replica) bool {
			return len(all) == 1 && all[0].State == want.state && strings.Contains(all[0].Reason, want.says)
		})
	}
	g.waitReplicas("image", "ImagePullBackOff", func(all []engines.Replica) bool {
		return len(all) == 1 && strings.Contains(all[0].Reason, "ImagePullBackOff")
	})
	g.waitReplicas("secret", "no Secret", func(all []engines.Replica) bool {
		return len(all) == 1 && strings.Contains(all[0].Reason, `"none" not found`)
	})
	waitUntil(t, "the rejected objects are reported", func() bool {
		blocked := g.Status().Blocked
		return len(blocked) == 2 && strings.Contains(blocked["refused"], "no such/name") && strings.Contains(blocked["blocked"], `"nobody" not found`)
	})
	if fault := g.Status().Faults["faulty"]; !strings.Contains(fault, "has no source") {
		t.Errorf("the fault of a model that cannot be rendered is %q", fault)
	}
}

// A pod with requests is drained but not deleted, and can be undrained. The pod with fewer requests
// is drained first.
func TestDrainAndUndrain(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	g.Set([]Model{engine("m", 2)})
	ids := g.waitReady("m", 2)
	g.setRequests(ids[0], 2)
	g.setRequests(ids[1], 1)
	g.Set([]Model{engine("m", 1)})
	g.waitReplicas("m", "the one with fewer requests drains", func(all []engines.Replica) bool {
		return slices.Equal(idsIn(all, engines.Draining), ids[1:]) && slices.Equal(idsIn(all, engines.Ready), ids[:1])
	})
	g.Set([]Model{engine("m", 2)})
	if again := g.waitReady("m", 2); !slices.Equal(again, ids) {
		t.Errorf("pods were %v and are %v", ids, again)
	}
	g.Set([]Model{engine("m", 1)})
	g.waitReplicas("m", "drains again", func(all []engines.Replica) bool { return slices.Equal(idsIn(all, engines.Draining), ids[1:]) })
	time.Sleep(2 * time.Second) // Without the request the pod would be deleted by then.
	g.waitReplicas("m", "stays", func(all []engines.Replica) bool { return len(all) == 2 })
	if n := s.Kubectl(t, "get", "deployments", "-n", s.namespace, "-o", "jsonpath={.items[*].spec.replicas}"); n != "2" {
		t.Errorf("the Deployment was scaled to %s while the pod had a request", n)
	}
	g.setRequests(ids[1], 0)
	if again := g.waitReady("m", 1); again[0] != ids[0] {
		t.Errorf("%s is left, but %s had the requests", again[0], ids[0])
	}
}

func TestDrainTimeout(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	short := func(m *Model) { m.DrainTimeout = time.Second }
	g.Set([]Model{engine("m", 1, short)})
	ids := g.waitReady("m", 1)
	g.setRequests(ids[0], 1)
	g.Set(nil) // The drain timeout must come from the Deployment.
	waitUntil(t, "gone with a request that never ends", func() bool { return g.IsGone("m", "") })
}

// A model that is gone from the file has no condition of its own. That its Deployment cannot be
// removed is a fault of the cluster.
func TestARemovalThatIsRefusedIsToldOfTheCluster(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	g.Set([]Model{engine("m", 1)})
	g.waitReady("m", 1)
	s.Apply(t, s.namespace, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [DELETE], resources: [deployments]}]}
  validations: [{expression: "false", message: "nothing is removed today"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s, validationActions: [Deny], matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}}}
`, s.namespace))
	defer s.Kubectl(t, "delete", "validatingadmissionpolicybinding", s.namespace)
	g.Set(nil)
	waitUntil(t, "the refusal is told", func() bool { return strings.Contains(g.Status().Clusters[0].Errors, "nothing is removed today") })
	if blocked := g.Status().Blocked; len(blocked) > 0 {
		t.Errorf("blocked are %v", blocked)
	}
}

// weightsJobs returns the names and images of the Jobs that fetch weights.
func (s *testNamespace) weightsJobs(t *testing.T) []string {
	return strings.Fields(s.Kubectl(t, "get", "jobs", "-n", s.namespace, "-o", `jsonpath={range .items[*]}{.metadata.name}={..image} {end}`))
}

// completeJob has the Job of the weights end well.
func (s *testNamespace) completeJob(t *testing.T, name string) {
	condition := func(kind string) map[string]any {
		return map[string]any{"type": kind, "status": "True", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}
	}
	waitUntil(t, "the controller has seen the Job", func() bool {
		return s.Kubectl(t, "get", "job", name, "-n", s.namespace, "-o", "jsonpath={.status.startTime}") != ""
	})
	now := time.Now().UTC().Format(time.RFC3339)
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"active": 0, "ready": 0, "succeeded": 1, "completionTime": now,
		"conditions": []any{condition("SuccessCriteriaMet"), condition("Complete")}}})
	if err != nil {
		t.Fatal(err)
	}
	s.Kubectl(t, "patch", "job", name, "-n", s.namespace, "--subresource=status", "--type=merge", "-p", string(patch))
}

// waitServing waits until n replicas of the model are ready, whatever the others do.
func (g *gateway) waitServing(model string, n int) {
	g.waitReplicas(model, fmt.Sprint(n, " serve"), func(all []engines.Replica) bool { return len(idsIn(all, engines.Ready)) == n })
}

// TestU14_WeightsThatAreThereAreNotFetchedAgain: another image of the loader replaces a Job that
// has not ended well. It keeps no model whose weights are there from growing.
func TestU14_WeightsThatAreThereAreNotFetchedAgain(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	set := func(desired int, image string) string {
		w := Weights{Claim: "c", Path: "/w", Link: "sluice/k", Image: image, Repository: "org/model"}
		g.Set([]Model{engine("m", desired, func(m *Model) { m.Weights = &w })})
		return g.install.jobName(w)
	}
	for _, image := range []string{"nothing:1", "nothing:2"} {
		name := set(1, image)
		waitUntil(t, "a Job with the image "+image, func() bool { return slices.Equal(s.weightsJobs(t), []string{name + "=" + image}) })
	}
	s.completeJob(t, set(1, "nothing:2"))
	g.waitServing("m", 1)
	name := set(2, "nothing:3")
	g.waitServing("m", 2)
	if got := s.weightsJobs(t); !slices.Equal(got, []string{name + "=nothing:2"}) {
		t.Errorf("the Jobs are %v", got)
	}
}

// TestU15_TheWeightsOfAFrozenModelStay: the Job that has fetched them stays, so the model can grow
// at once when it is no longer frozen.
func TestU15_TheWeightsOfAFrozenModelStay(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	w := Weights{Claim: "c", Path: "/w", Link: "sluice/k", Image: "nothing:1", Repository: "org/model"}
	name := g.install.jobName(w)
	fetched := func(desired int) Model { return engine("m", desired, func(m *Model) { m.Weights = &w }) }
	g.Set([]Model{fetched(1)})
	waitUntil(t, "a Job", func() bool { return len(s.weightsJobs(t)) == 1 })
	s.completeJob(t, name)
	g.waitServing("m", 1)
	g.Set([]Model{{Model: engines.Model{Name: "m"}, Frozen: true}, engine("other", 1)})
	g.waitReady("other", 1)
	if jobs := s.weightsJobs(t); !slices.Equal(jobs, []string{name + "=nothing:1"}) {
		t.Errorf("the Jobs are %v", jobs)
	}
	g.Set([]Model{fetched(2)})
	g.waitServing("m", 2)
}

// TestU15_AFrozenModelStaysAsItIs: nothing says how the model should be, so its pods stay and are
// neither scaled nor replaced.
func TestU15_AFrozenModelStaysAsItIs(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	g.Set([]Model{engine("m", 1), engine("other", 1)})
	ids := g.waitReady("m", 1)
	g.waitReady("other", 1)
	g.Set([]Model{{Model: engines.Model{Name: "m"}, Frozen: true}})
	g.waitReplicas("other", "the other model ends", func(all []engines.Replica) bool { return len(all) == 0 })
	if out := s.Kubectl(t, "get", "pod", ids[0], "-n", s.namespace, "-o", "jsonpath={.metadata.annotations}"); strings.Contains(out, annotationDraining) {
		t.Errorf("the pod drains: %s", out)
	}
	if faults := g.Status().Faults; len(faults) > 0 {
		t.Errorf("faults: %v", faults)
	}
	g.Set([]Model{engine("m", 1)})
	if again := g.waitReady("m", 1); !slices.Equal(again, ids) {
		t.Errorf("the pod was %v and is %v", ids, again)
	}
}

// While the pod template changes, the desired number of pods serves, there is at most one pod more,
// and only new pods are left.
func TestTemplateChange(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	g.Set([]Model{engine("m", 2)})
	old := g.waitReady("m", 2)
	g.Set([]Model{engine("m", 2, env("A", "b"))})
	for done := false; !done; {
		snapshot, changed := g.fleet.Watch()
		all := snapshot.Models["m"].Replicas
		serving, draining := idsIn(all, engines.Ready), idsIn(all, engines.Draining)
		if len(serving) < 2 {
			t.Errorf("only %v serve, want 2", serving)
		}
		if len(all)-len(draining) > 3 {
			t.Errorf("there are %d pods, want at most 3", len(all)-len(draining))
		}
		done = len(all) == 2 && !slices.ContainsFunc(serving, func(id string) bool { return slices.Contains(old, id) })
		if !done {
			select {
			case <-changed:
			case <-time.After(waitLimit):
				t.Fatalf("the change is not completed: %+v", all)
			}
		}
	}
	waitUntil(t, "one Deployment left", func() bool { return len(s.deployments()) == 1 })
}

func TestTemplateChangeWithoutRoom(t *testing.T) {
	s := newTestNamespace(t, map[string]string{"nvidia.com/gpu": "2"})
	g := s.gateway("g", nil)
	gpu := func(m *Model) { m.Resources = &engines.Resources{GPU: 1} }
	g.Set([]Model{engine("m", 2, gpu)})
	old := g.waitReady("m", 2)
	g.setRequests(old[0], 1)
	g.Set([]Model{engine("m", 2, gpu, env("A", "b"))})
	g.waitReplicas("m", "the one without requests makes room", func(all []engines.Replica) bool {
		serving := idsIn(all, engines.Ready)
		return len(serving) == 2 && slices.Contains(serving, old[0]) && !slices.Contains(serving, old[1])
	})
	g.setRequests(old[0], 0)
	g.waitReplicas("m", "both are new", func(all []engines.Replica) bool {
		return len(all) == 2 && len(idsIn(all, engines.Ready)) == 2 && !slices.Contains(idsIn(all, engines.Ready), old[0])
	})
}

// foreign is a Deployment that Sluice has not made: its name and further labels are missing.
const foreign = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %s, labels: {app.kubernetes.io/managed-by: sluice%s}}
spec:
  replicas: 0
  selector: {matchLabels: {app: %[1]s}}
  template: {metadata: {labels: {app: %[1]s}}, spec: {containers: [{name: engine, image: x}]}}
`

// The launcher does not touch objects of other installations.
func TestOthersAreLeftAlone(t *testing.T) {
	s := newTestNamespace(t, nil)
	s.Apply(t, s.namespace, fmt.Sprintf(foreign, "labelled", ""))
	s.Apply(t, s.namespace, fmt.Sprintf(foreign, "theirs", ", sluice.dev/install: other"))
	s.Apply(t, s.namespace, fmt.Sprintf(foreign, "stray", ", sluice.dev/install: sluice"))
	a, b := s.gateway("a", nil), s.gateway("b", func(c *Config) { c.Name = "second" })
	a.Set([]Model{engine("m", 1)})
	b.Set([]Model{engine("m", 2)})
	a.waitReady("m", 1)
	b.waitReady("m", 2)
	a.Set(nil)
	waitUntil(t, "gone at the first", func() bool { return a.IsGone("m", "") })
	b.waitReady("m", 2)
	waitUntil(t, "a Deployment without a model is deleted", func() bool { return !slices.Contains(s.deployments(), "deployment.apps/stray") })
	if names := s.deployments(); len(names) != 3 {
		t.Errorf("Deployments left are %v, want 3", names)
	}
}

// A Deployment whose labels somebody changes is claimed again, so that its pods are counted and go
// with the model. A Deployment of the same name whose pods are others' is left alone.
func TestADeploymentWithOtherLabelsIsClaimedAgain(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	g.Set([]Model{engine("m", 1)})
	ids := g.waitReady("m", 1)
	d := s.deployments()[0]
	s.Kubectl(t, "label", "-n", s.namespace, d, labelManagedBy+"=Helm", "--overwrite")
	waitUntil(t, "the label is put back", func() bool {
		return s.Kubectl(t, "get", "-n", s.namespace, d, "-o", `jsonpath={.metadata.labels.app\.kubernetes\.io/managed-by}`) == managedBy
	})
	if again := g.waitReady("m", 1); !slices.Equal(again, ids) {
		t.Errorf("the replicas were %v and are %v", ids, again)
	}
	g.Set([]Model{engine("m", 2)})
	g.waitReady("m", 2)
	g.Set(nil)
	waitUntil(t, "nothing left", func() bool { return g.IsGone("m", "") && len(s.objects()) == 0 })
	s.Apply(t, s.namespace, fmt.Sprintf(foreign, strings.TrimPrefix(d, "deployment.apps/"), ""))
	g.Set([]Model{engine("m", 1)})
	waitUntil(t, "the name is taken", func() bool { return strings.Contains(g.Status().Blocked["m"], "already exists") })
}

func TestLostNode(t *testing.T) {
	s := newTestNamespace(t, map[string]string{"pods": "1"})
	n := s.node(map[string]string{"pods": "1"})
	g := s.gateway("g", nil)
	g.Set([]Model{engine("m", 2)})
	old := g.waitReady("m", 2)
	n.Lose(t)
	s.node(nil)
	g.waitReplicas("m", "another instead", func(all []engines.Replica) bool {
		serving := idsIn(all, engines.Ready)
		return len(serving) == 2 && !slices.Equal(serving, old)
	})
}
