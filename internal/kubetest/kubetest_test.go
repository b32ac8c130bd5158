package kubetest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// deployment returns a Deployment "web" of the test server with this node pool, replicas and
// further fields of the container.
const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {pool: %q}
      terminationGracePeriodSeconds: 20
      containers:
      - name: engine
        image: test
        command: [server, serve, "0.0.0.0:$(PORT)"]
        env:
        - {name: PORT, value: "8000"}
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: WHERE, value: "$(POD_IP):$(PORT)"}
        ports: [{name: http, containerPort: 8000}]
        startupProbe: {httpGet: {path: /ready, port: http}, failureThreshold: 120, periodSeconds: 1}
        readinessProbe: {httpGet: {path: /ready, port: 8000}, failureThreshold: 1}
        livenessProbe: {httpGet: {path: /alive, port: 8000}, failureThreshold: 2}
        lifecycle: {preStop: {sleep: {seconds: 1}}}
`

// cluster returns the shared cluster with a new namespace and node. The pool of the node has the
// namespace's name.
func cluster(t *testing.T, capacity map[string]string) (*Cluster, string, *Node) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	c := Shared(t)
	namespace := c.Namespace(t)
	return c, namespace, pool(t, c, namespace, capacity)
}

// pool adds a node with the label of a pool.
func pool(t *testing.T, c *Cluster, name string, capacity map[string]string) *Node {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.Programs["server"] = self
	nodes := strings.Count(c.Kubectl(t, "get", "nodes", "--selector", "pool="+name, "--output", "name"), "\n")
	n := c.Node(t, fmt.Sprintf("%s-%d", name, nodes), capacity)
	c.Kubectl(t, "label", "node", n.Name, "pool="+name)
	return n
}

func pods(t *testing.T, c *Cluster, namespace string) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := json.Unmarshal([]byte(c.Kubectl(t, "get", "pods", "--namespace", namespace, "--output", "json")), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// ready waits until there are exactly so many pods and all are ready.
func ready(t *testing.T, c *Cluster, namespace string, want int) []corev1.Pod {
	t.Helper()
	var all []corev1.Pod
	eventually(t, fmt.Sprintf("%d pods are ready", want), func() error {
		all = pods(t, c, namespace)
		if len(all) != want {
			return fmt.Errorf("there are %d", len(all))
		}
		for _, p := range all {
			if !isReady(p) {
				return fmt.Errorf("%s: %+v", p.Name, p.Status)
			}
		}
		return nil
	})
	return all
}

func isReady(p corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// get sends a request to a pod's server.
func get(p corev1.Pod, path string) (string, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	response, err := client.Get("http://" + p.Status.PodIP + ":8000" + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func TestDeployment(t *testing.T) {
	c, namespace, _ := cluster(t, nil)
	c.Apply(t, namespace, fmt.Sprintf(deployment, 3, namespace))
	three := ready(t, c, namespace, 3)
	addresses := map[string]bool{}
	for _, p := range three {
		addresses[p.Status.PodIP] = true
		for name, want := range map[string]string{"POD_NAME": p.Name, "WHERE": p.Status.PodIP + ":8000"} {
			if value, err := get(p, "/env/"+name); err != nil || value != want {
				t.Errorf("%s has %s=%q, %v; want %q", p.Name, name, value, err, want)
			}
		}
		if log := c.Logs(p.Name); !strings.Contains(log, "serving at "+p.Status.PodIP) {
			t.Errorf("the log of %s has %q", p.Name, log)
		}
	}
	if len(addresses) != 3 {
		t.Errorf("the pods have the addresses %v; want three", addresses)
	}

	c.Kubectl(t, "scale", "--namespace", namespace, "deployment/web", "--replicas", "1")
	left := ready(t, c, namespace, 1)[0]
	for _, p := range three {
		if _, err := get(p, "/ready"); (err == nil) != (p.Name == left.Name) {
			t.Errorf("%s is left of three; %s says %v", left.Name, p.Name, err)
		}
		if log := c.Logs(p.Name); p.Name != left.Name && !strings.Contains(log, "good bye") {
			t.Errorf("%s was not asked to end: %q", p.Name, log)
		}
	}
}

func TestProbes(t *testing.T) {
	c, namespace, _ := cluster(t, nil)
	c.Apply(t, namespace, fmt.Sprintf(deployment, 1, namespace))
	p := ready(t, c, namespace, 1)[0]
	if _, err := get(p, "/set/ready/503"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod is not ready", func() error {
		if isReady(pods(t, c, namespace)[0]) {
			return fmt.Errorf("it is")
		}
		return nil
	})
	if _, err := get(p, "/set/ready/200"); err != nil {
		t.Fatal(err)
	}
	if n := ready(t, c, namespace, 1)[0].Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("not being ready has cost %d restarts", n)
	}

	if _, err := get(p, "/set/alive/500"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the container was restarted", func() error {
		s := pods(t, c, namespace)[0].Status.ContainerStatuses[0]
		if s.RestartCount != 1 || !s.Ready || s.LastTerminationState.Terminated == nil {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
	if log := c.Logs(p.Name); strings.Count(log, "serving at "+p.Status.PodIP) != 2 {
		t.Errorf("the log has %q; want two runs at one address", log)
	}
}

func TestGPU(t *testing.T) {
	c, namespace, _ := cluster(t, map[string]string{"nvidia.com/gpu": "1"})
	for _, gpus := range []string{"1", "2"} {
		c.Apply(t, namespace, fmt.Sprintf(container, "gpu-"+gpus, namespace,
			`command: [sleep, "300"], resources: {limits: {nvidia.com/gpu: `+gpus+`}}`))
	}
	eventually(t, "the pod that fits runs, and the other one waits", func() error {
		one, two := pods(t, c, namespace)[0], pods(t, c, namespace)[1]
		scheduled := two.Status.Conditions
		if !isReady(one) || len(scheduled) == 0 || !strings.Contains(scheduled[0].Message, "Insufficient nvidia.com/gpu") {
			return fmt.Errorf("%+v, %+v", one.Status, two.Status)
		}
		return nil
	})
}

func TestUser(t *testing.T) {
	c, namespace, _ := cluster(t, nil)
	c.Apply(t, namespace, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [pods], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader}]
`)
	as := "--kubeconfig=" + c.User(t, namespace, "reader")
	eventually(t, "the role is known", func() error {
		_, err := c.TryKubectl(t, as, "get", "pods")
		return err
	})
	for _, args := range [][]string{{as, "get", "secrets"}, {as, "get", "pods", "--namespace=default"}, {as, "delete", "pod", "x"}} {
		if out, err := c.TryKubectl(t, args...); err == nil || !strings.Contains(err.Error(), "Forbidden") {
			t.Errorf("%v: %q, %v; want it forbidden", args[1:], out, err)
		}
	}
}

