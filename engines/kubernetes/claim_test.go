package kubernetes

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-gateway/sluice/engines"
)

// TestU14_ModelsShareAClaimUnderAQuota: the claim of a cache is there for a second model, although
// the quota of the namespace allows no further claim. A model whose claim is refused says why.
func TestU14_ModelsShareAClaimUnderAQuota(t *testing.T) {
	s := newTestNamespace(t, nil)
	s.Apply(t, s.namespace, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {persistentvolumeclaims: "1"}}}`)
	// The controller that does this is not part of the test's control plane.
	s.Kubectl(t, "patch", "resourcequota", "q", "-n", s.namespace, "--subresource=status", "--type=merge",
		"-p", `{"status": {"hard": {"persistentvolumeclaims": "1"}, "used": {"persistentvolumeclaims": "0"}}}`)
	g := s.gateway("g", nil)
	fetched := func(name, claim string) Model {
		w := Weights{Claim: claim, Size: 1 << 20, Path: "/w", Link: "sluice/k", Image: "nothing:1", Repository: "org/" + name}
		return engine(name, 1, func(m *Model) { m.Weights = &w })
	}
	g.Set([]Model{fetched("first", "shared")})
	waitUntil(t, "the first Job", func() bool { return len(s.weightsJobs(t)) == 1 })
	g.Set([]Model{fetched("first", "shared"), fetched("second", "shared"), fetched("third", "other")})
	waitUntil(t, "the second Job", func() bool { return len(s.weightsJobs(t)) == 2 })
	waitUntil(t, "the refused claim is told", func() bool {
		blocked := g.Status().Blocked
		return len(blocked) == 1 && strings.Contains(blocked["third"], "exceeded quota")
	})
}

// bind makes claims look bound to volumes of their size. The test's control plane makes no volumes.
func (s *testNamespace) bind(claims ...string) {
	s.t.Helper()
	for _, claim := range claims {
		s.Kubectl(s.t, "patch", "pvc", claim, "-n", s.namespace, "--subresource=status", "--type=merge",
			"-p", `{"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}`)
	}
}

func (s *testNamespace) claimSize(claim string) string {
	return s.Kubectl(s.t, "get", "pvc", claim, "-n", s.namespace, "-o", "jsonpath={.spec.resources.requests.storage}")
}

// TestU14_ALargerCacheSizeEnlargesTheClaim: a claim grows where its storage class permits it. Where
// not, the fault says so. No claim shrinks.
func TestU14_ALargerCacheSizeEnlargesTheClaim(t *testing.T) {
	s := newTestNamespace(t, nil)
	classes := map[string]bool{"grows-" + s.namespace: true, "fixed-" + s.namespace: false}
	for class, grows := range classes {
		s.Apply(t, s.namespace, fmt.Sprintf(`{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: %s}, provisioner: sluice.dev/none, allowVolumeExpansion: %v}`,
			class, grows))
	}
	g := s.gateway("g", nil)
	cached := func(name string, size int64) Model {
		w := Weights{Claim: name, Size: size << 30, StorageClass: name + "-" + s.namespace, Path: "/w", Link: "sluice/k", Image: "nothing:1", Repository: "org/" + name}
		return engine(name, 1, func(m *Model) { m.Weights = &w })
	}
	g.Set([]Model{cached("grows", 1), cached("fixed", 1)})
	waitUntil(t, "the Jobs", func() bool { return len(s.weightsJobs(t)) == 2 })
	s.bind("grows", "fixed")
	g.Set([]Model{cached("grows", 3), cached("fixed", 2)})
	waitUntil(t, "the claim is enlarged", func() bool { return s.claimSize("grows") == "3Gi" })
	told := func() string { return g.Status().Clusters[0].Errors }
	waitUntil(t, "the claim that cannot grow is told", func() bool {
		return strings.Contains(told(), "enlarge the claim fixed: the claim stays at 1Gi although cache.size is 2Gi: ") && strings.Contains(told(), "must support resize")
	})
	g.Set([]Model{cached("grows", 2), cached("fixed", 1)})
	waitUntil(t, "the fault ends", func() bool { return told() == "" })
	if size := s.claimSize("grows"); size != "3Gi" {
		t.Errorf("the claim has shrunk to %s", size)
	}
}

