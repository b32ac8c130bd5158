package kubernetes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/kubetest"
)

// volume is a claim that is bound.
const volume = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: c-%[1]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  hostPath: {path: /nowhere}
  claimRef: {name: c, namespace: %[1]s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: c, annotations: {pv.kubernetes.io/bind-completed: "yes"}}
spec: {accessModes: [ReadWriteMany], storageClassName: "", volumeName: c-%[1]s, resources: {requests: {storage: 1Gi}}}
`

// TestU14_WhyAJobHasFailedStaysTold: why weights could not be fetched is told until their Job is
// made again.
func TestU14_WhyAJobHasFailedStaysTold(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	programs := kubetest.Shared(t).Programs
	programs["sluice"] = "/bin/false"
	t.Cleanup(func() { delete(programs, "sluice") })
	s := newTestNamespace(t, nil)
	s.Apply(t, s.namespace, fmt.Sprintf(volume, s.namespace))
	g := s.gateway("g", nil)
	w := Weights{Claim: "c", Path: "/w", Link: "sluice/k", Image: "nothing:1", Repository: "org/model"}
	g.Set([]Model{engine("m", 1, func(m *Model) { m.Weights = &w })})
	waitUntil(t, "the Job", func() bool { return len(s.weightsJobs(t)) == 1 })
	// Without a further try it does not take minutes until the Job has failed.
	s.Kubectl(t, "patch", "job", g.install.jobName(w), "-n", s.namespace, "-p", `{"spec": {"backoffLimit": 0}}`)
	waitUntil(t, "the Job has failed", func() bool {
		return strings.HasSuffix(s.Kubectl(t, "get", "jobs", "-n", s.namespace, "-o", "jsonpath={.items[*].status.conditions[*].type}"), "Failed")
	})
	waitUntil(t, "no pod runs", func() bool {
		return s.Kubectl(t, "get", "pods", "-n", s.namespace, "--field-selector", "status.phase!=Failed", "-o", "name") == ""
	})
	g.waitReplicas("m", "the end of the loader", func(all []engines.Replica) bool {
		return len(all) == 1 && all[0].State == engines.Failed && strings.Contains(all[0].Reason, "exit code 1")
	})
}
