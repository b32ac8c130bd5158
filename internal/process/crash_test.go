package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// pids reads the recorded pids by name, without claiming the directory.
func pids(t *testing.T, dir string) map[string]int {
	t.Helper()
	d, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]int{}
	for _, r := range d.Records() {
		byName[r.Name] = r.PID
	}
	return byName
}

// findPID finds a process of the directory that no record names.
func findPID(t *testing.T, dir, argument string) (pid int) {
	t.Helper()
	d, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	all, err := listProcesses(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		id, _, ok := readMarker(s.pid)
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.pid))
		if ok && id == d.id && strings.Contains(string(line), argument) {
			return s.pid
		}
	}
	t.Fatalf("no process %q", argument)
	return 0
}

func TestProcessesSurviveTheGateway(t *testing.T) {
	t.Parallel()
	path := stateDir(t)
	meta := map[string]string{"port": "1234"}
	gateway := startGateway(t, gatewayPlan{Dir: path, Start: []Spec{
		{Name: "envoy", Purpose: "proxy", Command: []string{"sleep", "1000"}, Meta: meta},
		{Name: "replica/chat-0", Purpose: "replica", Command: []string{"sleep", "1001"}},
	}})
	before := pids(t, path)
	kill9(gateway)

	d := claim(t, path)
	if diff := cmp.Diff(before, pids(t, path)); diff != "" || len(before) != 2 {
		t.Fatalf("records changed (-before +after):\n%s", diff)
	}
	p, ok := d.Adopt("envoy")
	if !ok || p.PID() != before["envoy"] || p.Record().Purpose != "proxy" || !cmp.Equal(p.Record().Meta, meta) {
		t.Fatalf("Adopt = %+v, %v, want pid %d", p, ok, before["envoy"])
	}
	logFile := p.Record().LogFile
	onlyDescriptors(t, p.PID(), map[string]string{"0": os.DevNull, "1": logFile, "2": logFile})
	if isDone(p) {
		t.Error("Done of a running adopted process is closed")
	}
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait(t, p)
	if !strings.HasPrefix(p.ExitReason(), "ended (exit status unknown") {
		t.Errorf("ExitReason = %q", p.ExitReason())
	}
	if _, ok := d.Adopt("envoy"); ok {
		t.Error("a dead process was adopted")
	}
	other, ok := d.Adopt("replica/chat-0")
	if !ok {
		t.Fatal("the second process is not adopted")
	}
	if err := other.Stop(t.Context(), time.Second); err != nil || running(other.PID()) || !isDone(other) {
		t.Errorf("Stop of an adopted process = %v", err)
	}
}

