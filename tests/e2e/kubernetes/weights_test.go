package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/weights/hubtest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// volume makes a claim that is bound. The stand-in kubelet mounts nothing: the path of the volume
// is a directory of this machine.
func (k *kubernetes) volume(claim string) {
	k.t.Helper()
	k.Apply(k.t, k.namespace, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s-%[2]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  hostPath: {path: /nowhere}
  claimRef: {name: %[1]s, namespace: %[2]s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s, annotations: {pv.kubernetes.io/bind-completed: "yes"}}
spec: {accessModes: [ReadWriteMany], storageClassName: "", volumeName: %[1]s-%[2]s, resources: {requests: {storage: 1Gi}}}
`, claim, k.namespace))
}

// TestE2E_U14_WeightsAreFetchedOnce: a Job fetches into the volume before the pods are made, with
// the token of a Secret and from a mirror. Its progress and its failure are told, and each file is
// fetched once for all replicas.
func TestE2E_U14_WeightsAreFetchedOnce(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	k.volume("weights")
	k.kubectl("create", "secret", "generic", "hub", "--from-literal=token=hf_secret")
	hub, hold, path := hubtest.New(t), make(chan struct{}), t.TempDir()
	hub.Put("org/model", hubtest.Repository{Task: "text-generation", Token: "hf_secret", Files: map[string][]byte{
		"config.json": []byte("{}"), "model.safetensors": []byte(strings.Repeat("w", 1<<16)),
	}})
	hub.Fail("model.safetensors", hubtest.Faults{Hold: hold})
	g := k.start(fmt.Sprintf(`
registries:
  - {name: hub, kind: huggingface, endpoint: %q, cache: {claim: weights, path: %q, token: hub/token}}
  - {name: own, kind: huggingface, cache: {size: 5GiB, storage_class: fast}}
`, hub.URL, path))
	k.apply("chat", `source: {registry: hub, name: org/model}, replicas: {min: 2, max: 2}, `+fastVariables)
	k.apply("absent", `source: {registry: hub, name: org/absent}, replicas: {min: 1, max: 1}, `+fastVariables)
	k.apply("claimed", `source: {registry: own, name: org/model}, replicas: {min: 1, max: 1}, `+fastVariables)
	message := func(name, want string) {
		t.Helper()
		harness.Eventually(t, "the status of "+name, func() error {
			if got := k.kubectl("get", "im", name, "-o", "jsonpath={.status.phase} {.status.message}"); !strings.Contains(got, want) {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
	message("chat", "fetching weights: 32.0 KiB of 64.0 KiB (50 %)")
	message("absent", "org/absent")
	k.awaitOutput("fast ReadWriteMany 5Gi", "get", "pvc", "sluice-weights-own", "-o",
		"jsonpath={.spec.storageClassName} {.spec.accessModes[0]} {.spec.resources.requests.storage}")
	message("claimed", "Pending")
	if got := k.kubectl("get", "deployments", "-o", "name"); got != "" {
		t.Errorf("before the weights are there: %s", got)
	}
	close(hold)
	k.awaitOutput("Ready 2/2", "get", "im", "chat", "-o", "jsonpath={.status.phase} {.status.replicasReady}")
	fetched := map[string]int{}
	for _, request := range hub.Requests() {
		file, _, _ := strings.Cut(request, " ")
		fetched[file]++
	}
	if len(fetched) == 0 || fetched["model.safetensors"] != 1 {
		t.Errorf("fetched %v", fetched)
	}
	command := k.kubectl("get", "deployment", "-o", "jsonpath={.items[0].spec.template.spec.containers[0].command}")
	_, after, _ := strings.Cut(command, path)
	link, _, _ := strings.Cut(after, `"`)
	if data, err := os.ReadFile(filepath.Join(path, link, "model.safetensors")); err != nil || len(data) != 1<<16 {
		t.Errorf("what the engine is to load, %s: %d bytes, %v", link, len(data), err)
	}
	mounts := k.kubectl("get", "deployment", "-o", "jsonpath={.items[0].spec.template.spec.volumes[0].persistentVolumeClaim}")
	if !strings.Contains(mounts, `"claimName":"weights"`) || !strings.Contains(mounts, `"readOnly":true`) {
		t.Errorf("mounted: %s", mounts)
	}
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "Hello")); a.StatusCode != 200 {
		t.Error(a)
	}
	k.kubectl("delete", "im", "--all", "--wait=false")
	k.awaitOutput("", "get", "im,deployments,jobs", "-o", "name")
}
