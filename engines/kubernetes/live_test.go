package kubernetes

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

func get(t *testing.T, r engines.Replica, path string) {
	t.Helper()
	response, err := http.Get("http://" + r.Address.String() + path)
	if err == nil {
		response.Body.Close()
	} else if !strings.HasPrefix(path, "/exit") {
		t.Error(err)
	}
}

func TestFromZeroAndBack(t *testing.T) {
	s := newScene(t, nil)
	g := s.gateway("g", nil)
	const name = "Org/Chat: 1" // which no object of Kubernetes may be called
	g.Set([]Model{engine(name, 0)})
	until(t, "the API", func() bool { return g.Leads() })
	g.Set([]Model{engine(name, 2), engine("Org/Chat- 1", 1)})
	g.ready(name, 2)
	g.ready("Org/Chat- 1", 1)
	for _, r := range g.replicas(name) {
		get(t, r, "/health")
		if r.Slots != 4 || r.Node == "" || r.Launcher != engines.Kubernetes {
			t.Errorf("got %+v", r)
		}
	}
	if n := len(s.deployments()); n != 2 {
		t.Errorf("%d Deployments of two models", n)
	}
	g.Set([]Model{engine(name, 0), engine("Org/Chat- 1", 1)})
	g.wait(name, "none left", func(all []engines.Replica) bool { return len(all) == 0 })
	g.ready("Org/Chat- 1", 1)
	if g.Gone("Org/Chat- 1", "") {
		t.Error("a model that is there is said to be gone")
	}
	g.Set(nil)
	until(t, "gone", func() bool { return g.Gone(name, "") && g.Gone("Org/Chat- 1", "") })
	until(t, "nothing left", func() bool { return len(s.left()) == 0 })
}

func TestReadinessAndCrashes(t *testing.T) {
	s := newScene(t, nil)
	g := s.gateway("g", nil)
	g.Set([]Model{engine("m", 1)})
	g.ready("m", 1)
	r := g.replicas("m")[0]
	get(t, r, "/set/503")
	g.wait("m", "out of rotation", func(all []engines.Replica) bool { return len(in(all, engines.Starting)) == 1 })
	get(t, r, "/set/200")
	g.ready("m", 1)
	get(t, r, "/exit/3")
	g.wait("m", "a restart", func(all []engines.Replica) bool { return len(all) == 1 && all[0].Restarts > 0 })
	if ids := g.ready("m", 1); ids[0] != r.ID {
		t.Errorf("the pod was %s and is %s", r.ID, ids[0])
	}
}

func TestReasons(t *testing.T) {
	s := newScene(t, nil)
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
		g.wait(model, want.says, func(all []engines.Replica) bool {
			return len(all) == 1 && all[0].State == want.state && strings.Contains(all[0].Reason, want.says)
		})
	}
	g.wait("image", "ImagePullBackOff", func(all []engines.Replica) bool {
		return len(all) == 1 && strings.Contains(all[0].Reason, "ImagePullBackOff")
	})
	g.wait("secret", "no Secret", func(all []engines.Replica) bool {
		return len(all) == 1 && strings.Contains(all[0].Reason, `"none" not found`)
	})
	until(t, "what the cluster does not make is told", func() bool {
		blocked := g.Status().Blocked
		return len(blocked) == 2 && strings.Contains(blocked["refused"], "no such/name") && strings.Contains(blocked["blocked"], `"nobody" not found`)
	})
	if fault := g.Status().Faults["faulty"]; !strings.Contains(fault, "has no source") {
		t.Errorf("the fault of a model that cannot be rendered is %q", fault)
	}
}

// The pod that goes is one without requests; while it has some it stays, and can be taken back.
func TestDrainAndRecall(t *testing.T) {
	s := newScene(t, nil)
	g := s.gateway("g", nil)
	g.Set([]Model{engine("m", 2)})
	ids := g.ready("m", 2)
	g.request(ids[0], 2)
	g.request(ids[1], 1)
	g.Set([]Model{engine("m", 1)})
	g.wait("m", "the one with fewer requests drains", func(all []engines.Replica) bool {
		return slices.Equal(in(all, engines.Draining), ids[1:]) && slices.Equal(in(all, engines.Ready), ids[:1])
	})
	g.Set([]Model{engine("m", 2)})
	if again := g.ready("m", 2); !slices.Equal(again, ids) {
		t.Errorf("pods were %v and are %v", ids, again)
	}
	g.Set([]Model{engine("m", 1)})
	g.wait("m", "drains again", func(all []engines.Replica) bool { return slices.Equal(in(all, engines.Draining), ids[1:]) })
	time.Sleep(2 * time.Second) // more than it takes when nothing is in the way
	g.wait("m", "stays", func(all []engines.Replica) bool { return len(all) == 2 })
	if n := s.Kubectl(t, "get", "deployments", "-n", s.namespace, "-o", "jsonpath={.items[*].spec.replicas}"); n != "2" {
		t.Errorf("the Deployment was lowered to %s with a request on the pod", n)
	}
	g.request(ids[1], 0)
	if again := g.ready("m", 1); again[0] != ids[0] {
		t.Errorf("%s is left, and %s had the requests", again[0], ids[0])
	}
}