func TestLose(t *testing.T) {
	c, namespace, first := cluster(t, nil)
	c.Apply(t, namespace, fmt.Sprintf(deployment, 2, namespace))
	before := ready(t, c, namespace, 2)
	second := pool(t, c, namespace, nil)
	first.Lose(t)
	for _, p := range before {
		if _, err := get(p, "/ready"); err == nil {
			t.Errorf("%s still answers after its node was lost", p.Name)
		}
	}
	for _, p := range ready(t, c, namespace, 2) {
		if p.Spec.NodeName != second.Name {
			t.Errorf("%s is on %s; want %s", p.Name, p.Spec.NodeName, second.Name)
		}
	}
}

func TestAPIAway(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	c := Start(t)
	namespace := c.Namespace(t)
	pool(t, c, namespace, nil)
	c.Apply(t, namespace, fmt.Sprintf(deployment, 1, namespace))
	p := ready(t, c, namespace, 1)[0]

	c.StopAPI(t)
	if _, err := c.TryKubectl(t, "get", "nodes"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("kubectl says %v; want that it is refused", err)
	}
	// Changes during the outage are reported afterwards.
	if _, err := get(p, "/exit/3"); err == nil {
		t.Error("the server did not exit")
	}
	eventually(t, "the server runs again", func() error {
		_, err := get(p, "/ready")
		return err
	})

	c.StartAPI(t)
	eventually(t, "the restart is known", func() error {
		s := pods(t, c, namespace)[0].Status.ContainerStatuses[0]
		if s.RestartCount != 1 || s.LastTerminationState.Terminated.ExitCode != 3 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	c.Kubectl(t, "scale", "--namespace", namespace, "deployment/web", "--replicas", "2")
	ready(t, c, namespace, 2)
}

// The pods of a namespace with a node of its own leave other nodes alone, and those of another
// namespace leave that node alone.
func TestReservedNodes(t *testing.T) {
	c, first, node := cluster(t, map[string]string{"pods": "2"})
	second := c.Namespace(t)
	pool(t, c, first, nil).Reserve(t, second)
	node.Reserve(t, first)
	for _, namespace := range []string{first, second} {
		c.Apply(t, namespace, fmt.Sprintf(deployment, 2, first))
	}
	for namespace, want := range map[string]string{first: node.Name, second: first + "-1"} {
		for _, p := range ready(t, c, namespace, 2) {
			if p.Spec.NodeName != want {
				t.Errorf("a pod of %s runs on %s, not on %s", namespace, p.Spec.NodeName, want)
			}
		}
	}
}
