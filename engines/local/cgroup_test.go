package local

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/process"
)

// kernel is a plain directory that behaves like a hierarchy of cgroups, as far as Sluice uses one.
type kernel struct {
	t    *testing.T
	root string
	*cgroups
	logs *observer.ObservedLogs
}

// newKernel returns a kernel with one cgroup, "/ours", with these processes and controllers. The
// test is in the cgroup own.
func newKernel(t *testing.T, own, controllers string, pids ...int) *kernel {
	t.Helper()
	core, logs := observer.New(zap.WarnLevel)
	dir, err := process.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	k := &kernel{t: t, root: t.TempDir(), cgroups: newCgroups(dir, zap.New(core)), logs: logs}
	k.proc = t.TempDir()
	k.set(filepath.Join(k.proc, "cgroup"), "4:memory:/elsewhere\n0::"+own+"\n")
	k.set(filepath.Join(k.proc, "mountinfo"), "31 23 0:28 / "+k.root+" rw,relatime - cgroup2 cgroup2 rw\n")
	k.make("/ours", controllers)
	var all []string
	for _, pid := range pids {
		all = append(all, fmt.Sprintln(pid))
	}
	k.set(k.path("/ours/cgroup.procs"), strings.Join(all, ""))
	k.write, k.rmdir = k.obey, k.end
	k.owns = func(pid int) bool { return pid == os.Getpid() || pid == os.Getppid() }
	return k
}

func (k *kernel) path(name string) string { return filepath.Join(k.root, name) }

func (k *kernel) make(name, controllers string) {
	k.t.Helper()
	if err := os.MkdirAll(k.path(name), 0o700); err != nil {
		k.t.Fatal(err)
	}
	for file, text := range map[string]string{"controllers": controllers, "subtree_control": "", "procs": "", "type": "domain\n"} {
		k.set(k.path(name+"/cgroup."+file), text)
	}
}

func (k *kernel) set(path, text string) {
	k.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) get(name string) string { return strings.Join(words(k.path(name)), " ") }

// obey is a write as the kernel handles it. A process is in one cgroup at a time, and a cgroup with
// processes gives no controllers to its children.
func (k *kernel) obey(path, value string) error {
	switch filepath.Base(path) {
	case "cgroup.procs":
		for _, other := range []string{"/ours", "/ours/sluice"} {
			if procs := words(k.path(other + "/cgroup.procs")); slices.Contains(procs, value) {
				procs = slices.DeleteFunc(procs, func(pid string) bool { return pid == value })
				k.set(k.path(other+"/cgroup.procs"), strings.Join(procs, "\n"))
			}
		}
		k.set(path, strings.Join(append(words(path), value), "\n"))
	case "cgroup.subtree_control":
		if k.get("/ours/cgroup.procs") != "" {
			return syscall.EBUSY
		}
		k.set(path, strings.ReplaceAll(value, "+", ""))
	default:
		k.set(path, value)
	}
	return nil
}

// end is rmdir as the kernel handles it: it removes a cgroup with its files, but not one with
// processes.
func (k *kernel) end(path string) error {
	if len(words(filepath.Join(path, "cgroup.procs"))) > 0 {
		return syscall.EBUSY
	}
	if _, err := os.Stat(path); err != nil {
		return err
	}
	return os.RemoveAll(path)
}

