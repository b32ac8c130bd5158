package kubetest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// container returns a pod with this name, node pool and fields of its container.
const container = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {pool: %q}
  containers:
  - {name: engine, image: test, %s}
`

// status waits until the status of a pod's container satisfies holds.
func status(t *testing.T, c *Cluster, namespace, what string, holds func(corev1.ContainerStatus) bool) {
	t.Helper()
	eventually(t, what, func() error {
		all := pods(t, c, namespace)
		if len(all) != 1 || len(all[0].Status.ContainerStatuses) != 1 || !holds(all[0].Status.ContainerStatuses[0]) {
			return fmt.Errorf("%+v", all[0].Status)
		}
		return nil
	})
}

func TestCrashLoop(t *testing.T) {
	c, namespace, _ := cluster(t, nil)
	c.Apply(t, namespace, fmt.Sprintf(container, "crash", namespace,
		`command: [sh, -c, "echo no memory; exit 3"], terminationMessagePolicy: FallbackToLogsOnError`))
	status(t, c, namespace, "the container is in a crash loop", func(s corev1.ContainerStatus) bool {
		last := s.LastTerminationState.Terminated
		return s.RestartCount >= 2 && s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff" &&
			last != nil && last.ExitCode == 3 && strings.HasSuffix(last.Message, "no memory") && !s.Ready
	})
	if log := c.Logs("crash"); strings.Count(log, "no memory") < 3 {
		t.Errorf("the log has %q; want three runs at least", log)
	}
}

func TestWaitingReasons(t *testing.T) {
	tests := []struct{ name, container, reason, message string }{
		{"image", `command: [sleep, "9"], image: missing/vllm`, "ImagePullBackOff", "missing/vllm"},
		{"program", `command: [no-such-program]`, "ImagePullBackOff", "no-such-program"},
		{"command", `args: []`, "ImagePullBackOff", "needs a command"},
		{"field", `command: [sleep, "9"], env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]`, "CreateContainerConfigError", "A: "},
	}
	c, first, _ := cluster(t, nil)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			namespace := c.Namespace(t)
			text := strings.Replace(fmt.Sprintf(container, test.name, first, test.container), "image: test, ", "", 1)
			if !strings.Contains(text, "image:") {
				text = strings.Replace(text, "{name: engine", "{name: engine, image: test", 1)
			}
			c.Apply(t, namespace, text)
			status(t, c, namespace, "the container waits", func(s corev1.ContainerStatus) bool {
				w := s.State.Waiting
				return w != nil && w.Reason == test.reason && strings.Contains(w.Message, test.message) && s.RestartCount == 0
			})
			// A pod that never ran can be deleted too.
			c.Kubectl(t, "delete", "pod", "--namespace", namespace, test.name, "--timeout=60s")
		})
	}
}

func TestSecret(t *testing.T) {
	c, namespace, _ := cluster(t, nil)
	c.Apply(t, namespace, fmt.Sprintf(container, "secret", namespace,
		`command: [sh, -c, "echo $(TOKEN) $TOKEN; sleep 300"], env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}]`))
	status(t, c, namespace, "the container waits for the secret", func(s corev1.ContainerStatus) bool {
		return s.State.Waiting != nil && s.State.Waiting.Reason == "CreateContainerConfigError" && strings.Contains(s.State.Waiting.Message, `"hub"`)
	})
	c.Kubectl(t, "create", "secret", "generic", "hub", "--namespace", namespace, "--from-literal=token=s3cret")
	status(t, c, namespace, "the container runs", func(s corev1.ContainerStatus) bool { return s.Ready })
	eventually(t, "it has the secret", func() error {
		if log := c.Logs("secret"); log != "s3cret s3cret\n" {
			return fmt.Errorf("its log is %q", log)
		}
		return nil
	})
}

// A container that ignores SIGTERM is killed after its grace period, together with the processes
// that it has started.
func TestIgnoredSIGTERM(t *testing.T) {
	c, namespace, _ := cluster(t, nil)
	c.Apply(t, namespace, fmt.Sprintf(container, "stubborn", namespace,
		`command: [sh, -c, "trap 'echo heard' TERM; sleep 301 & echo $!; while :; do wait; done"]`))
	status(t, c, namespace, "the container runs", func(s corev1.ContainerStatus) bool { return s.Ready })
	var child string
	eventually(t, "it has a child", func() error {
		child = strings.TrimSpace(c.Logs("stubborn"))
		_, err := strconv.Atoi(child)
		return err
	})
	c.Kubectl(t, "delete", "pod", "--namespace", namespace, "stubborn", "--grace-period=2", "--timeout=60s")
	if !strings.Contains(c.Logs("stubborn"), "heard") {
		t.Error("the container did not get SIGTERM")
	}
	eventually(t, "the child is gone", func() error { return gone(child) })
}

// gone returns an error while the process exists.
func gone(pid string) error {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err == nil && !strings.Contains(string(stat), ") Z ") {
		return fmt.Errorf("the process exists: %s", stat)
	}
	return nil
}

// The processes of containers do not outlive the test process.
func TestOrphan(t *testing.T) {
	cmd := exec.Command(os.Args[0], "parent", t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || gone(strings.TrimSpace(pid)) == nil {
		t.Errorf("the parent says %q, %v; want the pid of its child", pid, err)
	}
	_ = cmd.Process.Kill() // Only this process may be killed.
	_ = cmd.Wait()
	eventually(t, "the child is gone", func() error { return gone(strings.TrimSpace(pid)) })
}

func TestAddresses(t *testing.T) {
	one, err := reserveSubnet()
	if err != nil {
		t.Fatal(err)
	}
	defer one.free()
	two, err := reserveSubnet()
	if err != nil {
		t.Fatal(err)
	}
	defer two.free()
	seen := map[string]bool{}
	for range 600 {
		for _, s := range []*subnet{one, two} {
			a := s.next()
			if ip := net.ParseIP(a); seen[a] || ip == nil || !ip.IsLoopback() {
				t.Fatalf("%q after %d others", a, len(seen))
			}
			seen[a] = true
		}
	}

	p, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", hostPort(p.number)); err == nil {
		conn.Close()
		t.Error("a port that is only reserved answers")
	}
	if l, err := net.Listen("tcp", hostPort(p.number)); err == nil {
		l.Close()
		t.Error("another process got the reserved port")
	}
	p.free()
	testutil.ListenAgain(t, hostPort(p.number)).Close()
}

func TestExpand(t *testing.T) {
	t.Parallel()
	env := map[string]string{"A": "x", "A_B.c": "y"}
	for text, want := range map[string]string{
		"": "", "$A": "$A", "$(A)": "x",
		"$$(A)": "$(A)", "$$$(A)": "$x", "$(B)": "$(B)", "$(A": "$(A",
		"-$(A)-$(A_B.c)-": "-x-y-", "$()": "$()", "100$": "100$",
	} {
		if got := expand(text, env); got != want {
			t.Errorf("%q becomes %q; want %q", text, got, want)
		}
	}
	p := &pod{ip: "127.1.2.3"}
	for text, want := range map[string]string{
		"0.0.0.0": "127.1.2.3", "--host=0.0.0.0:80": "--host=127.1.2.3:80", "10.0.0.0/8": "10.0.0.0/8", "0.0.0.01": "0.0.0.01",
		"::": "127.1.2.3", "[::]:80": "127.1.2.3:80", "fd00::1": "fd00::1", ":8001": "127.1.2.3:8001", ":x": ":x",
	} {
		if got := p.withPodAddress(text); got != want {
			t.Errorf("%q becomes %q; want %q", text, got, want)
		}
	}
}
