package local

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// gpus returns a node with the GPUs GPU-0, GPU-1 and so on.
func gpus(n int) engines.Node {
	node := engines.Node{Name: "here", CPUs: 16, Memory: 64 << 30}
	for i := range n {
		node.GPUs = append(node.GPUs, engines.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i})
	}
	return node
}

// divided adds a GPU with this number of MIG devices.
func divided(node engines.Node, parts int) engines.Node {
	index := len(node.GPUs)
	for i := range parts {
		node.GPUs = append(node.GPUs, engines.GPU{UUID: fmt.Sprintf("MIG-%d-%d", index, i), Index: index, MIG: true})
	}
	return node
}

func TestNodeWithoutGPUs(t *testing.T) {
	t.Parallel()
	node := nodeWithoutGPUs()
	if node.Name == "" || node.CPUs < 1 || node.Memory < 1<<20 {
		t.Errorf("this node: %+v", node)
	}
	if diff := cmp.Diff([]string(nil), engines.Replica{}.Devices()); diff != "" {
		t.Error(diff)
	}
}

// TestN5_TheNodeIsTheContainer: a node has the CPUs and the memory that the cgroup of Sluice
// allows, and not those of the machine around the container.
func TestN5_TheNodeIsTheContainer(t *testing.T) {
	const variable = "LOCAL_TEST_NODE"
	if os.Getenv(variable) != "" {
		node := nodeWithoutGPUs()
		fmt.Printf("node: %g CPUs, %d bytes\n", node.CPUs, node.Memory)
		return
	}
	procs := limitedCgroup(t, 0.5, 1<<30)
	script := fmt.Sprintf(`for file in %s; do echo $$ >"$file" || exit; done; exec "$0" -test.run='^TestN5_TheNodeIsTheContainer$'`, strings.Join(procs, " "))
	c := exec.Command("sh", "-c", script, os.Args[0])
	c.Env = append(os.Environ(), variable+"=1")
	out, err := c.CombinedOutput()
	if want := "node: 0.5 CPUs, 1073741824 bytes\n"; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v: %s, want %s", err, out, want)
	}
}

// limitedCgroup makes a cgroup with limits, or one for each controller with version 1. It returns
// the files that processes are put into.
func limitedCgroup(t *testing.T, cpus float64, memory int64) (procs []string) {
	t.Helper()
	quota, bytes := fmt.Sprint(int(cpus*cpuPeriod)), fmt.Sprint(memory)
	limits := map[string]map[string]string{"": {"cpu.max": quota, "memory.max": bytes}}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		limits = map[string]map[string]string{"cpu": {"cpu.cfs_quota_us": quota}, "memory": {"memory.limit_in_bytes": bytes}}
	}
	for controller, files := range limits {
		path, err := os.MkdirTemp(filepath.Join("/sys/fs/cgroup", controller), "sluice-test-")
		if err != nil {
			t.Skipf("no cgroup can be made: %v", err)
		}
		t.Cleanup(func() { _ = os.Remove(path) })
		for file, value := range files {
			if err := os.WriteFile(filepath.Join(path, file), []byte(value), 0o600); err != nil {
				t.Skipf("the cgroup takes no limit: %v", err)
			}
		}
		procs = append(procs, filepath.Join(path, "cgroup.procs"))
	}
	return procs
}

// stuck is a driver that does not answer until it is released.
type stuck struct {
	release chan struct{}
	node    engines.Node
}

func (s stuck) Read() (engines.Node, error) {
	<-s.release
	return s.node, nil
}

func TestDriverThatHangs(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	s := stuck{make(chan struct{}), gpus(1)}
	c := w.config()
	c.Inventory = s
	l := New(c)
	l.readTimeout = 300 * time.Millisecond
	l.Set([]Model{w.needs("gpu", 1, engines.Resources{GPU: 1}), w.needs("cpu", 1, engines.Resources{CPU: 0.001}), w.model("bare", 1)})
	stop := run(t, l)
	w.awaitReady("bare", 1)
	w.awaitReady("cpu", 1)
	w.eventually("the one with a GPU is told why", func() bool {
		return w.replica("gpu-0").Reason == "needs 1 GPU, this node has none (NVIDIA's driver does not answer)"
	})
	if got := w.sees("cpu-0"); got != "[]" {
		t.Errorf("a replica that was given no GPU sees %s while nobody knows which there are", got)
	}
	if node := l.Node(); node.Reason != "NVIDIA's driver does not answer" || node.CPUs < 1 || len(node.GPUs) != 0 {
		t.Errorf("%+v", node)
	}
	stop() // must not wait for the driver
	l = New(c)
	l.readTimeout = time.Millisecond
	l.Adopt([]Model{w.needs("gpu", 1, engines.Resources{GPU: 1})})
	run(t, l)
	w.eventually("it hangs again", func() bool { return l.Node().Reason != "" })
	close(s.release)
	w.awaitReady("gpu", 1)
	if node := l.Node(); node.Reason != "" || len(node.GPUs) != 1 || node.Name != "here" {
		t.Errorf("%+v", node)
	}
}

// hanging is a driver that lists its devices once and then never answers.
type hanging struct {
	node  engines.Node
	first chan struct{}
	rest  chan struct{}
}

func (h hanging) Read() (engines.Node, error) {
	select {
	case <-h.first:
	case <-h.rest:
	}
	return h.node, nil
}

