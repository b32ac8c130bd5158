package kubernetes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_U13_PodsOfAModel: a model gets its pods as its profile, its patch and an override of the
// engine's version say. A patch with a typo is refused without an effect on what runs.
func TestE2E_U13_PodsOfAModel(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	g := k.start(`
engines: [{name: sim, versions: [{version: "1", image: "mine:2"}]}]
profiles:
  - name: small
    resources: {cpu: 2, memory: 1GiB, gpu: 1}
    pod: {spec: {tolerations: [{key: spot, operator: Exists}]}}
`)
	k.kubectl("create", "serviceaccount", "engines")
	k.kubectl("label", "node", k.nodeName("node"), "disk=fast")
	const patch = `pod: {metadata: {labels: {team: search}}, spec: {serviceAccountName: engines, imagePullSecrets: [{name: pull}],
		nodeSelector: {disk: fast}, volumes: [{name: scratch, emptyDir: {}}],
		containers: [{name: engine, env: [{name: MINE, value: "1"}], volumeMounts: [{name: scratch, mountPath: /scratch}]}]}}`
	k.apply("chat", `replicas: {min: 1, max: 1}, profiles: [small], resources: {cpu: 1}, `+fastVariables+`, `+patch)
	k.awaitOutput("True Ready", "get", "im", "chat", "-o", `jsonpath={.status.conditions[?(@.type=="Accepted")].status} {.status.phase}`)
	pod := k.kubectl("get", "pods", "-l", "team=search", "-o", "name")
	for path, want := range map[string]string{
		".spec.serviceAccountName": "engines", ".spec.imagePullSecrets[0].name": "pull", ".spec.nodeSelector.disk": "fast",
		".spec.tolerations[0].key": "spot", ".spec.containers[0].image": "mine:2", ".spec.containers[0].resources.requests.cpu": "1",
		".spec.containers[0].resources.requests.memory": "1Gi", `.spec.containers[0].resources.limits.nvidia\.com/gpu`: "1",
		`.spec.containers[0].env[?(@.name=="MINE")].value`: "1", `.spec.containers[0].volumeMounts[?(@.name=="scratch")].mountPath`: "/scratch",
		".spec.containers[0].readinessProbe.httpGet.path": "/health",
	} {
		if got := k.kubectl("get", pod, "-o", "jsonpath={"+path+"}"); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "Hello")); a.StatusCode != 200 {
		t.Error(a)
	}
	for edit, why := range map[string]string{
		`pod: {spec: {tolerationz: []}}`:                         "spec.pod.spec.tolerationz: unknown field; did you mean tolerations?",
		`pod: {spec: {containers: [{name: engine, args: [x]}]}}`: "spec.pod.spec.containers[0].args: belongs to Sluice",
		`profiles: [smal]`:                                       "there is no profile smal; did you mean small?",
	} {
		k.apply("chat", `replicas: {min: 1, max: 1}, `+edit)
		harness.Eventually(t, "the refusal of "+edit, func() error {
			if got := k.kubectl("get", "im", "chat", "-o", "jsonpath={.status.message}"); !strings.Contains(got, why) {
				return fmt.Errorf("%q", got)
			}
			return nil
		})
	}
	if got := k.kubectl("get", "pods", "-o", "name"); got != pod {
		t.Errorf("the pod was %s and is %s", pod, got)
	}
}
