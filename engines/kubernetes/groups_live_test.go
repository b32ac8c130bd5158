package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/sluice-gateway/sluice/engines"
)

// groupsCRD defines LeaderWorkerSets without the checks of the real definition.
const groupsCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: leaderworkersets.leaderworkerset.x-k8s.io}
spec:
  group: leaderworkerset.x-k8s.io
  scope: Namespaced
  names: {kind: LeaderWorkerSet, plural: leaderworkersets, singular: leaderworkerset, shortNames: [lws]}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// groupsController stands in for the controller of LeaderWorkerSets. As that one, it makes a
// StatefulSet of the leaders, and one of the workers for each leader, which owns it. When a pod is
// deleted or restarts, it deletes the leader in the foreground, and with it the group.
type groupsController struct {
	client    kubernetes.Interface
	groups    dynamic.ResourceInterface
	namespace string
}

// labelSet and labelIndex are the labels of pods by which the stand-in finds them.
const (
	labelSet   = "leaderworkerset.sigs.k8s.io/name"
	labelIndex = "leaderworkerset.sigs.k8s.io/worker-index"
)

// controlGroups installs LeaderWorkerSets and runs the stand-in until the test ends.
func (s *testNamespace) controlGroups() {
	s.t.Helper()
	s.Apply(s.t, s.namespace, groupsCRD)
	config, _, err := Access{Kubeconfig: s.Kubeconfig}.Connect()
	if err != nil {
		s.t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		s.t.Fatal(err)
	}
	c := &groupsController{client: client, groups: objects.Resource(groupsResource()).Namespace(s.namespace), namespace: s.namespace}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := c.reconcile(ctx); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				s.t.Log("stand-in controller:", err)
			}
			pause(ctx, 200*time.Millisecond)
		}
	}()
	s.t.Cleanup(func() {
		cancel()
		<-done
		s.Kubectl(s.t, "delete", "customresourcedefinition", "leaderworkersets.leaderworkerset.x-k8s.io")
	})
}

func (c *groupsController) reconcile(ctx context.Context) error {
	list, err := c.groups.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if err := c.reconcileSet(ctx, &list.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// reconcileSet makes the StatefulSets of one LeaderWorkerSet.
func (c *groupsController) reconcileSet(ctx context.Context, u *unstructured.Unstructured) error {
	d, err := leadersOf(u)
	if err != nil || d.DeletionTimestamp != nil {
		return err
	}
	owner := metav1.NewControllerRef(d, groupsResource().GroupVersion().WithKind(kindGroups))
	leaders := c.statefulSet(d.Name, d.Name, "0", d.Spec.Template, specReplicas(d), owner)
	if err := c.apply(ctx, leaders); err != nil {
		return err
	}
	pods, err := c.client.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: labelSet + "=" + d.Name})
	if err != nil {
		return err
	}
	var workers corev1.PodTemplateSpec
	template, _, err := unstructured.NestedMap(u.Object, "spec", "leaderWorkerTemplate", "workerTemplate")
	if err != nil {
		return err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, &workers); err != nil {
		return err
	}
	size, _, err := unstructured.NestedInt64(u.Object, "spec", "leaderWorkerTemplate", "size")
	if err != nil {
		return err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if err := c.restartGroup(ctx, p); err != nil {
			return err
		}
		if p.Labels[labelIndex] != "0" || p.DeletionTimestamp != nil {
			continue
		}
		owner := metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))
		sts := c.statefulSet(p.Name, d.Name, "1", workers, int(size)-1, owner)
		sts.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 1}
		if err := c.apply(ctx, sts); err != nil {
			return err
		}
	}
	return nil
}

// restartGroup deletes the leader of a pod that was deleted or that has restarted.
func (c *groupsController) restartGroup(ctx context.Context, p *corev1.Pod) error {
	restarted := slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.RestartCount > 0 })
	if p.DeletionTimestamp == nil && !restarted {
		return nil
	}
	name := p.Name
	if p.Labels[labelIndex] != "0" {
		name = name[:strings.LastIndexByte(name, '-')]
	}
	leader, err := c.client.CoreV1().Pods(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil || leader.DeletionTimestamp != nil || leader.CreationTimestamp.After(p.CreationTimestamp.Time) {
		return err
	}
	return c.client.CoreV1().Pods(c.namespace).Delete(ctx, name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &leader.UID}, PropagationPolicy: new(metav1.DeletePropagationForeground)})
}

func (c *groupsController) statefulSet(name, set, index string, template corev1.PodTemplateSpec, replicas int, owner *metav1.OwnerReference) *appsv1.StatefulSet {
	mergeInto(&template.Labels, map[string]string{labelSet: set, labelIndex: index, "test/statefulset": name})
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace, OwnerReferences: []metav1.OwnerReference{*owner}},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(replicas)), PodManagementPolicy: appsv1.ParallelPodManagement, Template: template, ServiceName: set,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"test/statefulset": name}},
		},
	}
}

// apply creates a StatefulSet, or sets its replicas.
func (c *groupsController) apply(ctx context.Context, want *appsv1.StatefulSet) error {
	api := c.client.AppsV1().StatefulSets(c.namespace)
	is, err := api.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && is.DeletionTimestamp == nil && *is.Spec.Replicas != *want.Spec.Replicas:
		is.Spec.Replicas = want.Spec.Replicas
		_, err = api.Update(ctx, is, metav1.UpdateOptions{})
	}
	return err
}

