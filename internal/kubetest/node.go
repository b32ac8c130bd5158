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

// Node makes a node that is Ready and runs the pods that the scheduler gives to it. Its capacity is 64 CPUs, 256Gi of memory and 200 pods, and what is
// given here besides or instead, as "nvidia.com/gpu": "2". It has the usual labels of a host. It is lost when the test ends.
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
	// The kubelet does not end with the test's context but after the test's own cleanups.
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	n := &Node{Name: name, cluster: c, programs: maps.Clone(c.Programs), stop: stop}
	t.Cleanup(func() { n.end(t) })
	if err := n.register(ctx, resources); err != nil {
		t.Fatal(err)
	}
	n.running.Go(func() { n.watch(ctx) })
	return n
}

func (n *Node) register(ctx context.Context, capacity corev1.ResourceList) error {
	nodes := n.cluster.client.CoreV1().Nodes()
	labels := map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"}
	made, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	now := metav1.Now()
	made.Status = corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}, {Type: corev1.NodeHostName, Address: n.Name}},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
		}},
	}
	_, err = nodes.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

// pods is how to reach pods of all namespaces, or of one.
func (n *Node) pods(namespace string) typedv1.PodInterface {
	return n.cluster.client.CoreV1().Pods(namespace)
}

// ours selects the pods that are bound to the node.
func (n *Node) ours() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.Name).String()}
}

// watch runs the pods until the context ends. While the API server is away they go on as they are.
func (n *Node) watch(ctx context.Context) {
	k := &kubelet{node: n, pods: map[types.UID]*pod{}}
	defer k.wait()
	for ctx.Err() == nil {
		_ = n.follow(ctx, k) // the API server was stopped, or it ended the watch: the next look tells
		pause(ctx)
	}
}

// follow tells the kubelet what pods there are, until a watch ends.
func (n *Node) follow(ctx context.Context, k *kubelet) error {
	list, err := n.pods("").List(ctx, n.ours())
	if err != nil {
		return err
	}
	k.sync(ctx, list.Items)
	options := n.ours()
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
		k.see(ctx, p, event.Type)
	}
	return nil
}

// Lose is the end of the machine: its processes are killed, the node object goes, and its pods are deleted with force, which in a real cluster is done
// after a while by the controller that collects the pods of nodes that are no more.
func (n *Node) Lose(t testing.TB) {
	t.Helper()
	n.kill()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := n.remove(ctx); err != nil {
		t.Fatal(err)
	}
}

// kill ends the kubelet and all processes of the node, at once.
func (n *Node) kill() {
	n.stop()
	n.running.Wait()
}

// remove takes the node and its pods out of the API.
func (n *Node) remove(ctx context.Context) error {
	// The node goes first, so that the scheduler has no place for successors of the pods there.
	if err := n.cluster.client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	list, err := n.pods("").List(ctx, n.ours())
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

// end is for the end of the test. A test may have left the API server stopped: then there is nobody to whom it matters what is in the API.
func (n *Node) end(t testing.TB) {
	n.kill()
	if n.cluster.api.alive() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := n.remove(ctx); err != nil {
		t.Error(err)
	}
}

// Logs is what the containers of a pod have printed, all runs of it one after the other. Pods of that name in several namespaces are joined.
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

// pause waits a little before something is tried again.
func pause(ctx context.Context) {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