func TestCgroupOfAReplica(t *testing.T) {
	t.Parallel()
	k := newKernel(t, "/ours", "cpuset cpu io memory pids", os.Getpid(), os.Getppid())
	if got := k.create("free-0", engines.Resources{GPU: 1}); got != "" || k.get("/ours/sluice/cgroup.procs") != "" {
		t.Errorf("a replica without limits got %q", got)
	}
	path := k.create("a/b-0", engines.Resources{CPU: 1.5, Memory: 4 << 30})
	if want := k.path("/ours/sluice-" + k.dir.ID() + "-a%2Fb-0"); path != want || k.fault != "" {
		t.Fatalf("it is %q, want %q; %s", path, want, k.fault)
	}
	got := map[string]string{}
	for _, file := range []string{"cpu.max", "memory.max", "memory.oom.group"} {
		got[file] = strings.Join(words(filepath.Join(path, file)), " ")
	}
	want := map[string]string{"cpu.max": "150000 100000", "memory.max": "4294967296", "memory.oom.group": "1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	moved := fmt.Sprintf("%d %d", os.Getpid(), os.Getppid())
	if k.get("/ours/cgroup.procs") != "" || k.get("/ours/sluice/cgroup.procs") != moved || k.get("/ours/cgroup.subtree_control") != "cpu memory" {
		t.Errorf("processes %q and %q, controllers %q", k.get("/ours/cgroup.procs"), k.get("/ours/sluice/cgroup.procs"), k.get("/ours/cgroup.subtree_control"))
	}
	tiny := k.create("tiny-0", engines.Resources{CPU: 0.001})
	if got := words(filepath.Join(tiny, "cpu.max")); !slices.Equal(got, []string{"1000", "100000"}) {
		t.Errorf("less than the kernel takes: %v", got)
	}
	if _, err := os.Stat(filepath.Join(tiny, "memory.max")); err == nil {
		t.Error("a limit of memory that nobody has asked for")
	}
}

// The kernel refuses a new process in a divided cgroup. So Sluice does not divide the one in which
// systemd starts it, unless systemd starts it in the leaf.
func TestTheCgroupOfAServiceIsDividedOnlyForALeaf(t *testing.T) {
	t.Parallel()
	const service = "/ours/sluice.service"
	r := engines.Resources{CPU: 1, Memory: 1 << 30}
	k := newKernel(t, service, "cpu memory")
	k.make(service, "cpu memory")
	k.set(k.path(service+"/cgroup.procs"), fmt.Sprintln(os.Getpid()))
	if got := k.create("chat-0", r); got != "" || !strings.Contains(k.fault, "set DelegateSubgroup=sluice in the unit") {
		t.Errorf("the replica got %q; %s", got, k.fault)
	}
	if got := k.get(service + "/cgroup.subtree_control"); got != "" {
		t.Errorf("the cgroup of the service has the controllers %q on", got)
	}
	k = newKernel(t, service+"/sluice", "cpu memory")
	k.make(service, "cpu memory")
	k.make(service+"/sluice", "cpu memory")
	k.set(k.path(service+"/sluice/cgroup.procs"), fmt.Sprintln(os.Getpid()))
	if got := k.create("chat-0", r); filepath.Dir(got) != k.path(service) || k.fault != "" {
		t.Errorf("from the leaf the replica got %q; %s", got, k.fault)
	}
	if got := k.get(service + "/cgroup.subtree_control"); got != "cpu memory" {
		t.Errorf("the cgroup of the service has the controllers %q on", got)
	}
}

func TestCgroupComesAndGoes(t *testing.T) {
	t.Parallel()
	k := newKernel(t, "/ours", "cpu memory")
	r := engines.Resources{Memory: 1 << 30}
	first := k.create("chat-0", r)
	k.set(filepath.Join(first, "memory.events"), "low 0\noom 1\noom_kill 2\n")
	if !outOfMemory(first) {
		t.Error("a kill was not seen")
	}
	if again := k.create("chat-0", r); again != first || outOfMemory(again) {
		t.Errorf("%q counts what %q has seen", again, first)
	}
	k.set(filepath.Join(first, "cgroup.procs"), "7")
	second := k.create("chat-0", r) // while something still ends in the first
	if second == first || !strings.HasPrefix(second, first) {
		t.Errorf("the second is %q", second)
	}
	k.remove(second)
	k.remove(second)
	if _, err := os.Stat(second); err == nil {
		t.Error("it was not removed")
	}
	// In the next run, Sluice runs in the leaf.
	if err := os.Mkdir(k.path("/ours/sluice-other-chat-0"), 0o700); err != nil {
		t.Fatal(err)
	}
	left, used := k.create("left-0", r), k.create("used-0", r)
	k.make("/ours/sluice", "cpu memory")
	k.set(filepath.Join(k.proc, "cgroup"), "0::/ours/sluice\n")
	k.removeStale(map[string]bool{used: true})
	for path, want := range map[string]bool{left: false, used: true, first: true, k.path("/ours/sluice-other-chat-0"): true, k.path("/ours/sluice"): true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", path, err == nil, want)
		}
	}
	if base, err := k.locate(); err != nil || base != k.path("/ours") {
		t.Errorf("the next run has %q, %v", base, err)
	}
}

