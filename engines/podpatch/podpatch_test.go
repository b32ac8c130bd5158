package podpatch

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func patchOf(t *testing.T, text string) map[string]any {
	t.Helper()
	var patch map[string]any
	if err := yaml.Unmarshal([]byte(text), &patch); err != nil {
		t.Fatal(err)
	}
	return patch
}

// TestU13_Check lists what a patch may say and what not.
func TestU13_Check(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		``: "",
		`{metadata: {labels: {team: a}, annotations: {a/b: c}}, spec: {tolerations: [{key: a, operator: Exists, tolerationSeconds: 5}],
			nodeSelector: {a: b}, imagePullSecrets: [{name: s}], serviceAccountName: sa, priorityClassName: high,
			securityContext: {fsGroup: 1, seccompProfile: {type: RuntimeDefault}}, affinity: {}, runtimeClassName: nvidia}}`: "",
		`spec: {containers: [{name: engine, image: i, env: [{name: A, value: b}], resources: {limits: {cpu: 8, ephemeral-storage: 1Gi}},
			volumeMounts: [{name: v, mountPath: /v}], securityContext: {runAsUser: 5}}, {name: sidecar, image: s, command: [a], ports: [{containerPort: 1}]}]}`: "",
		`spec: {volumes: [{name: v, emptyDir: {sizeLimit: 5Gi}}, {name: w, configMap: {name: c}}]}`: "",
		`spec: {containers: [{name: other, $patch: delete}]}`:                                       "",
		`spec: {tolerations: [{$patch: replace}, {key: a}]}`:                                        "",
		`spec: {tolerationz: []}`:                                                        "spec.tolerationz: unknown",
		`spec: {volumes: [{name: v, emptydir: {}}]}`:                                     "spec.volumes.0.emptydir: unknown",
		`spec: {nodeSelector: [a]}`:                                                      "spec.nodeSelector: must be a mapping",
		`spec: {tolerations: {key: a}}`:                                                  "spec.tolerations: must be a list",
		`spec: {hostNetwork: "yes"}`:                                                     `spec.hostNetwork: must be true or false, is "yes"`,
		`spec: {priority: high}`:                                                         `spec.priority: must be a whole number, is "high"`,
		`spec: {serviceAccountName: 5}`:                                                  "spec.serviceAccountName: must be text, is 5",
		`spec: 5`:                                                                        "spec: must be a mapping",
		`spec: {volumes: [{name: v, emptyDir: {sizeLimit: x}}]}`:                         "spec.volumes.0.emptyDir.sizeLimit: must be a quantity",
		`spec: {containers: [{image: i}]}`:                                               "spec.containers.0: must have the field name",
		`spec: {restartPolicy: Never}`:                                                   "spec.restartPolicy: belongs to Sluice",
		`spec: {$patch: replace}`:                                                        "spec.$patch: would remove",
		`$retainKeys: [spec]`:                                                            "$retainKeys: would remove",
		`spec: {containers: [{$patch: replace}]}`:                                        "spec.containers.0: would remove",
		`spec: {containers: [{name: engine, $patch: delete}]}`:                           "spec.containers.0.$patch: would remove",
		`spec: {containers: [{name: engine, lifecycle: {}}]}`:                            "spec.containers.0.lifecycle: belongs to Sluice",
		`spec: {containers: [{name: engine, env: [{name: POD_IP, value: x}]}]}`:          "spec.containers.0.env.0: POD_IP",
		`spec: {containers: [{name: engine, env: [{$patch: replace}]}]}`:                 "spec.containers.0.env.0: would remove",
		`spec: {containers: [{name: engine, resources: {limits: {nvidia.com/gpu: 1}}}]}`: "spec.containers.0.resources.limits.nvidia.com/gpu: belongs",
		`metadata: {name: x}`:                                                            "metadata.name: belongs to Sluice",
		`metadata: {labels: {sluice.dev/deployment: x}}`:                                 "metadata.labels.sluice.dev/deployment: belongs to Sluice",
		`metadata: {labels: {$patch: replace}}`:                                          "metadata.labels.$patch: would remove",
	} {
		var got []string
		for _, f := range Check(patchOf(t, text)) {
			message := f.Message
			if message == "" {
				message = "unknown"
			}
			got = append(got, strings.Join(f.Path, ".")+": "+message)
		}
		if all := strings.Join(got, "\n"); want == "" && all != "" || !strings.HasPrefix(all, want) || len(got) > 1 {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestU13_Apply: lists are merged as kubectl merges them, and a volume replaces one of its name.
func TestU13_Apply(t *testing.T) {
	t.Parallel()
	original := corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: EngineContainer, Image: "i", Command: []string{"run"}, Env: []corev1.EnvVar{{Name: "A", Value: "a"}}}},
		Volumes:    []corev1.Volume{{Name: "downloads", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
	}}
	before, _ := json.Marshal(original)
	patch := patchOf(t, `{metadata: {labels: {team: x}}, spec: {priorityClassName: high, containers: [{name: engine, image: j, env: [{name: B, value: b}]}],
		volumes: [{name: downloads, persistentVolumeClaim: {claimName: c}}]}}`)
	got, err := Apply(original, patch)
	if err != nil {
		t.Fatal(err)
	}
	want := *original.DeepCopy()
	want.Labels, want.Spec.PriorityClassName = map[string]string{"team": "x"}, "high"
	want.Spec.Containers[0].Image = "j"
	want.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "B", Value: "b"}, {Name: "A", Value: "a"}}
	want.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if after, _ := json.Marshal(original); string(after) != string(before) {
		t.Errorf("the original was changed to %s", after)
	}
	if volume := patch["spec"].(map[string]any)["volumes"].([]any)[0].(map[string]any); len(volume) != 2 {
		t.Errorf("the patch was changed: %v", volume)
	}
}