func TestDriverThatHangsLater(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	h := hanging{gpus(2), make(chan struct{}, 1), make(chan struct{})}
	defer close(h.rest)
	h.first <- struct{}{}
	c := w.config()
	c.Inventory, c.ReadEvery = h, time.Millisecond
	l := New(c)
	l.readTimeout = 20 * time.Millisecond
	l.Set([]Model{w.needs("chat", 1, engines.Resources{GPU: 1})})
	run(t, l)
	w.awaitReady("chat", 1)
	w.eventually("it says so", func() bool { return l.Node().Reason == "NVIDIA's driver does not answer" })
	if r := w.replica("chat-0"); len(l.Node().GPUs) != 2 || r.State != engines.Ready || r.Reason != "" {
		t.Errorf("silence was taken for a loss: %+v, %+v", r, l.Node())
	}
	// A new replica does not wait for ever for a reading that never ends.
	l.Set([]Model{w.needs("chat", 2, engines.Resources{GPU: 1})})
	w.awaitReady("chat", 2)
}

// A driver that takes long is asked seldom, because each reading may wake GPUs that sleep.
func TestSlowDriversAreAskedSeldom(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		0: 10 * time.Second, 10 * time.Millisecond: 10 * time.Second, 100 * time.Millisecond: 20 * time.Second, 2 * time.Second: time.Minute, time.Hour: time.Minute,
	} {
		if got := pauseAfter(took, readInterval); got != want {
			t.Errorf("after a reading of %v: %v, want %v", took, got, want)
		}
	}
}

// After a restart of the gateway, a faulty driver has listed no devices yet. The devices of adopted
// replicas do not count as missing for that.
func TestAdoptedDeviceOfASilentDriver(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	m := w.needs("chat", 1, engines.Resources{GPU: 1})
	l := New(w.onRack(&rack{node: gpus(1)}))
	l.Set([]Model{m})
	stop := run(t, l)
	before := w.awaitReady("chat", 1)[0]
	w.crash(stop)
	l = New(w.onRack(&rack{node: gpus(0), err: fmt.Errorf("no answer")}))
	l.Adopt([]Model{m})
	run(t, l)
	w.eventually("the driver does not answer", func() bool { return l.Node().Reason == "no answer" })
	w.eventually("the loop knows", func() bool { return w.replica("chat-0").Node == "here" })
	if r := w.replica("chat-0"); r.PID != before.PID || r.Reason != "" {
		t.Errorf("%+v", r)
	}
}

func TestHostHasTheNameThatItIsGiven(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	c := w.onRack(&rack{node: gpus(0)})
	c.Name = "other"
	l := New(c)
	l.Set([]Model{w.model("chat", 1)})
	run(t, l)
	if r := w.awaitReady("chat", 1)[0]; r.Node != "other" {
		t.Errorf("it is on %q", r.Node)
	}
	w.eventually("so is the node", func() bool { return l.Node().Name == "other" })
}

func TestRestrict(t *testing.T) {
	t.Parallel()
	node := divided(gpus(2), 2) // GPU-0, GPU-1, MIG-2-0, MIG-2-1
	node.GPUs = append(node.GPUs, engines.GPU{UUID: "GPU-31", Index: 3}, engines.GPU{UUID: "GPU-32", Index: 4})
	node.Reason = "GPU 5 is lost"
	for list, want := range map[string]string{
		"": "", "-1": "", "NoDevFiles": "", "99": "", "GPU-": "", "GPU-3": "", "0x1": "",
		"0": "GPU-0", "1,0": "GPU-0 GPU-1", "1, 3": "GPU-1 GPU-31", "0,-1,1": "GPU-0", "0,,1": "GPU-0", "2": "MIG-2-0 MIG-2-1",
		"MIG-2-1": "MIG-2-1", "GPU-31": "GPU-31", "GPU-32,MIG-2-0,GPU-7,0": "MIG-2-0 GPU-32", "0,0": "GPU-0",
		"0,1,2,3,4": "GPU-0 GPU-1 MIG-2-0 MIG-2-1 GPU-31 GPU-32",
	} {
		got := restrict(node, list)
		var uuids []string
		for _, gpu := range got.GPUs {
			uuids = append(uuids, gpu.UUID)
		}
		reason := fmt.Sprintf("CUDA_VISIBLE_DEVICES=%q leaves %d of 6 devices; GPU 5 is lost", list, len(uuids))
		if len(uuids) == 6 {
			reason = node.Reason
		}
		if diff := cmp.Diff([]string{want, reason}, []string{strings.Join(uuids, " "), got.Reason}); diff != "" {
			t.Errorf("%q: %s", list, diff)
		}
	}
	if len(node.GPUs) != 6 || node.GPUs[5].UUID != "GPU-32" {
		t.Errorf("the reading was changed: %+v", node)
	}
	if got := restrict(engines.Node{Reason: "none"}, "0"); got.Reason != "none" {
		t.Errorf("of a node without GPUs it says %q", got.Reason)
	}
}

func TestInventoryOfAnOperatorsChoice(t *testing.T) {
	t.Setenv(visible, "GPU-1")
	node, err := withVisibleDevices(&rack{node: gpus(3)}).Read()
	if err != nil || len(node.GPUs) != 1 || node.GPUs[0].UUID != "GPU-1" {
		t.Errorf("%+v, %v", node, err)
	}
}