func TestLimitsThatDoNotHold(t *testing.T) {
	t.Parallel()
	both := engines.Resources{CPU: 1, Memory: 1 << 30}
	for name, c := range map[string]struct {
		prepare func(k *kernel)
		pids    []int
		opened  bool
		want    string
	}{
		"version 1 only": {prepare: func(k *kernel) { k.set(filepath.Join(k.proc, "cgroup"), "4:memory:/x\n") }, want: "the kernel has no cgroups of version 2"},
		"not mounted":    {prepare: func(k *kernel) { k.set(filepath.Join(k.proc, "mountinfo"), "") }, want: "the cgroup /ours (version 2) of this process is not mounted here"},
		"outside of what is mounted": {prepare: func(k *kernel) { k.set(filepath.Join(k.proc, "cgroup"), "0::/../x\n") },
			want: "the cgroup /../x (version 2) of this process is not mounted here"},
		"no controllers": {prepare: func(k *kernel) { k.set(k.path("/ours/cgroup.controllers"), "hugetlb") },
			want: "neither of the controllers cpu and memory is there in the cgroup "},
		"one controller": {prepare: func(k *kernel) { k.set(k.path("/ours/cgroup.controllers"), "cpu") }, opened: true,
			want: "the controller memory is not there in the cgroup "},
		"others beside us":     {pids: []int{os.Getpid(), 1}, want: "process 1 in the cgroup "},
		"one that nobody sees": {pids: []int{os.Getpid(), 0}, want: "process 0 in the cgroup "},
		"a file that cannot be written": {prepare: func(k *kernel) { k.write = func(string, string) error { return syscall.EACCES } },
			want: "permission denied"},
		"always new ones": {pids: []int{os.Getpid()}, prepare: func(k *kernel) { k.write = func(string, string) error { return nil } },
			want: "new processes keep appearing in the cgroup "},
	} {
		k := newKernel(t, "/ours", "cpu memory", c.pids...)
		before := k.get("/ours/cgroup.procs")
		if c.prepare != nil {
			c.prepare(k)
		}
		for range 2 {
			if got := k.create("chat-0", both); (got != "") != c.opened {
				t.Errorf("%s: opened %q", name, got)
			}
		}
		if !strings.HasPrefix(k.fault, c.want) || k.logs.Len() != 1 || k.logs.All()[0].ContextMap()["reason"] != k.fault {
			t.Errorf("%s: %q, want %q; log: %v", name, k.fault, c.want, k.logs.All())
		}
		if got := k.get("/ours/cgroup.procs"); got != before {
			t.Errorf("%s: processes %q were moved and are now %q", name, before, got)
		}
	}
}

func TestMounted(t *testing.T) {
	t.Parallel()
	const mounts = "30 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" +
		"31 23 0:28 /a /mnt/with\\040space rw,relatime shared:4 - cgroup2 cgroup2 rw\n" +
		"32 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
	for cgroup, want := range map[string]string{
		"/a/b": "/mnt/with space/b", "/a": "/mnt/with space", "/": "/sys/fs/cgroup", "/ab": "/sys/fs/cgroup/ab", "/../x": "",
	} {
		if got, ok := mounted(mounts, cgroup); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v, want %q", cgroup, got, ok, want)
		}
	}
	long := strings.Repeat("x", 300)
	if a, b := cgroupName(long+"-0"), cgroupName(long+"-1"); a == b || len(a) > longestCgroup {
		t.Errorf("%s and %s", a, b)
	}
}