// groupEngine returns a model of the test binary's engine on two hosts, whose workers sleep.
func groupEngine(name string, desired int, change ...func(*Model)) Model {
	return engine(name, desired, append([]func(*Model){func(m *Model) {
		m.Hosts, m.Version.MultiHost = 2, engines.MultiHost{Worker: []string{"sleep", "100000"}}
	}}, change...)...)
}

// TestN4_LeaderWorkerSetFromZeroAndBack: a model on two hosts is a LeaderWorkerSet. Only its
// leaders are replicas. Its groups drain from the highest, restart as a whole, and end with their
// requests.
func TestN4_LeaderWorkerSetFromZeroAndBack(t *testing.T) {
	s := newTestNamespace(t, nil)
	g := s.gateway("g", nil)
	g.Set([]Model{groupEngine("m", 2), engine("other", 1)})
	g.waitReady("other", 1)
	waitUntil(t, "the missing API is reported", func() bool {
		return strings.Contains(g.Status().Blocked["m"], "the cluster has no LeaderWorkerSets")
	})
	s.controlGroups()
	ids := g.waitReady("m", 2)
	slices.SortFunc(ids, func(a, b string) int { return cmp.Compare(groupIndex(a), groupIndex(b)) })
	if r := g.replicas("m")[0]; r.Slots != 4 || !r.Address.IsValid() || groupIndex(ids[1]) != 1 {
		t.Errorf("the replicas are %v, one is %+v", ids, r)
	}
	waitUntil(t, "two groups of two pods", func() bool { return len(s.groupPods("m")) == 4 })
	if out := s.Kubectl(t, "get", "lws", "-n", s.namespace, "-o", "jsonpath={.items[*].spec.leaderWorkerTemplate.size} {.items[*].spec.replicas}"); out != "2 2" {
		t.Errorf("size and replicas are %s", out)
	}
	waitUntil(t, "the fault is gone", func() bool { return g.Status().Blocked["m"] == "" })

	// The highest group drains, although the other one has fewer requests.
	g.setRequests(ids[1], 1)
	g.Set([]Model{groupEngine("m", 1)})
	g.waitReplicas("m", "the highest drains", func(all []engines.Replica) bool {
		return slices.Equal(idsIn(all, engines.Draining), ids[1:]) && slices.Equal(idsIn(all, engines.Ready), ids[:1])
	})
	g.setRequests(ids[1], 0)
	g.waitReady("m", 1)
	waitUntil(t, "one group is left", func() bool { return len(s.groupPods("m")) == 2 })

	s.checkRestart(g, ids[0])
	g.Set(nil)
	waitUntil(t, "gone", func() bool { return g.IsGone("m", "") && len(s.groupPods("m")) == 0 })
}

// checkRestart deletes the worker of the only group of model m. The group then serves until its
// request has ended, and another comes.
func (s *testNamespace) checkRestart(g *gateway, leader string) {
	s.t.Helper()
	uid := func() string {
		out, _ := s.TryKubectl(s.t, "get", "pod", leader, "-n", s.namespace, "-o", "jsonpath={.metadata.uid}")
		return out
	}
	before := uid()
	g.setRequests(leader, 1)
	s.Kubectl(s.t, "delete", "pod", leader+"-1", "-n", s.namespace, "--wait=false")
	g.waitReplicas("m", "the group drains", func(all []engines.Replica) bool { return len(idsIn(all, engines.Draining)) == 1 })
	httpGet(s.t, g.replicas("m")[0], "/health")
	if phase := s.Kubectl(s.t, "get", "pod", leader+"-1", "-n", s.namespace, "-o", "jsonpath={.status.phase}"); phase != "Running" {
		s.t.Errorf("the worker of a leader with a request is %s", phase)
	}
	if uid() != before {
		s.t.Error("the leader was replaced while it had a request")
	}
	g.setRequests(leader, 0)
	waitUntil(s.t, "another group", func() bool { now := uid(); return now != "" && now != before })
	g.waitReady("m", 1)
	waitUntil(s.t, "with its worker", func() bool { return len(s.groupPods("m")) == 2 })
}

func (s *testNamespace) groupPods(model string) []string {
	s.t.Helper()
	out := s.Kubectl(s.t, "get", "pods", "-n", s.namespace, "-o", "name", "-l", labelModel+"="+modelHash(model))
	return strings.Fields(out)
}

// TestN4_AWorkerWithoutANodeIsTheReason: the replica of a group tells why the group is not whole.
func TestN4_AWorkerWithoutANodeIsTheReason(t *testing.T) {
	s := newTestNamespace(t, map[string]string{"nvidia.com/gpu": "1"})
	s.controlGroups()
	g := s.gateway("g", nil)
	g.Set([]Model{groupEngine("m", 1, env("CODE", strconv.Itoa(503)), func(m *Model) { m.Resources = &engines.Resources{GPU: 2} })})
	g.waitReplicas("m", "its worker has no node", func(all []engines.Replica) bool {
		return len(all) == 1 && all[0].State == engines.Starting && strings.Contains(all[0].Reason, "Insufficient nvidia.com/gpu") &&
			strings.HasPrefix(all[0].Reason, fmt.Sprintf("worker %s-1: ", all[0].ID))
	})
}