// TestU14_AClaimThatIsGoneIsFetchedInto: somebody has deleted the claim, as to move it to another
// storage class. Its weights are fetched again, into the new claim.
func TestU14_AClaimThatIsGoneIsFetchedInto(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	w := Weights{Claim: "c", Size: 1 << 30, Path: "/w", Link: "sluice/k", Image: "nothing:1", Repository: "org/model"}
	set := func(desired int) { g.Set([]Model{engine("m", desired, func(m *Model) { m.Weights = &w })}) }
	job := func() string {
		return s.Kubectl(t, "get", "jobs", "-n", s.namespace, "-o", "jsonpath={.items[*].metadata.uid}")
	}
	set(1)
	waitUntil(t, "the Job", func() bool { return len(s.weightsJobs(t)) == 1 })
	s.completeJob(t, g.install.jobName(w))
	g.waitServing("m", 1)
	set(0)
	g.waitReplicas("m", "none", func(all []engines.Replica) bool { return len(all) == 0 })
	before := job()
	s.Kubectl(t, "patch", "pvc", "c", "-n", s.namespace, "--type=merge", "-p", `{"metadata": {"finalizers": null}}`)
	s.Kubectl(t, "delete", "pvc", "c", "-n", s.namespace)
	set(1)
	waitUntil(t, "another Job", func() bool { now := job(); return now != "" && now != before && len(strings.Fields(now)) == 1 })
	if size := s.claimSize("c"); size != "1Gi" {
		t.Errorf("the new claim has %s", size)
	}
	again := job()
	s.completeJob(t, g.install.jobName(w))
	g.waitServing("m", 1)
	if job() != again {
		t.Error("the weights are fetched without end")
	}
}

func TestClaimWhoseVolumeCannotGrow(t *testing.T) {
	var claim corev1.PersistentVolumeClaim
	claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
		{Type: corev1.PersistentVolumeClaimResizing, Status: corev1.ConditionTrue, Message: "soon"}}
	if err := resizeFault(&claim); err != nil {
		t.Error(err)
	}
	claim.Status.Conditions[0].Type, claim.Status.Conditions[0].Message = corev1.PersistentVolumeClaimControllerResizeError, "no space in the pool"
	if err := resizeFault(&claim); err == nil || !strings.Contains(err.Error(), "no space in the pool") {
		t.Errorf("got %v", err)
	}
}

// oneRefusedJob answers like a cluster that has the claim c with 1 GiB and refuses new Jobs.
type oneRefusedJob struct{ *echoAPI }

func (a oneRefusedJob) RoundTrip(r *http.Request) (*http.Response, error) {
	refusal := func(code int, reason string) (*http.Response, error) {
		return answer(r, code, fmt.Appendf(nil, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "code": %d}`, reason, code)), nil
	}
	isClaim := strings.Contains(r.URL.Path, "/persistentvolumeclaims")
	switch {
	case strings.HasSuffix(r.URL.Path, "/jobs") && r.Method == http.MethodPost:
		return refusal(http.StatusForbidden, "Forbidden")
	case isClaim && r.Method == http.MethodPost:
		return refusal(http.StatusConflict, "AlreadyExists")
	case isClaim:
		a.mu.Lock()
		a.calls[r.Method+" claim"]++
		a.mu.Unlock()
		return answer(r, http.StatusOK, []byte(`{"kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": {"name": "c", "namespace": "n", "uid": "now"},
			"spec": {"resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Bound"}}`)), nil
	}
	return a.echoAPI.RoundTrip(r)
}

// TestU14_ARefusedJobLeavesItsClaimToOthers: two models have their weights in one claim, and the
// Job of one is refused again and again. The claim is enlarged all the same, and the Job of the
// other is made again because it has fetched into a claim that is gone.
func TestU14_ARefusedJobLeavesItsClaimToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cached := func(name string) Model {
			return engine(name, 1, func(m *Model) {
				m.Weights = &Weights{Claim: "c", Size: 3 << 30, Path: "/w", Link: "sluice/k", Image: "nothing:1", Repository: "org/" + name}
			})
		}
		api := oneRefusedJob{newEchoAPI()}
		loaded := cached("loaded")
		c := leaderOver(t, api, loaded, cached("refused"))
		j, err := c.loader(*loaded.Weights)
		if err != nil {
			t.Fatal(err)
		}
		j.Namespace, j.UID, j.Annotations[annotationClaim] = "n", "j", "before"
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		if err := c.jobs.Replace([]any{j}, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if api.count("PATCH claim") == 0 {
			t.Error("the claim is not enlarged")
		}
		if api.count("DELETE jobs") == 0 {
			t.Error("the Job stays whose claim is gone")
		}
	})
}
