package kubernetes

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/kubetest"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// kubernetes is a namespace of a real control plane, with nodes whose kubelet runs containers as
// processes.
type kubernetes struct {
	*kubetest.Cluster
	t         *testing.T
	namespace string
	// kubeconfig is that of the service account of the gateway, which may do what the example's
	// role says.
	kubeconfig string
}

// newKubernetes makes a namespace of the control plane that the tests share. Its pods run on nodes
// of its own.
func newKubernetes(t *testing.T) *kubernetes {
	t.Helper()
	c := kubetest.Shared(t)
	prepared.Do(func() { prepared.err = prepare(t, c) })
	if prepared.err != nil {
		t.Fatal(prepared.err) // in every test, not only in the first one
	}
	return newNamespace(t, c)
}

// prepared is done when prepare has returned for the shared control plane.
var prepared struct {
	sync.Once
	err error
}

// newControlPlane starts a control plane for one test, which may stop it.
func newControlPlane(t *testing.T) *kubernetes {
	t.Helper()
	c := kubetest.Start(t)
	if err := prepare(t, c); err != nil {
		t.Fatal(err)
	}
	return newNamespace(t, c)
}

// prepare makes the custom resources, and says which program the pods run.
func prepare(t *testing.T, c *kubetest.Cluster) error {
	t.Helper()
	c.Programs = map[string]string{"sluice": harness.Program()}
	if _, err := c.TryKubectl(t, "apply", "-f", filepath.Join(manifests(), "crds.yaml")); err != nil {
		return err
	}
	_, err := c.TryKubectl(t, "wait", "--for=condition=Established", "crd/inferencemodels.sluice.dev", "crd/engines.sluice.dev")
	return err
}

func manifests() string { return filepath.Join(testutil.Root(), "examples", "kubernetes", "base") }

// newNamespace makes a namespace with a service account for the gateway and a node.
func newNamespace(t *testing.T, c *kubetest.Cluster) *kubernetes {
	t.Helper()
	k := &kubernetes{t: t, Cluster: c, namespace: c.Namespace(t)}
	k.Kubectl(t, "apply", "-n", k.namespace, "-f", filepath.Join(manifests(), "rbac.yaml"))
	k.kubeconfig = k.User(t, k.namespace, "sluice")
	k.node("node", "nvidia.com/gpu", "2")
	return k
}

// node adds a node for the pods of this namespace. Its name in the control plane is that of
// nodeName. capacity lists more resources by name and quantity.
func (k *kubernetes) node(name string, capacity ...string) *kubetest.Node {
	k.t.Helper()
	all := map[string]string{"cpu": "16", "memory": "64Gi"}
	for i := 0; i+1 < len(capacity); i += 2 {
		all[capacity[i]] = capacity[i+1]
	}
	n := k.Node(k.t, k.nodeName(name), all)
	n.Reserve(k.t, k.namespace)
	return n
}

// nodeName returns the name of a node of this namespace in the control plane.
func (k *kubernetes) nodeName(name string) string { return k.namespace + "-" + name }

// start starts a gateway that reads the custom resources of the namespace.
func (k *kubernetes) start(more string) *harness.Gateway {
	k.t.Helper()
	return harness.Start(k.t, fmt.Sprintf("kubernetes: {kubeconfig: %s, namespace: %s}\n%s", k.kubeconfig, k.namespace, more))
}

func (k *kubernetes) kubectl(args ...string) string {
	k.t.Helper()
	return strings.TrimSpace(k.Kubectl(k.t, append([]string{"-n", k.namespace}, args...)...))
}

// apply creates or changes an InferenceModel of the simulated engine. spec has more of its fields
// in one line.
func (k *kubernetes) apply(name, spec string) {
	k.t.Helper()
	k.Apply(k.t, k.namespace, fmt.Sprintf(`{apiVersion: sluice.dev/v1alpha1, kind: InferenceModel, metadata: {name: %s}, spec: {engine: sim, task: text-generation, %s}}`, name, spec))
}