// If a process cannot be started in its cgroup, the replica runs without limits, and the log
// says why.
func TestReplicaRunsWithoutLimits(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	k := newKernel(t, "/ours", "cpu memory")
	l := New(w.config())
	k.dir, l.limits = w.dir, k.cgroups
	l.Set([]Model{w.needs("chat", 1, engines.Resources{CPU: 0.5})})
	run(t, l)
	w.awaitReady("chat", 1)
	l.limits.mu.Lock()
	got := l.limits.fault
	l.limits.mu.Unlock()
	if !strings.Contains(got, "bad file descriptor") || k.logs.Len() != 1 {
		t.Errorf("limits: %q, log: %v", got, k.logs.All())
	}
	if left, _ := filepath.Glob(k.path("/ours/sluice-*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// This test uses the real kernel. Even without controllers, replicas start in cgroups, which are
// removed with them.
func TestReplicaIsBornInItsCgroup(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	base, err := l.limits.locate()
	if err != nil {
		base = mountCgroups(t)
	}
	l.limits.prepared, l.limits.base = true, base // as if it had been permitted, with nothing to switch on
	name := "sluice-" + w.dir.ID() + "-chat-0"
	probe, err := l.limits.makeLocked("probe-0")
	if err != nil {
		t.Skipf("no cgroup can be made: %v", err)
	}
	l.Set([]Model{w.needs("chat", 1, engines.Resources{CPU: 0.5})})
	stop := run(t, l)
	r := w.awaitReady("chat", 1)[0]
	if got, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", r.PID)); !strings.Contains(string(got), "/"+name+"\n") {
		t.Errorf("it is in %q, want %s", got, name)
	}
	w.crash(stop)
	l = New(w.config())
	l.limits.proc = t.TempDir() // where our cgroup was found before
	for _, file := range []string{"cgroup", "mountinfo"} {
		text := map[string]string{"cgroup": "0::/\n", "mountinfo": "1 1 0:1 / " + base + " rw - cgroup2 none rw\n"}[file]
		if err := os.WriteFile(filepath.Join(l.limits.proc, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.Adopt(nil)
	if _, err := os.Stat(probe); err == nil {
		t.Error("an empty cgroup was left")
	}
	if _, err := os.Stat(filepath.Join(base, name)); err != nil {
		t.Error("the cgroup of an adopted replica was removed")
	}
	run(t, l)
	w.eventually("it has left", func() bool { return !processRuns(r.PID) })
	w.eventually("with its cgroup", func() bool { _, err := os.Stat(filepath.Join(base, name)); return err != nil })
}

func mountCgroups(t *testing.T) string {
	t.Helper()
	path := t.TempDir()
	if err := syscall.Mount("none", path, "cgroup2", 0, ""); err != nil {
		t.Skipf("there is no cgroup v2, and it cannot be mounted: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(path, 0) })
	return path
}

func TestOutOfMemoryIsNamed(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	started, err := w.dir.Start(process.Spec{Name: "replica/chat-0", Command: []string{"sh", "-c", "echo last words; kill -9 $$"}})
	if err != nil {
		t.Fatal(err)
	}
	<-started.Done()
	r := New(w.config()).newRunner(w.model("chat", 1), 0)
	r.process, r.cgroup = started, t.TempDir()
	r.replica.Resources.Memory = 4 << 30
	events := filepath.Join(r.cgroup, "memory.events")
	for text, want := range map[string]string{
		"":                                      "signal: killed; its log ends: last words",
		"max 3\noom 0\noom_kill 0\n":            "signal: killed; its log ends: last words",
		"oom 1\noom_kill 1\noom_group_kill 1\n": "was killed: it used more than its 4 GiB of memory",
	} {
		if err := os.WriteFile(events, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := r.exitReason(); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for n, want := range map[int64]string{1 << 29: "0.5 GiB", 63<<30 + 1<<29: "63.5 GiB", 1 << 40: "1024 GiB"} {
		if got := gibibytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
