package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// hierarchy returns the root of a cgroup version 2 hierarchy in which the test may make cgroups. It
// is mounted already, or hierarchy mounts it.
func hierarchy(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if before, after, _ := strings.Cut(line, " - "); strings.HasPrefix(after, "cgroup2 ") {
			return strings.Fields(before)[4]
		}
	}
	path := t.TempDir()
	if err := unix.Mount("none", path, "cgroup2", 0, ""); err != nil {
		t.Skipf("there is no cgroup v2, and it cannot be mounted: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, 0) })
	return path
}

func TestBornInItsCgroup(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	group, err := os.MkdirTemp(hierarchy(t), "sluice-test-")
	if err != nil {
		t.Skipf("no cgroup can be made: %v", err)
	}
	t.Cleanup(func() {
		testutil.Eventually(t, "its cgroup is empty", func() bool { return os.Remove(group) == nil })
	})
	file := filepath.Join(t.TempDir(), "pid")
	s := script("born", fmt.Sprintf(`cat /proc/self/cgroup; setsid sh -c 'echo $$ >%s; exec sleep 1000' & wait`, file))
	s.Cgroup = group
	p := start(t, d, s)
	t.Cleanup(func() { _ = p.Stop(t.Context(), 0) })
	child := pidFile(t, file)
	want := "0::" + "/" + filepath.Base(group) + "\n"
	for _, pid := range []int{p.PID(), child} {
		got, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || !strings.HasSuffix(string(got), want) {
			t.Errorf("process %d is in %q, want %q (%v)", pid, got, want, err)
		}
	}
	if got := p.Tail(20); !strings.HasSuffix(got[len(got)-1], strings.TrimSpace(want)) {
		t.Errorf("its first line was written in %q", got)
	}
	if got := pids(t, d.Path()); len(got) != 1 || d.Records()[0].Cgroup != group {
		t.Errorf("records: %+v", d.Records())
	}
	// While the child executes sleep(1), the kernel shows an empty environment for a moment.
	testutil.Eventually(t, "the directory owns the child", func() bool { return d.Owns(child) })
	if !d.Owns(os.Getpid()) || d.Owns(1) {
		t.Errorf("Owns: this process %v, want true; process 1 %v, want false", d.Owns(os.Getpid()), d.Owns(1))
	}
	if err := p.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
}

func TestCgroupThatIsNone(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	for _, path := range []string{t.TempDir(), "/no/such/cgroup"} {
		s := sleeper("s")
		s.Cgroup = path
		if p, err := d.Start(s); err == nil {
			t.Errorf("started as %d in %s", p.PID(), path)
		}
	}
	if got := d.Records(); len(got) != 0 {
		t.Errorf("records: %v", got)
	}
}

// Where clone3 is not permitted, the error names the setting of systemd that forbids it.
func TestACgroupNeedsClone3(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // without an unlock, the thread ends with the goroutine, and the filter with it
		if err := refuseClone3(); err != nil {
			failed <- err
			return
		}
		s := sleeper("s")
		s.Cgroup = t.TempDir()
		_, err := d.Start(s)
		failed <- err
	}()
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "RestrictNamespaces of a unit of systemd forbids it") {
		t.Errorf("the error is %v", err)
	}
}

// refuseClone3 has the kernel answer ENOSYS to clone3 on this thread, as RestrictNamespaces of
// systemd does.
func refuseClone3() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_CLONE3},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}

// TestOtherProcessesOfTheGatewayAreOurs: a program that the gateway runs for a moment carries no
// marker, nor does the process that this one replaces.
func TestOtherProcessesOfTheGatewayAreOurs(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	file := filepath.Join(t.TempDir(), "pid")
	child := exec.Command("sh", "-c", fmt.Sprintf(`sleep 1000 & echo $! >%s; wait`, file))
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-child.Process.Pid, syscall.SIGKILL)
		_ = child.Wait()
	})
	other := pidFile(t, file)
	if !d.Owns(child.Process.Pid) {
		t.Error("a child of this process is not ours")
	}
	if d.Owns(other) {
		t.Error("a child of another process is ours")
	}
	d.AddOwn(other)
	if !d.Owns(other) {
		t.Error("a process that was added is not ours")
	}
}

func TestGuardIsOurs(t *testing.T) {
	t.Parallel()
	path := stateDir(t)
	gateway := startGateway(t, gatewayPlan{Dir: path, Grace: testTimeout})
	guard := awaitGuard(t, path)
	d, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !d.Owns(guard) {
		t.Error("the guard is not ours")
	}
	kill9(gateway)
}
