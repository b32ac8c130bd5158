package kubernetes

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_U15_ARefusedEditAndARestart: a typo in the spec of a model that runs, and in that of its
// engine, ends nothing, also when the gateway starts anew. The operator is told.
func TestE2E_U15_ARefusedEditAndARestart(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	g := k.start("")
	own := func(engine, command string) {
		k.Apply(t, k.namespace, fmt.Sprintf(`{apiVersion: sluice.dev/v1alpha1, kind: Engine, metadata: {name: %s}, spec: {versions: [
			{version: "1", tasks: [text-generation], image: "sluice:1", slots: {default: 8}, command: [%s]}]}}`, engine, command))
	}
	const sound = `sluice, sim, --host, "{{.Host}}", --port, "{{.Port}}", --model, "{{.Name}}", --served-model-name, "{{.Name}}"`
	own("own", sound)
	k.apply("chat", `replicas: {min: 2, max: 2}, `+fastVariables)
	k.Apply(t, k.namespace, `{apiVersion: sluice.dev/v1alpha1, kind: InferenceModel, metadata: {name: other}, spec: {engine: own, task: text-generation}}`)
	status := func(name string) []string {
		return []string{"get", "im", name, "-o", `jsonpath={.status.conditions[?(@.type=="Accepted")].status} {.status.phase} {.status.replicasReady}`}
	}
	k.awaitOutput("True Ready 2/2", status("chat")...)
	k.awaitOutput("True Ready 1/1", status("other")...)
	pods := []string{"get", "pods", "-o", "jsonpath={.items[*].metadata.name}"}
	before := k.kubectl(pods...)

	k.apply("chat", `replicas: {min: 2, max: 2}, variables: {max_num_seq: 8}`)
	own("own", `sluice, sim, --port, "{{.Prot}}"`)
	k.awaitOutput("False Ready 2/2", status("chat")...)
	k.awaitOutput("False", "get", "engine", "own", "-o", `jsonpath={.status.conditions[?(@.type=="Accepted")].status}`)
	g.Stop()
	g.Launch()
	g.AwaitReady()
	serves := func(model string) error {
		if a := g.Post("/v1/chat/completions", harness.ChatBody(model, false, 2, "Hello")); a.StatusCode != 200 {
			return fmt.Errorf("%s", a)
		}
		return nil
	}
	harness.Eventually(t, "chat is served after the restart", func() error { return serves("chat") })
	harness.Eventually(t, "other is served after the restart", func() error { return serves("other") })
	harness.Eventually(t, "the operator is told", func() error {
		all, err := g.Conditions(condition.ResourceRejected)
		if err != nil {
			return err
		}
		for _, subject := range []string{"InferenceModel/chat", "Engine/own"} {
			if !strings.Contains(all[subject].Message, "The spec that was accepted last stays in force") {
				return fmt.Errorf("%s: %+v", subject, all)
			}
		}
		return nil
	})

	// The new leader reconciles this new model, so it has also looked at the two others.
	k.apply("third", `replicas: {min: 1, max: 1}, `+fastVariables)
	k.awaitOutput("True Ready 1/1", status("third")...)
	k.kubectl("delete", "im", "third")
	k.awaitOutput(before, pods...)
	k.awaitOutput("False Ready 2/2", status("chat")...)
	for _, model := range []string{"chat", "other"} {
		if err := serves(model); err != nil {
			t.Error(err)
		}
	}

	k.apply("chat", `replicas: {min: 1, max: 1}, `+fastVariables) // mended
	k.awaitOutput("True Ready 1/1", status("chat")...)
	k.kubectl("delete", "engine", "own") // and other's engine is deleted: its pod stays
	k.awaitOutput("False Failed 0/0", status("other")...)
	a, err := g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody("other", false, 2, "Hello"))
	if err != nil || a.Code() != "model_not_found" {
		t.Errorf("%v %v", a, err)
	}
	if got := k.kubectl("get", "deployments", "-o", `jsonpath={.items[*].metadata.annotations.sluice\.dev/model}`); got != "chat other" && got != "other chat" {
		t.Errorf("Deployments of %q", got)
	}
	own("own", sound)
	k.awaitOutput("True Ready 1/1", status("other")...)
}
