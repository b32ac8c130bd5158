package kubernetes

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sluice-gateway/sluice/engines"
)

// A replica that spreads over several hosts is a group of pods of a LeaderWorkerSet: a leader,
// which is the replica, and its workers. The launcher handles a LeaderWorkerSet as the Deployment
// of its leaders, of the kind kindGroups. Only this file knows the other form.
const (
	kindGroups = "LeaderWorkerSet"
	// roleWorker is the value of labelRole of workers.
	roleWorker = "worker"
	// annotationWorkers is on the template of the leaders: a hash of what the workers are, so that
	// other workers are another LeaderWorkerSet.
	annotationWorkers = "sluice.dev/workers"
	// maxGroupsName is the longest name of a LeaderWorkerSet. Its controller makes StatefulSets
	// with a number after the name, and Kubernetes makes labels of theirs with a hash.
	maxGroupsName = 48
)

// groupsResource is the resource of LeaderWorkerSets. It is not in client-go.
func groupsResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"}
}

// hasGroups reports whether a Deployment stands for a LeaderWorkerSet.
func hasGroups(d *appsv1.Deployment) bool { return d.Kind == kindGroups }

// isWorker reports whether a pod is a worker of a group.
func isWorker(p *corev1.Pod) bool { return p.Labels[labelRole] == roleWorker }

// leaderOf returns the name of a worker's leader: the worker's without the number.
func leaderOf(worker string) string {
	return worker[:max(0, strings.LastIndexByte(worker, '-'))]
}

// groupIndex returns the number of a leader's group, which its name ends with. A LeaderWorkerSet
// removes the group with the highest number first.
func groupIndex(leader string) int {
	n, _ := strconv.Atoi(leader[strings.LastIndexByte(leader, '-')+1:]) // 0 for the name of any other pod
	return n
}

// groups renders the LeaderWorkerSet of a model, as manifest renders a Deployment: the Deployment
// of its leaders, and the template of its workers.
func (in install) groups(m Model) (*appsv1.Deployment, *corev1.PodTemplateSpec, error) {
	if !m.Version.MultiHost.Supported() {
		return nil, nil, fmt.Errorf("the engine version cannot spread a replica over %d hosts", m.Hosts)
	}
	leader := m
	leader.Version, leader.Launch = m.Version.OnHosts(m.Launch, m.Hosts)
	d, err := in.render(leader)
	if err != nil {
		return nil, nil, err
	}
	workers, err := in.workers(m)
	if err != nil {
		return nil, nil, fmt.Errorf("workers: %w", err)
	}
	d.APIVersion, d.Kind = groupsResource().GroupVersion().String(), kindGroups
	data, _ := json.Marshal(workers) // Marshal cannot fail on plain data.
	mergeInto(&d.Spec.Template.Annotations, map[string]string{annotationWorkers: strconv.Itoa(m.Hosts) + "-" + hashPrefix(string(data), 16)})
	in.setOwnFields(d, m)
	mergeInto(&workers.Labels, in.modelLabels(m.Name))
	mergeInto(&workers.Labels, map[string]string{labelRole: roleWorker, labelDeployment: d.Name})
	mergeInto(&workers.Annotations, map[string]string{annotationModel: m.Name})
	return d, workers, nil
}

// workers returns the template of a model's workers without labels. The leader answers for them, so
// they have no port and no probe, also none of the engine version's own template.
func (in install) workers(m Model) (*corev1.PodTemplateSpec, error) {
	m.Version, m.Launch = m.Version.AsWorker(m.Launch, m.Hosts)
	d, err := in.render(m)
	if err != nil {
		return nil, err
	}
	containers := d.Spec.Template.Spec.Containers
	for i := range containers {
		if c := &containers[i]; c.Name == engineContainer {
			c.Ports, c.ReadinessProbe, c.LivenessProbe, c.StartupProbe = nil, nil, nil, nil
		}
	}
	return &d.Spec.Template, nil
}

// perHost returns the part of a replica's resources that each of its hosts has.
func (m Model) perHost() *engines.Resources {
	if m.Resources == nil || m.Hosts <= 1 {
		return m.Resources
	}
	hosts := float64(m.Hosts)
	return &engines.Resources{CPU: m.Resources.CPU / hosts, Memory: m.Resources.Memory / int64(m.Hosts), GPU: m.Resources.GPU / hosts}
}

// groupsSpec returns the spec of the LeaderWorkerSet that d stands for. A group is restarted as a
// whole, because no engine takes back a worker that was away.
func groupsSpec(d *appsv1.Deployment, workers *corev1.PodTemplateSpec, hosts int) map[string]any {
	return map[string]any{
		"replicas":      specReplicas(d),
		"startupPolicy": "LeaderCreated",
		"leaderWorkerTemplate": map[string]any{
			"size": hosts, "restartPolicy": "RecreateGroupOnPodRestart", "leaderTemplate": d.Spec.Template, "workerTemplate": workers,
		},
	}
}

// groupsObject returns the LeaderWorkerSet that d stands for.
func groupsObject(d *appsv1.Deployment, w wanted) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(map[string]any{
		"apiVersion": d.APIVersion, "kind": d.Kind, "metadata": d.ObjectMeta, "spec": groupsSpec(d, w.workers, w.Hosts),
	})
	if err != nil {
		return nil, err
	}
	u := new(unstructured.Unstructured)
	return u, u.UnmarshalJSON(data)
}

// leadersOf returns the Deployment that stands for a LeaderWorkerSet.
func leadersOf(u *unstructured.Unstructured) (*appsv1.Deployment, error) {
	var read struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Replicas             *int32 `json:"replicas"`
			LeaderWorkerTemplate struct {
				LeaderTemplate corev1.PodTemplateSpec `json:"leaderTemplate"`
			} `json:"leaderWorkerTemplate"`
		} `json:"spec"`
		Status struct {
			Replicas int32 `json:"replicas"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &read); err != nil {
		return nil, err
	}
	d := &appsv1.Deployment{TypeMeta: read.TypeMeta, ObjectMeta: read.ObjectMeta}
	d.Spec.Replicas, d.Spec.Template = read.Spec.Replicas, read.Spec.LeaderWorkerTemplate.LeaderTemplate
	d.Status.Replicas = read.Status.Replicas
	return d, nil
}