// awaitOutput waits until kubectl prints exactly want.
func (k *kubernetes) awaitOutput(want string, args ...string) {
	k.t.Helper()
	harness.Eventually(k.t, "kubectl "+strings.Join(args, " "), func() error {
		if got := k.kubectl(args...); got != want {
			return fmt.Errorf("%q, want %q", got, want)
		}
		return nil
	})
}

const fastVariables = `variables: {prefill_rate: 0, token_interval: 0s, max_num_seqs: 8}`

func TestE2E_N4_P2_P3_CustomResourceFromZeroToPodsAndBack(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	g := k.start("")
	k.apply("chat", `replicas: {min: 0, max: 2}, cooldown: 2s, resources: {cpu: 1, gpu: 1}, `+fastVariables)
	phase := []string{"get", "inferencemodel", "chat", "-o", "jsonpath={.status.phase} {.status.replicas} {.status.ready}"}
	k.awaitOutput("Idle 0 0", phase...)
	if got := k.kubectl("get", "deployments,pods", "-o", "name"); got != "" {
		t.Errorf("nobody has asked, and there is %s", got)
	}
	a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 5, "Hello"))
	if a.StatusCode != 200 {
		t.Fatal(a)
	}
	pod := a.Header.Get("X-Sluice-Replica")
	if got := k.kubectl("get", "pod", pod, "-o", "jsonpath={.status.phase} {.spec.containers[0].resources.limits.nvidia\\.com/gpu}"); got != "Running 1" {
		t.Errorf("the pod %s is %q", pod, got)
	}
	if r := g.Replicas()[pod]; r.State != "ready" || r.Model != "chat" {
		t.Errorf("%+v", r)
	}
	k.awaitOutput("Idle 0 0", phase...)
	k.awaitOutput("", "get", "deployments,replicasets,pods", "-o", "name")
}