func TestDrainTimeout(t *testing.T) {
	s := newScene(t, nil)
	g := s.gateway("g", nil)
	short := func(m *Model) { m.DrainTimeout = time.Second }
	g.Set([]Model{engine("m", 1, short)})
	ids := g.ready("m", 1)
	g.request(ids[0], 1)
	g.Set(nil) // it must be known from the Deployment alone
	until(t, "gone with a request that never ends", func() bool { return g.Gone("m", "") })
}

// While a template changes, as many serve as are wanted, one more at most is there, and what is left is new.
func TestTemplateChange(t *testing.T) {
	s := newScene(t, nil)
	g := s.gateway("g", nil)
	g.Set([]Model{engine("m", 2)})
	old := g.ready("m", 2)
	g.Set([]Model{engine("m", 2, env("A", "b"))})
	for done := false; !done; {
		snapshot, changed := g.fleet.Watch()
		all := snapshot.Models["m"].Replicas
		serving, draining := in(all, engines.Ready), in(all, engines.Draining)
		if len(serving) < 2 {
			t.Errorf("only %v serve", serving)
		}
		if len(all)-len(draining) > 3 {
			t.Errorf("%d pods for two", len(all)-len(draining))
		}
		done = len(all) == 2 && !slices.ContainsFunc(serving, func(id string) bool { return slices.Contains(old, id) })
		if !done {
			select {
			case <-changed:
			case <-time.After(patience):
				t.Fatalf("it stays at %+v", all)
			}
		}
	}
	until(t, "one Deployment left", func() bool { return len(s.deployments()) == 1 })
}

func TestTemplateChangeWithoutRoom(t *testing.T) {
	s := newScene(t, map[string]string{"nvidia.com/gpu": "2"})
	g := s.gateway("g", nil)
	gpu := func(m *Model) { m.Resources = &engines.Resources{GPU: 1} }
	g.Set([]Model{engine("m", 2, gpu)})
	old := g.ready("m", 2)
	g.request(old[0], 1)
	g.Set([]Model{engine("m", 2, gpu, env("A", "b"))})
	g.wait("m", "the one without requests makes room", func(all []engines.Replica) bool {
		serving := in(all, engines.Ready)
		return len(serving) == 2 && slices.Contains(serving, old[0]) && !slices.Contains(serving, old[1])
	})
	g.request(old[0], 0)
	g.wait("m", "both are new", func(all []engines.Replica) bool {
		return len(all) == 2 && len(in(all, engines.Ready)) == 2 && !slices.Contains(in(all, engines.Ready), old[0])
	})
}

// What is not of this installation is not touched, whatever it looks like.
func TestOthersAreLeftAlone(t *testing.T) {
	s := newScene(t, nil)
	const foreign = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %s, labels: {app.kubernetes.io/managed-by: sluice%s}}
spec:
  replicas: 0
  selector: {matchLabels: {app: %[1]s}}
  template: {metadata: {labels: {app: %[1]s}}, spec: {containers: [{name: engine, image: x}]}}
`
	s.Apply(t, s.namespace, fmt.Sprintf(foreign, "labelled", ""))
	s.Apply(t, s.namespace, fmt.Sprintf(foreign, "theirs", ", sluice.dev/install: other"))
	s.Apply(t, s.namespace, fmt.Sprintf(foreign, "stray", ", sluice.dev/install: sluice"))
	a, b := s.gateway("a", nil), s.gateway("b", func(c *Config) { c.Name = "second" })
	a.Set([]Model{engine("m", 1)})
	b.Set([]Model{engine("m", 2)})
	a.ready("m", 1)
	b.ready("m", 2)
	a.Set(nil)
	until(t, "gone at the first", func() bool { return a.Gone("m", "") })
	b.ready("m", 2)
	until(t, "ours without a model is cleared away", func() bool { return !slices.Contains(s.deployments(), "deployment.apps/stray") })
	if names := s.deployments(); len(names) != 3 {
		t.Errorf("left are %v", names)
	}
}

func TestLostNode(t *testing.T) {
	s := newScene(t, map[string]string{"pods": "1"})
	n := s.node(map[string]string{"pods": "1"})
	g := s.gateway("g", nil)
	g.Set([]Model{engine("m", 2)})
	old := g.ready("m", 2)
	n.Lose(t)
	s.node(nil)
	g.wait("m", "another instead", func(all []engines.Replica) bool {
		serving := in(all, engines.Ready)
		return len(serving) == 2 && !slices.Equal(serving, old)
	})
}
