package kubernetes

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_U7_TheTargetOfACustomResourceHoldsOverAllGateways: two gateways carry two streams each. A
// target of three needs a second pod only because the loads add up. Nothing waits.
func TestE2E_U7_TheTargetOfACustomResourceHoldsOverAllGateways(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	if err := k.TryApply(t, k.namespace, `{apiVersion: sluice.dev/v1alpha1, kind: InferenceModel, metadata: {name: x}, `+
		`spec: {engine: sim, replicas: {max: 2}, scale: {target: {running: 1, ttft: 1s}}}}`); err == nil || !strings.Contains(err.Error(), "must have one of running and ttft") {
		t.Errorf("the API server takes two targets: %v", err)
	}
	gateways := []*harness.Gateway{k.start(""), k.start("")}
	k.apply("chat", `replicas: {min: 1, max: 3}, cooldown: 1s, scale: {target: {running: 3}}, variables: {prefill_rate: 0, token_interval: 20ms, max_num_seqs: 64}`)
	ready := []string{"get", "im", "chat", "-o", "jsonpath={.status.replicasReady}"}
	k.awaitOutput("1/1", ready...)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	var streams sync.WaitGroup
	for _, g := range gateways {
		g.AwaitReady()
		for range 2 {
			r, err := g.Open(ctx, "/v1/chat/completions", harness.ChatBody("chat", true, 100_000, "Hello"))
			if err != nil {
				t.Fatal(err)
			}
			streams.Go(func() { defer r.Body.Close(); <-ctx.Done() })
		}
	}
	k.awaitOutput("2/2", ready...)
	for i, g := range gateways {
		g.AwaitModel("chat", fmt.Sprint("gateway ", i, " knows why"), func(m harness.Model) bool {
			return m.InFlight == 2 && m.Scaled.To == 2 && m.Scaled.Reason == "running_target"
		})
	}
	leave()
	streams.Wait()
	k.awaitOutput("1/1", ready...)
}