// What is changed with kubectl holds a moment later; what does not work says so, and the rest goes
// on.
func TestE2E_N4_P2_KubernetesCreateScaleBreakDelete(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	g := k.start("")
	k.apply("chat", `replicas: {min: 1, max: 1}, `+fastVariables)
	k.awaitOutput("Ready 1/1", "get", "im", "chat", "-o", "jsonpath={.status.phase} {.status.replicasReady}")
	k.apply("chat", `replicas: {min: 3, max: 3}, routing: {strategy: round_robin}, `+fastVariables)
	g.AwaitReady()
	k.awaitOutput("Ready 3/3", "get", "im", "chat", "-o", "jsonpath={.status.phase} {.status.replicasReady}")
	g.AwaitReady()
	g.AwaitServing(3)

	k.apply("typo", `replicas: {min: 1, max: 1}, variables: {max_num_seq: 8}`)
	k.awaitOutput("False", "get", "im", "typo", "-o", `jsonpath={.status.conditions[?(@.type=="Accepted")].status}`)
	if got := k.kubectl("get", "im", "typo", "-o", "jsonpath={.status.message}"); !strings.Contains(got, "did you mean max_num_seqs?") {
		t.Error(got)
	}
	if got := k.kubectl("get", "deployments", "-o", "jsonpath={.items[*].metadata.annotations.sluice\\.dev/model}"); got != "chat" {
		t.Errorf("Deployments of %q", got)
	}
	k.apply("chat", `replicas: {min: 3, max: 3}, variables: {max_num_seq: 8}`) // a slip in the spec of a model that runs
	k.awaitOutput("False Ready 3/3", "get", "im", "chat", "-o", `jsonpath={.status.conditions[?(@.type=="Accepted")].status} {.status.phase} {.status.replicasReady}`)
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "Hello")); a.StatusCode != 200 {
		t.Error(a)
	}
	if err := k.TryApply(t, k.namespace, `{apiVersion: sluice.dev/v1alpha1, kind: InferenceModel, metadata: {name: x}, spec: {engine: sim, placement: alphabetical}}`); err == nil ||
		!strings.Contains(err.Error(), "spec.placement") {
		t.Errorf("the API server takes a wrong placement: %v", err)
	}

	k.apply("chat", `replicas: {min: 2, max: 2}, variables: {fault: "status=503"}`) // a new template: old replicas serve until new ones do
	k.awaitOutput("Ready 2/2", "get", "im", "chat", "-o", "jsonpath={.status.phase} {.status.replicasReady}")

	k.kubectl("delete", "im", "chat", "--wait=false")
	harness.Eventually(t, "the model is gone", func() error {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "Hello")); a.Code() != "model_not_found" {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	k.awaitOutput("", "get", "deployments,pods", "-o", "name")
	harness.Eventually(t, "the custom resource is gone", func() error {
		if got := k.kubectl("get", "im", "-o", "name"); strings.Contains(got, "/chat") {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
}

func TestE2E_N4_S4_DeletedWhileAStreamRuns(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	g := k.start("")
	k.apply("chat", `replicas: {min: 1, max: 1}, variables: {token_interval: 20ms}`)
	k.awaitOutput("Ready", "get", "im", "chat", "-o", "jsonpath={.status.phase}")
	g.AwaitReady()
	r, err := g.Open(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", true, 1000, "Hello")) // twenty seconds
	if err != nil || r.StatusCode != 200 {
		t.Fatal(r, err)
	}
	defer r.Body.Close()
	k.kubectl("delete", "im", "chat", "--wait=false")
	k.awaitOutput("Draining", "get", "im", "chat", "-o", "jsonpath={.status.phase}")
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = harness.CheckWholeStream(body)
	}
	if err != nil {
		t.Errorf("the stream of a deleted model: %v", err)
	}
	k.awaitOutput("", "get", "im,deployments,pods", "-o", "name")
}

func TestE2E_P4_P5_TwoGatewaysMakeOneDeployment(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	gateways := []*harness.Gateway{k.start(""), k.start("")}
	k.apply("chat", `replicas: {min: 0, max: 1}, cooldown: 3s, `+slowVariables)
	k.awaitOutput("Idle", "get", "im", "chat", "-o", "jsonpath={.status.phase}")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var callers, holder sync.WaitGroup
	holder.Go(func() { // keeps the pod until the test has looked at it
		if r, err := gateways[0].Open(ctx, "/v1/chat/completions", harness.ChatBody("chat", true, 100_000, "Hello")); err == nil {
			<-ctx.Done()
			r.Body.Close()
		}
	})
	for i := range 100 {
		callers.Go(func() {
			a, err := gateways[i%2].TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", i%3 == 0, 3, fmt.Sprint("question ", i)))
			if err != nil || a.StatusCode != 200 {
				t.Errorf("%v %v", a, err)
			}
		})
	}
	callers.Wait()
	if got := k.kubectl("get", "pods", "-o", "name"); strings.Count(got, "pod/") != 1 {
		t.Errorf("pods: %q", got)
	}
	if got := k.kubectl("get", "deployments", "-o", "jsonpath={.items[*].metadata.generation}"); got != "1" && got != "2" {
		t.Errorf("Deployments by generation: %q", got)
	}
	leave()
	holder.Wait()
	// The gateway that does not lead wakes it too, and the death of the one that does stops
	// nothing.
	k.awaitOutput("Idle", "get", "im", "chat", "-o", "jsonpath={.status.phase}")
	for _, g := range gateways {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 3, "Hello")); a.StatusCode != 200 {
			t.Error(a)
		}
		k.awaitOutput("Idle", "get", "im", "chat", "-o", "jsonpath={.status.phase}")
	}
	gateways[0].Kill()
	if a := gateways[1].Post("/v1/chat/completions", harness.ChatBody("chat", false, 3, "Hello")); a.StatusCode != 200 {
		t.Error(a)
	}
	gateways[0].Launch() // so that it can be stopped
	gateways[0].AwaitReady()
}

// An API server that is away for a while changes nothing for clients, and a change that was made
// meanwhile is made up for.
func TestE2E_N4_TheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	k := newControlPlane(t)
	g := k.start("")
	k.apply("chat", `replicas: {min: 1, max: 1}, `+fastVariables)
	k.awaitOutput("Ready", "get", "im", "chat", "-o", "jsonpath={.status.phase}")
	g.AwaitReady()
	k.StopAPI(t)
	harness.Eventually(t, "the operator is told", func() error {
		if all, err := g.Conditions(condition.KubernetesFault); err != nil || len(all) == 0 {
			return fmt.Errorf("%v %w", all, err)
		}
		return nil
	})
	for range 20 {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "Hello")); a.StatusCode != 200 {
			t.Fatal(a)
		}
	}
	g.Kill() // and even the gateway starts anew, without a word from Kubernetes
	g.Launch()
	g.AwaitAdmin()
	k.StartAPI(t)
	g.AwaitReady()
	harness.Eventually(t, "the model is back", func() error {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "Hello")); a.StatusCode != 200 {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	if got := k.kubectl("get", "pods", "-o", "name"); strings.Count(got, "pod/") != 1 {
		t.Errorf("pods: %q", got)
	}
	k.apply("chat", `replicas: {min: 2, max: 2}, `+fastVariables)
	k.awaitOutput("2/2", "get", "im", "chat", "-o", "jsonpath={.status.replicasReady}")
}