func TestFamilyWithoutItsLeader(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	// The worker's environment does not have the marker, as if a program had overwritten it with
	// its title.
	text := fmt.Sprintf(`env -i sh -c 'echo $$ >%s; exec sleep 1000' & wait`, file)
	leader := exec.Command("sh", "-c", text)
	leader.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := leader.Start(); err != nil {
		t.Fatal(err)
	}
	worker := pidFile(t, file)
	defer func() { _ = syscall.Kill(worker, syscall.SIGKILL) }()
	id, err := identify(leader.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	records := []Record{{PID: id.PID, StartTime: id.StartTime, BootID: id.BootID, Token: newToken()}}
	knows := newProcessTree(records)
	if got, err := knows.members(); err != nil || len(got) != 2 {
		t.Fatalf("members = %+v (%v), want leader and worker", got, err)
	}
	// The leader is reaped, so only the worker still has its session id.
	kill9(leader)
	if got, _ := knows.members(); len(got) != 1 || got[0].pid != worker {
		t.Errorf("members = %+v, want the worker that was seen before", got)
	}
	if got, _ := newProcessTree(records).members(); len(got) != 0 {
		t.Errorf("members = %+v, want none: whose session this was is not certain", got)
	}
}

func TestWorkersOfAnAdoptedProcessEndWithIt(t *testing.T) {
	t.Parallel()
	path, file := stateDir(t), filepath.Join(t.TempDir(), "pid")
	// The worker's environment does not have the marker, as if a program had overwritten it with
	// its title.
	text := fmt.Sprintf(`env -i sh -c 'echo $$ >%s; exec sleep 1000' & wait`, file)
	gateway := startGateway(t, gatewayPlan{Dir: path, Start: []Spec{script("leader", text)}})
	worker := pidFile(t, file)
	kill9(gateway)
	d := claim(t, path)
	p, ok := d.Adopt("leader")
	if !ok {
		t.Fatal("the process was not adopted")
	}
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait(t, p)
	testutil.Eventually(t, "the worker ends with its leader", func() bool { return !running(worker) })
}

func TestReusedPIDIsNotTouched(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	bystander := exec.Command("sleep", "1000")
	bystander.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer kill9(bystander)
	id, err := identify(bystander.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Record){
		"another start time": func(r *Record) { r.StartTime-- },
		"another boot":       func(r *Record) { r.BootID = "another" },
	} {
		r := Record{Name: name, PID: id.PID, StartTime: id.StartTime, BootID: id.BootID, Token: newToken()}
		change(&r)
		if err := d.writeRecord(r); err != nil {
			t.Fatal(err)
		}
		if _, ok := d.Adopt(name); ok {
			t.Errorf("%s: adopted", name)
		}
		p := &Process{dir: d, record: r, unwatched: make(chan struct{})}
		close(p.unwatched)
		if err := p.Stop(t.Context(), 0); err != nil {
			t.Errorf("%s: Stop = %v", name, err)
		}
		if got := d.Records(); len(got) != 0 {
			t.Errorf("%s: Records = %v", name, got)
		}
	}
	if !running(id.PID) {
		t.Error("a process that only reuses a recorded pid was ended")
	}
}

func TestUnrecordedProcessEndsAtTheNextClaim(t *testing.T) {
	t.Parallel()
	path := stateDir(t)
	gateway := startGateway(t, gatewayPlan{Dir: path, Unrecorded: []string{"lost"},
		Start: []Spec{{Name: "lost", Command: []string{"sleep", "1002"}}, sleeper("kept")}})
	lost, kept := findPID(t, path, "1002"), pids(t, path)["kept"]
	kill9(gateway)
	claim(t, path)
	if running(lost) {
		t.Error("the process without a record still runs")
	}
	if !running(kept) {
		t.Error("the process with a record was ended")
	}
}

func TestGuardEndsWhatNobodyClaims(t *testing.T) {
	t.Parallel()
	path, file := stateDir(t), filepath.Join(t.TempDir(), "pid")
	gateway := startGateway(t, gatewayPlan{Dir: path, Grace: 100 * time.Millisecond, Unrecorded: []string{"lost"}, Start: []Spec{
		sleeper("a"), {Name: "lost", Command: []string{"sleep", "1003"}},
		script("b", fmt.Sprintf(`sh -c 'echo $$ >%s; exec sleep 1000' & wait`, file)),
	}})
	all := []int{findPID(t, path, "1003"), pidFile(t, file)}
	for _, pid := range pids(t, path) {
		all = append(all, pid)
	}
	guard := awaitGuard(t, path)
	kill9(gateway)
	testutil.Eventually(t, "everything is ended, the guard last", func() bool { return !running(guard) })
	if len(all) != 4 || guard == 0 {
		t.Fatalf("the test has lost track: processes %v, guard %d", all, guard)
	}
	for _, pid := range all {
		if running(pid) {
			t.Errorf("process %d still runs", pid)
		}
	}
	if names, _ := listDirectory(filepath.Join(path, "processes")); len(names) != 0 {
		t.Errorf("records are left: %v", names)
	}
}

func TestGuardLeavesWhatIsClaimedInTime(t *testing.T) {
	t.Parallel()
	const grace = 3 * time.Second // the claim must come in this time
	path := stateDir(t)
	gateway := startGateway(t, gatewayPlan{Dir: path, Grace: grace, Start: []Spec{sleeper("a")}})
	guard := awaitGuard(t, path)
	kill9(gateway)
	testutil.Eventually(t, "the guard notices", func() bool {
		log, _ := os.ReadFile(filepath.Join(path, "guard.log"))
		return strings.Contains(string(log), "state directory unclaimed")
	})
	d := claim(t, path)
	if err := d.StartGuard([]string{"/no/such/guard"}); err != nil {
		t.Errorf("StartGuard beside the old guard = %v", err)
	}
	// That the guard does nothing can be seen only after a wait.
	time.Sleep(grace + 500*time.Millisecond)
	p, ok := d.Adopt("a")
	if !ok || guardPID(path) != guard {
		t.Fatalf("adopted: %v; guard %d, before %d", ok, guardPID(path), guard)
	}
	if err := p.Stop(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if !running(guard) {
		t.Error("the guard left a claimed directory")
	}
	d.Release()
	testutil.Eventually(t, "the guard ends after a clean stop", func() bool { return !running(guard) })
}

func TestStoppedGatewayKeepsItsProcesses(t *testing.T) {
	t.Parallel()
	const grace = 50 * time.Millisecond
	path := stateDir(t)
	gateway := startGateway(t, gatewayPlan{Dir: path, Grace: grace, Start: []Spec{sleeper("a")}})
	pid := pids(t, path)["a"]
	if err := gateway.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(grace + heldPollInterval + 4*guardPollInterval)
	if !running(pid) {
		t.Error("the guard ended the processes of a gateway that is only stopped")
	}
	kill9(gateway)
	testutil.Eventually(t, "the guard ends them after its death", func() bool { return !running(pid) })
}

func TestGuardIsReplaced(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	command := guardCommand(d.Path(), time.Minute)
	if err := d.StartGuard(command); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- d.KeepGuard(ctx, command) }()
	first := awaitGuard(t, d.Path())
	if s, _ := readStat(first); s.session != first {
		t.Errorf("the guard is in session %d, want its own, %d", s.session, first)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "there is another guard", func() bool {
		now := guardPID(d.Path())
		return now != 0 && now != first
	})
	if _, ok := readStat(first); ok {
		t.Error("the first guard is not reaped")
	}
	cancel()
	if err := <-kept; err != nil {
		t.Errorf("KeepGuard = %v", err)
	}
	if guardPID(d.Path()) == 0 {
		t.Error("the guard ended with KeepGuard")
	}
}

func TestGuardThatDoesNotStart(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	if err := d.StartGuard([]string{"/no/such/guard"}); err == nil {
		t.Error("StartGuard started a program that does not exist")
	}
	err := d.StartGuard([]string{"sh", "-c", "echo no way; exit 1"})
	if err == nil || !strings.Contains(err.Error(), "no way") {
		t.Errorf("StartGuard = %v, want the guard's last words", err)
	}
}

func TestSecondGuardGoes(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- RunGuard(ctx, d.Path(), time.Hour, nil) }()
	awaitGuard(t, d.Path())
	if err := RunGuard(t.Context(), d.Path(), time.Hour, nil); err != nil {
		t.Errorf("RunGuard beside a guard = %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("RunGuard = %v, want %v", err, context.Canceled)
	}
	if err := RunGuard(t.Context(), filepath.Join(d.Path(), "none"), 0, nil); err == nil {
		t.Error("RunGuard accepted a directory that does not exist")
	}
}

func TestClaimWaitsForTheGuard(t *testing.T) {
	t.Parallel()
	path := stateDir(t)
	d, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := openLock(d.claimPath())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.close()
	if err := lock.acquire(roleGuard); err != nil {
		t.Fatal(err)
	}
	claimed := make(chan error, 1)
	go func() { claimed <- d.Claim(t.Context()) }()
	select {
	case err := <-claimed:
		t.Fatalf("Claim did not wait for the guard: %v", err)
	case <-time.After(liveHolderTimeout + 100*time.Millisecond):
	}
	lock.release()
	if err := <-claimed; err != nil {
		t.Errorf("Claim after the guard = %v", err)
	}
	d.Release()
}

func TestGuardOfARemovedDirectory(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	gateway := startGateway(t, gatewayPlan{Dir: path, Grace: 100 * time.Millisecond, Start: []Spec{sleeper("a")}})
	pid, guard := pids(t, path)["a"], awaitGuard(t, path)
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	kill9(gateway)
	testutil.Eventually(t, "process and guard end", func() bool { return !running(pid) && !running(guard) })
}

// The guard does not wait for its next look at the claim.
func TestGuardNoticesTheEndOfItsGateway(t *testing.T) {
	t.Parallel()
	path := stateDir(t)
	gateway := startGateway(t, gatewayPlan{Dir: path})
	lock, err := openLock(filepath.Join(path, "claim.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.close()
	g := guard{claim: lock, held: time.Hour}
	noticed := make(chan error, 1)
	go func() { noticed <- g.waitForRelease(t.Context()) }()
	select {
	case <-noticed:
		t.Fatal("the guard noticed an end that has not come")
	case <-time.After(200 * time.Millisecond): // it waits by then
	}
	kill9(gateway)
	select {
	case err := <-noticed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the guard did not notice the end")
	}
}
