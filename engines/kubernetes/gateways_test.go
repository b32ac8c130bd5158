package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/kubetest"
)

// waitLeader waits until a gateway is the leader. It returns the leader and the others.
func waitLeader(t *testing.T, all ...*gateway) (*gateway, []*gateway) {
	t.Helper()
	var first *gateway
	waitUntil(t, "a leader", func() bool {
		i := slices.IndexFunc(all, func(g *gateway) bool { return g.IsLeader() })
		if i >= 0 {
			first = all[i]
		}
		return i >= 0
	})
	rest := slices.DeleteFunc(slices.Clone(all), func(g *gateway) bool { return g == first })
	if slices.ContainsFunc(rest, func(g *gateway) bool { return g.IsLeader() }) {
		t.Error("two gateways are leaders")
	}
	return first, rest
}

func TestTwoGateways(t *testing.T) {
	s := newTestNamespace(t, nil)
	a, b := s.gateway("a", nil), s.gateway("b", nil)
	both := func(desired int) {
		a.Set([]Model{engine("m", desired)})
		b.Set([]Model{engine("m", desired)})
	}
	both(2)
	ids := a.waitReady("m", 2)
	if other := b.waitReady("m", 2); !slices.Equal(ids, other) {
		t.Errorf("the gateways show different pods: %v and %v", ids, other)
	}
	first, rest := waitLeader(t, a, b)
	second := rest[0]
	waitUntil(t, "the other gateway knows who scales", func() bool { return second.ScaledBy("m") == first.config.Identity })
	if by := first.ScaledBy("m"); by != "" {
		t.Errorf("the leader is scaled by %s", by)
	}

	// The leader learns at once that requests wait at the other gateway.
	second.mu.Lock()
	second.loads["m"] = engines.Load{Running: 3, Queued: 2, Admitted: 7}
	second.mu.Unlock()
	second.PublishLoad()
	waitUntil(t, "the other's load", func() bool { return first.OthersLoad("m") == engines.Load{Running: 3, Queued: 2, Admitted: 7} })
	waitUntil(t, "demand", func() bool {
		first.mu.Lock()
		defer first.mu.Unlock()
		return slices.Contains(first.demand, "m")
	})
	if second.OthersLoad("m") != (engines.Load{}) {
		t.Errorf("the other gateway shows load %+v for the idle leader", second.OthersLoad("m"))
	}

	// A pod is deleted only when both gateways are done with it.
	second.setRequests(ids[0], 1)
	first.setRequests(ids[1], 1)
	both(1)
	second.waitReplicas("m", "drains", func(all []engines.Replica) bool { return len(idsIn(all, engines.Draining)) == 1 })
	given := idsIn(second.replicas("m"), engines.Draining)[0]
	time.Sleep(2 * time.Second) // Without the requests the pod would be deleted by then.
	if len(first.replicas("m")) != 2 {
		t.Fatalf("a pod with a request was deleted: %+v", first.replicas("m"))
	}
	first.setRequests(given, 0)
	second.setRequests(given, 0)
	kept := first.waitReady("m", 1)
	if kept[0] == given {
		t.Error("the pod that was drained is still there, the other was deleted")
	}

	// The other gateway takes over the existing pods.
	first.stop()
	waitUntil(t, "the other leads", second.IsLeader)
	if got := second.waitReady("m", 1); got[0] != kept[0] {
		t.Errorf("%s instead of %s after the leader has changed", got[0], kept[0])
	}
	second.Set(nil)
	waitUntil(t, "gone", func() bool { return second.IsGone("m", "") })
}