func TestE2E_N5_N4_ANodeOfKubernetesIsLost(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	other := k.node("other", "nvidia.com/gpu", "2")
	g := k.start("")
	k.apply("chat", `replicas: {min: 2, max: 2}, resources: {gpu: 1}, placement: spread, `+fastVariables)
	k.awaitOutput("2/2", "get", "im", "chat", "-o", "jsonpath={.status.replicasReady}")
	g.AwaitReady()
	on := map[string]int{}
	for _, r := range g.Replicas() {
		on[r.Node]++
	}
	if len(on) != 2 {
		t.Errorf("not spread: %v", on)
	}
	other.Lose(t)
	for range 50 {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "Hello")); a.StatusCode != 200 {
			t.Fatal(a)
		}
	}
	k.awaitOutput("2/2", "get", "im", "chat", "-o", "jsonpath={.status.replicasReady}")
}

const slowVariables = `variables: {prefill_rate: 0, token_interval: 20ms}`

// stream opens a stream, which lasts twelve seconds with slowVariables. The returned function reads
// the stream to its end.
func (k *kubernetes) stream(g *harness.Gateway, model string) (finish func()) {
	k.t.Helper()
	r, err := g.Open(context.Background(), "/v1/chat/completions", harness.ChatBody(model, true, 600, "Hello"))
	if err != nil || r.StatusCode != 200 {
		k.t.Fatal(r, err)
	}
	return func() {
		k.t.Helper()
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = harness.CheckWholeStream(body)
		}
		if err != nil {
			k.t.Errorf("the stream of %s: %v", model, err)
		}
	}
}

