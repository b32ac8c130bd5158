package kubetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Node is a node object with its stand-in kubelet.
type Node struct {
	Name string

	cluster  *Cluster
	programs map[string]string
	stop     context.CancelFunc
	running  sync.WaitGroup
}

// Node adds a ready node, which runs the pods that the scheduler assigns to it. Its capacity is 64
// CPUs, 256Gi of memory and 200 pods. capacity adds to these or replaces them, for example
// "nvidia.com/gpu": "2". The node has the usual labels. It is removed when the test ends.
func (c *Cluster) Node(t testing.TB, name string, capacity map[string]string) *Node {
	t.Helper()
	resources := corev1.ResourceList{}
	all := map[string]string{"cpu": "64", "memory": "256Gi", "pods": "200"}
	maps.Copy(all, capacity)
	for resourceName, text := range all {
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			t.Fatalf("capacity %s: %v", resourceName, err)
		}
		resources[corev1.ResourceName(resourceName)] = quantity
	}
	// The kubelet runs until the test's own cleanups have run, so it does not use the test's
	// context.
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	n := &Node{Name: name, cluster: c, programs: maps.Clone(c.Programs), stop: stop}
	t.Cleanup(func() { n.cleanUp(t) })
	if err := n.register(ctx, resources); err != nil {
		t.Fatal(err)
	}
	n.running.Go(func() { n.watch(ctx) })
	return n
}

// register creates the node object.
func (n *Node) register(ctx context.Context, capacity corev1.ResourceList) error {
	nodes := n.cluster.client.CoreV1().Nodes()
	labels := map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"}
	made, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	logs, err := n.serveLogs(ctx)
	if err != nil {
		return err
	}
	now := metav1.Now()
	made.Status = corev1.NodeStatus{
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: logs}},
		Capacity:        capacity, Allocatable: capacity,
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}, {Type: corev1.NodeHostName, Address: n.Name}},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
		}},
	}
	_, err = nodes.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

// Reserve keeps the node for a namespace: pods made there from now on run on the nodes that are
// kept for it, and on no others.
func (n *Node) Reserve(t testing.TB, namespace string) {
	t.Helper()
	const label = "kubetest/namespace"
	patch := func(kind, value string) []byte {
		return fmt.Appendf(nil, `{"metadata": {%q: {%s}}}`, kind, value)
	}
	core := n.cluster.client.CoreV1()
	_, err := core.Nodes().Patch(t.Context(), n.Name, types.MergePatchType, patch("labels", fmt.Sprintf("%q: %q", label, namespace)), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	selector := fmt.Sprintf(`"scheduler.alpha.kubernetes.io/node-selector": "%s=%s"`, label, namespace)
	if _, err := core.Namespaces().Patch(t.Context(), namespace, types.MergePatchType, patch("annotations", selector), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// pods returns the client for pods of one namespace, or of all.
func (n *Node) pods(namespace string) typedv1.PodInterface {
	return n.cluster.client.CoreV1().Pods(namespace)
}

// ownPods selects the pods that are assigned to the node.
func (n *Node) ownPods() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.Name).String()}
}

// watch runs the pods until ctx ends. While the API server is stopped the pods keep running.
func (n *Node) watch(ctx context.Context) {
	k := &kubelet{node: n, pods: map[types.UID]*pod{}}
	defer k.running.Wait()
	for ctx.Err() == nil {
		// The API server was stopped or has ended the watch. The next call shows which.
		_ = n.watchOnce(ctx, k)
		pause(ctx)
	}
}

// watchOnce passes the pods to the kubelet until a watch ends.
func (n *Node) watchOnce(ctx context.Context, k *kubelet) error {
	list, err := n.pods("").List(ctx, n.ownPods())
	if err != nil {
		return err
	}
	k.sync(ctx, list.Items)
	options := n.ownPods()
	options.ResourceVersion = list.ResourceVersion
	w, err := n.pods("").Watch(ctx, options)
	if err != nil {
		return err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		p, ok := event.Object.(*corev1.Pod)
		if !ok {
			return apierrors.FromObject(event.Object)
		}
		k.apply(ctx, p, event.Type)
	}
	return nil
}

// Lose simulates the loss of the machine. It kills the node's processes, deletes the node object,
// and deletes its pods by force. In a real cluster a controller deletes such pods after a while.
func (n *Node) Lose(t testing.TB) {
	t.Helper()
	n.kill()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := n.remove(ctx); err != nil {
		t.Fatal(err)
	}
}

// kill stops the kubelet and kills all processes of the node.
func (n *Node) kill() {
	n.stop()
	n.running.Wait()
}

// remove deletes the node object and its pods.
func (n *Node) remove(ctx context.Context) error {
	// The node is deleted first, so that the scheduler cannot assign new pods to it.
	if err := n.cluster.client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	list, err := n.pods("").List(ctx, n.ownPods())
	if err != nil {
		return err
	}
	for _, p := range list.Items {
		if err := n.pods(p.Namespace).Delete(ctx, p.Name, *metav1.NewDeleteOptions(0)); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// cleanUp removes the node when the test ends. If the test has left the API server stopped, the
// objects do not matter.
func (n *Node) cleanUp(t testing.TB) {
	n.kill()
	if n.cluster.api.checkAlive() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if err := n.remove(ctx); err != nil {
		t.Error(err)
	}
}

// Logs returns the output of a pod's containers, all runs in order. It joins the output of pods of
// the same name in several namespaces.
func (c *Cluster) Logs(name string) string {
	paths, err := filepath.Glob(filepath.Join(c.dir, "pods", "*", name, "log"))
	if err != nil {
		return err.Error()
	}
	var all string
	for _, path := range paths {
		text, err := os.ReadFile(path)
		all += string(text)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			all += fmt.Sprintln(err)
		}
	}
	return all
}

// pause waits for pollInterval or until ctx ends.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(pollInterval):
	}
}