// A gateway that died delays nothing after its lease has expired.
func TestDeadGatewayDelaysNothing(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	s.Apply(t, s.namespace, fmt.Sprintf(`
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: sluice-sluice-gw-dead
  labels: {app.kubernetes.io/managed-by: sluice, sluice.dev/install: sluice, sluice.dev/role: gateway}
  annotations: {sluice.dev/load: '{"models":{"m":{"queued":4}}}'}
spec: {holderIdentity: dead, leaseDurationSeconds: 12, renewTime: "%s"}
`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")))
	g.Set([]Model{engine("m", 1)})
	g.waitReady("m", 1)
	g.Set(nil)
	waitUntil(t, "gone", func() bool { return g.IsGone("m", "") })
	if g.OthersLoad("m") != (engines.Load{}) {
		t.Errorf("the dead gateway counts with load %+v", g.OthersLoad("m"))
	}
}

// A gateway that starts writes nothing until Set is called after OnFound.
func TestFoundBeforeAnythingIsWritten(t *testing.T) {
	s := newTestNamespace(t, nil)
	before := s.gateway("before", nil)
	before.Set([]Model{engine("m", 2), engine("n", 1)})
	ids := before.waitReady("m", 2)
	before.waitReady("n", 1)
	before.stop()

	told := make(chan map[string]int, 2)
	after := s.gateway("after", func(c *Config) { c.OnFound = func(replicas map[string]int) { told <- maps.Clone(replicas) } })
	after.Set([]Model{engine("m", 0), engine("n", 0)}) // This call comes before OnFound.
	select {
	case found := <-told:
		if found["m"] != 2 || found["n"] != 1 {
			t.Errorf("OnFound got %v", found)
		}
	case <-time.After(waitLimit):
		t.Fatal("OnFound was not called")
	}
	waitUntil(t, "leads", after.IsLeader)
	after.SetPartial([]Model{engine("other", 1)}) // There may be other models.
	after.waitReady("other", 1)
	time.Sleep(2 * time.Second) // Without the protection the pods would be drained by then.
	after.Set([]Model{engine("m", 2), engine("n", 1)})
	if again := after.waitReady("m", 2); !slices.Equal(again, ids) {
		t.Errorf("pods were %v and are %v", ids, again)
	}
	after.Set([]Model{engine("m", 2)})
	waitUntil(t, "the other model is gone", func() bool { return after.IsGone("n", "") })
	if again := after.waitReady("m", 2); !slices.Equal(again, ids) {
		t.Errorf("pods were %v and are %v", ids, again)
	}
	select {
	case <-told:
		t.Error("OnFound was called twice")
	default:
	}
}

func TestAPIAway(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	c := kubetest.Start(t)
	s := namespaceOn(t, c, nil)
	g := s.gateway("g", nil)
	g.Set([]Model{engine("m", 1)})
	ids := g.waitReady("m", 1)
	c.StopAPI(t)
	waitUntil(t, "it is noticed", func() bool { return strings.Contains(g.Status().Clusters[0].Errors, renewLease) && !g.IsLeader() })
	if got := g.waitReady("m", 1); !slices.Equal(got, ids) {
		t.Errorf("%v of %v are left while the API is stopped", got, ids)
	}
	late := s.gateway("late", nil) // It starts while the API is stopped.
	late.Set([]Model{engine("m", 2)})
	waitUntil(t, "the model is known", func() bool { return late.fleet.Snapshot().Models["m"] != nil })
	g.Set([]Model{engine("m", 2)})
	c.StartAPI(t)
	more := g.waitReady("m", 2)
	if !slices.Contains(more, ids[0]) {
		t.Errorf("%s existed before the API was stopped, then there are %v", ids[0], more)
	}
	late.waitReady("m", 2)
	waitUntil(t, "all is well", func() bool { return g.Status().Clusters[0].Errors == "" })
}

// An unreachable cluster must not affect other clusters.
func TestClustersFailSeparately(t *testing.T) {
	s := newTestNamespace(t, nil)
	s.Kubectl(t, "config", "set-cluster", "nowhere", "--server=http://127.0.0.1:1", "--kubeconfig", s.Kubeconfig)
	s.Kubectl(t, "config", "set-context", "far", "--cluster=nowhere", "--kubeconfig", s.Kubeconfig)
	other := s.Cluster.Namespace(t)
	g := s.gateway("g", nil)
	in := func(cluster string) func(*Model) { return func(m *Model) { m.Cluster = cluster } }
	g.Set([]Model{engine("far", 1, in("far")), engine("unknown", 1, in("unknown/x")), engine("here", 1), engine("beside", 1, in("/"+other))})
	g.waitReady("here", 1)
	g.waitReady("beside", 1)
	status := g.Status()
	if !strings.Contains(status.Faults["unknown"], "unknown") || len(g.replicas("far")) != 0 {
		t.Errorf("status is %+v", status)
	}
	if len(status.Clusters) != 3 {
		t.Errorf("clusters are %+v", status.Clusters)
	}
	if out := s.Kubectl(t, "get", "deployments", "-n", other, "-o", "name"); strings.Count(out, "\n") != 1 {
		t.Errorf("the other namespace has %q", out)
	}
	if g.IsGone("far", "") {
		t.Error("a model in an unreachable cluster is reported as gone")
	}
	g.Set([]Model{engine("here", 1)})
	waitUntil(t, "gone beside", func() bool { return g.IsGone("beside", "") })
}

// These rights suffice for everything: scaling up and down, another pod template, an owner,
// deletion.
func TestRights(t *testing.T) {
	s := newTestNamespace(t, nil)
	s.Apply(t, s.namespace, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: gateway}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: gateway}
rules:
  - {apiGroups: [apps], resources: [deployments], verbs: [list, watch, create, patch, delete]}
  - {apiGroups: [""], resources: [pods], verbs: [list, watch, patch, delete]}
  - {apiGroups: [batch], resources: [jobs], verbs: [list, watch]}
  - {apiGroups: [policy], resources: [poddisruptionbudgets], verbs: [list, watch, create, patch, delete]}
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch, create, update, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: gateway}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: gateway}
subjects: [{kind: ServiceAccount, name: gateway}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: owner}
`)
	path := s.User(t, s.namespace, "gateway")
	g := s.gateway("g", func(c *Config) { c.Kubeconfig, c.Namespace = path, "" })
	g.Set([]Model{engine("m", 2)})
	g.waitReady("m", 2)
	g.Set([]Model{engine("m", 1)})
	g.waitReady("m", 1)
	uid := s.Kubectl(t, "get", "configmap", "owner", "-n", s.namespace, "-o", "jsonpath={.metadata.uid}")
	owned := func(m *Model) { m.Owner = &Owner{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: uid} }
	g.Set([]Model{engine("m", 1, owned)})
	waitUntil(t, "an owner", func() bool {
		return s.Kubectl(t, "get", "deployments", "-n", s.namespace, "-o", "jsonpath={.items[*].metadata.ownerReferences[0].uid}") == uid
	})
	old := g.waitReady("m", 1)
	g.Set([]Model{engine("m", 1, env("A", "b"))})
	g.waitReplicas("m", "new", func(all []engines.Replica) bool {
		return len(all) == 1 && len(idsIn(all, engines.Ready)) == 1 && all[0].ID != old[0]
	})
	g.Set(nil)
	waitUntil(t, "gone", func() bool { return g.IsGone("m", "") })
	if status := g.Status(); status.Clusters[0].Errors != "" {
		t.Errorf("the cluster reports errors: %s", status.Clusters[0].Errors)
	}
	g.stop()
	if out := s.Kubectl(t, "get", "leases", "-n", s.namespace, "-o", "jsonpath={.items[*].spec.holderIdentity}"); strings.TrimSpace(out) != "" {
		t.Errorf("leases are held by %q after the gateway has stopped", out)
	}
}