// TestE2E_N4_ARolloutThatIsRefusedIsTold: the cluster admits no pods of the new spec. Those of the
// old one serve, and the model says why it has no others.
func TestE2E_N4_ARolloutThatIsRefusedIsTold(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	k.start("")
	k.Apply(t, k.namespace, `{apiVersion: v1, kind: LimitRange, metadata: {name: small}, spec: {limits: [{type: Container, max: {memory: 2Gi}, default: {memory: 1Gi}}]}}`)
	k.apply("chat", `replicas: {min: 1, max: 1}, `+fastVariables)
	status := []string{"get", "im", "chat", "-o", "jsonpath={.status.phase} {.status.replicasReady} {.status.message}"}
	k.awaitOutput("Ready 1/1", status...)
	k.apply("chat", `replicas: {min: 1, max: 1}, resources: {memory: 4Gi}, `+fastVariables)
	harness.Eventually(t, "the reason", func() error {
		if got := k.kubectl(status...); !strings.HasPrefix(got, "Ready 1/1 ") || !strings.Contains(got, "maximum memory usage per Container is 2Gi") {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
	k.apply("chat", `replicas: {min: 1, max: 1}, resources: {memory: 1Gi}, `+fastVariables)
	k.awaitOutput("Ready 1/1", status...)
}

// Deployments of a custom resource go with it when their streams have ended, also under a former
// name; those of others stay.
func TestE2E_N4_S4_WhatACustomResourceOwns(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	g := k.start(`models: [{name: filed, launcher: kubernetes, engine: sim, task: text-generation, replicas: {min: 1, max: 1}, ` + slowVariables + `}]`)
	k.apply("filed", `replicas: {min: 1, max: 1}, `+slowVariables) // the name is taken
	k.apply("far", `cluster: /default, replicas: {min: 1, max: 1}, `+slowVariables)
	k.apply("old", `name: first, replicas: {min: 1, max: 1}, `+slowVariables)
	k.awaitOutput("Ready", "get", "im", "old", "-o", "jsonpath={.status.phase}")
	k.awaitOutput("Failed", "get", "im", "far", "-o", "jsonpath={.status.phase}") // it is for the file to say so
	k.awaitOutput("Failed", "get", "im", "filed", "-o", "jsonpath={.status.phase}")
	g.AwaitReady()
	finish := []func(){k.stream(g, "filed"), k.stream(g, "first")}
	k.apply("old", `name: second, replicas: {min: 0, max: 1}, `+slowVariables)
	k.awaitOutput("Idle", "get", "im", "old", "-o", "jsonpath={.status.phase}")
	k.kubectl("delete", "im", "--all", "--wait=false")
	for _, f := range finish {
		f()
	}
	k.awaitOutput("", "get", "im", "-o", "name")
	k.awaitOutput("filed", "get", "deployments", "-o", `jsonpath={.items[*].metadata.annotations.sluice\.dev/model}`)
}

// A gateway that cannot read custom resources when it starts leaves their replicas alone, and says
// so.
func TestE2E_N4_StartWithoutCustomResources(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	g := k.start("")
	k.apply("chat", `replicas: {min: 1, max: 1}, `+fastVariables)
	k.awaitOutput("Ready", "get", "im", "chat", "-o", "jsonpath={.status.phase}")
	pod := k.kubectl("get", "pods", "-o", "name")
	g.Stop()
	rights := filepath.Join(testutil.Root(), "examples", "kubernetes", "base", "rbac.yaml")
	k.kubectl("patch", "role", "sluice", "--type=json", "-p", `[{"op": "remove", "path": "/rules/0"}, {"op": "remove", "path": "/rules/0"}]`)
	g = k.start(`models: [{name: sign, launcher: kubernetes, engine: sim, task: text-generation, replicas: {min: 1, max: 1}, ` + fastVariables + `}]`)
	harness.Eventually(t, "the file's own model is made, and the operator is told", func() error {
		all, err := g.Conditions(condition.ResourceRejected)
		if err != nil {
			return err
		}
		for _, r := range g.Replicas() {
			if r.Model == "sign" && r.State == "ready" && strings.Contains(all[""].Message, "forbidden") {
				return nil
			}
		}
		return fmt.Errorf("%+v %v", g.Replicas(), all)
	})
	k.kubectl("apply", "-f", rights)
	harness.Eventually(t, "the model is back", func() error {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "Hello")); a.StatusCode != 200 || "pod/"+a.Header.Get("X-Sluice-Replica") != pod {
			return fmt.Errorf("%s by %s, not %s", a, a.Header.Get("X-Sluice-Replica"), pod)
		}
		return nil
	})
}

// A restart forgets neither the models that are custom resources nor the requests that Envoy has at
// their pods.
func TestE2E_N4_S4_RestartWithAStreamAtAPod(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	g := k.start("")
	k.apply("chat", `replicas: {min: 1, max: 1}, variables: {prefill_rate: 0, token_interval: 40ms}`)
	k.awaitOutput("Ready", "get", "im", "chat", "-o", "jsonpath={.status.phase}")
	g.AwaitReady()
	finish := k.stream(g, "chat") // 24 seconds
	if out, err := g.RunCommand("restart", "-c", g.Config); err != nil {
		t.Fatal(err, out)
	}
	for range 20 {
		if a, err := g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", false, 1, "Hello")); err == nil && a.StatusCode == 404 {
			t.Fatalf("after the restart: %s", a)
		}
	}
	g.AwaitModel("chat", "the stream at the pod is counted", func(m harness.Model) bool { return m.InFlight == 1 })
	k.kubectl("delete", "im", "chat", "--wait=false") // and now its pod leaves Envoy
	finish()
}
