package kubernetes

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// TestU16_AnEvictedPodServesUntilItsRequestsHaveEnded: an eviction takes the pod out of rotation,
// and the pod ends when no gateway has a request there any more, not before and not much later.
func TestU16_AnEvictedPodServesUntilItsRequestsHaveEnded(t *testing.T) {
	s := newTestNamespace(t, nil)
	a, b := s.gateway("a", nil), s.gateway("b", nil)
	for _, g := range []*gateway{a, b} {
		g.Set([]Model{engine("m", 2)})
	}
	ids := a.waitReady("m", 2)
	waitUntil(t, "a budget", func() bool {
		return s.Kubectl(t, "get", "pdb", "-n", s.namespace, "-o", "jsonpath={.items[*].status.disruptionsAllowed}") == "1"
	})
	a.setRequests(ids[0], 1)
	b.setRequests(ids[0], 1)
	s.evict(ids[0])
	for _, g := range []*gateway{a, b} {
		g.waitReplicas("m", "another instead", func(all []engines.Replica) bool {
			return len(idsIn(all, engines.Ready)) == 2 && slices.Equal(idsIn(all, engines.Draining), ids[:1])
		})
	}
	a.setRequests(ids[0], 0)
	time.Sleep(2 * time.Second) // Without the request of b the pod would end by then.
	address := a.replicas("m")[slices.IndexFunc(a.replicas("m"), func(r engines.Replica) bool { return r.ID == ids[0] })]
	httpGet(t, address, "/health")
	b.setRequests(ids[0], 0)
	a.waitReady("m", 2)
	a.Set(nil)
	b.Set(nil)
	waitUntil(t, "nothing left", func() bool {
		return s.Kubectl(t, "get", "pods,deployments,pdb", "-n", s.namespace, "-o", "name") == ""
	})
}

// evict evicts a pod as kubectl drain does, which tries again while the budget is exhausted.
func (s *testNamespace) evict(pod string) {
	s.t.Helper()
	file := s.t.TempDir() + "/eviction.json"
	writeFile(s.t, file, `{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "`+pod+`", "namespace": "`+s.namespace+`"}}`)
	waitUntil(s.t, "the eviction of "+pod, func() bool {
		_, err := s.TryKubectl(s.t, "create", "--raw", "/api/v1/namespaces/"+s.namespace+"/pods/"+pod+"/eviction", "-f", file)
		return err == nil
	})
}

// TestU16_DriftIsRepaired: what Sluice has made is made again when somebody changes or deletes it,
// and what somebody adds stays.
func TestU16_DriftIsRepaired(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	g.Set([]Model{engine("m", 1)})
	g.waitReady("m", 1)
	name := strings.TrimPrefix(s.deployments()[0], "deployment.apps/")
	get := func(path string) string {
		return s.Kubectl(t, "get", "deployment", name, "-n", s.namespace, "-o", "jsonpath={"+path+"}")
	}
	s.Kubectl(t, "annotate", "deployment", name, "-n", s.namespace, "theirs=yes")
	s.Kubectl(t, "set", "image", "deployment/"+name, "-n", s.namespace, "engine=other:1")
	waitUntil(t, "the image is put back", func() bool { return get(".spec.template.spec.containers[0].image") == "engine:1" })
	if got := get(".metadata.annotations.theirs"); got != "yes" {
		t.Errorf("the annotation of somebody else is %q", got)
	}
	if got := get(`.metadata.managedFields[?(@.operation=="Apply")].manager`); got != "sluice" {
		t.Errorf("applied by %q", got)
	}
	s.Kubectl(t, "scale", "deployment", name, "-n", s.namespace, "--replicas=3")
	g.waitReady("m", 1)
	waitUntil(t, "the replicas are put back", func() bool { return get(".spec.replicas") == "1" })
	s.Kubectl(t, "delete", "pdb", "--all", "-n", s.namespace)
	waitUntil(t, "the budget is put back", func() bool { return s.Kubectl(t, "get", "pdb", "-n", s.namespace, "-o", "name") != "" })
	s.Kubectl(t, "delete", "deployment", name, "-n", s.namespace)
	waitUntil(t, "the Deployment is put back", func() bool { return len(s.deployments()) == 1 })
	g.waitReady("m", 1)
}
