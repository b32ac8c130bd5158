package kubernetes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_U16_ANodeIsDrainedUnderStreams: kubectl drain evicts the pods of a node while streams run
// there. Every stream arrives whole, another node takes over, and the drain ends.
func TestE2E_U16_ANodeIsDrainedUnderStreams(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	g := k.start("")
	k.apply("chat", `replicas: {min: 2, max: 2}, routing: {strategy: round_robin}, `+slowVariables)
	k.awaitOutput("Ready 2/2", "get", "im", "chat", "-o", "jsonpath={.status.phase} {.status.replicasReady}")
	g.AwaitReady()
	k.node("other")
	var streams []func()
	for range 4 {
		streams = append(streams, k.stream(g, "chat"))
	}
	drained := make(chan error, 1)
	go func() {
		_, err := k.TryKubectl(t, "drain", k.nodeName("node"), "--delete-emptydir-data", "--timeout=100s")
		drained <- err
	}()
	harness.Eventually(t, "a pod is evicted", func() error {
		if k.kubectl("get", "pods", "--field-selector", "spec.nodeName="+k.nodeName("other"), "-o", "name") == "" {
			return fmt.Errorf("no pod on the other node")
		}
		return nil
	})
	for _, finish := range streams {
		finish()
	}
	if err := harness.Receive(t, drained, "the node is drained"); err != nil {
		t.Error(err)
	}
	k.awaitOutput("Ready 2/2", "get", "im", "chat", "-o", "jsonpath={.status.phase} {.status.replicasReady}")
	if got := k.kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"); got != k.nodeName("other")+" "+k.nodeName("other") {
		t.Errorf("pods on %q", got)
	}
}

// TestE2E_U16_KubectlScale: the scale subresource sets replicas.min, and tells what an autoscaler
// reads.
func TestE2E_U16_KubectlScale(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	k.start("")
	k.apply("chat", `replicas: {min: 1, max: 3}, `+fastVariables)
	k.awaitOutput("Ready 1/1", "get", "im", "chat", "-o", "jsonpath={.status.phase} {.status.replicasReady}")
	k.kubectl("scale", "im", "chat", "--replicas=2")
	k.awaitOutput("Ready 2/2", "get", "im", "chat", "-o", "jsonpath={.status.phase} {.status.replicasReady}")
	scale := k.kubectl("get", "--raw", "/apis/sluice.dev/v1alpha1/namespaces/"+k.namespace+"/inferencemodels/chat/scale")
	_, after, _ := strings.Cut(scale, `"selector":"`)
	selector, _, _ := strings.Cut(after, `"`)
	if !strings.Contains(scale, `"replicas":2`) || strings.Count(k.kubectl("get", "pods", "-l", selector, "-o", "name"), "pod/") != 2 {
		t.Errorf("the scale is %s", scale)
	}
	if _, err := k.TryKubectl(t, "-n", k.namespace, "scale", "im", "chat", "--replicas=4"); err == nil || !strings.Contains(err.Error(), "must be at least min") {
		t.Errorf("more than max: %v", err)
	}
}
