package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// roleKey is the environment variable that makes the test binary play another part, see TestMain.
const roleKey = "PROCESS_TEST_ROLE"

// testTimeout bounds every wait. It is long enough for a busy machine.
const testTimeout = testutil.Patience

func TestMain(m *testing.M) {
	switch os.Getenv(roleKey) {
	case "":
		goleak.VerifyTestMain(m)
	case "gateway":
		playGateway()
	case "guard":
		playGuard(os.Args[1], os.Args[2])
	}
}

// gatewayPlan says what a gateway in a process of its own does: it claims, starts processes and a
// guard, and then sleeps.
type gatewayPlan struct {
	Dir   string
	Start []Spec
	// Unrecorded processes lose their record, as if the gateway had died before it wrote the
	// record.
	Unrecorded []string
	// Stay makes the gateway go on when it is told to stop.
	Stay bool
	// Grace is the grace of the guard. 0 means that there is no guard.
	Grace time.Duration
}

// playGateway reads the plan from stdin, says when it is ready, and waits to be killed or told to
// stop.
func playGateway() {
	var plan gatewayPlan
	check(json.NewDecoder(os.Stdin).Decode(&plan))
	check(RaiseFileLimit())
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, StopSignal) // others send it as soon as the claim names this process
	d, err := Open(plan.Dir, nil)
	check(err)
	check(d.Claim(context.Background()))
	for _, s := range plan.Start {
		_, err := d.Start(s)
		check(err)
	}
	for _, name := range plan.Unrecorded {
		check(os.Remove(d.recordPath(name)))
		check(os.Remove(d.recordPath(name) + copySuffix))
	}
	if plan.Grace > 0 {
		check(d.StartGuard(guardCommand(plan.Dir, plan.Grace)))
	}
	fmt.Println("ready")
	<-stop
	for plan.Stay {
		<-stop
	}
}

func playGuard(dir, grace string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	d, err := time.ParseDuration(grace)
	check(err)
	log, err := zap.NewDevelopment()
	check(err)
	check(RunGuard(ctx, dir, d, log))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// guardCommand uses env(1), because a guard inherits the environment of the process that starts it.
func guardCommand(dir string, grace time.Duration) []string {
	return []string{"/usr/bin/env", roleKey + "=guard", "GORACE=atexit_sleep_ms=0", os.Args[0], dir, grace.String()}
}

// startGateway runs the plan in a process of its own and returns when the plan is done.
func startGateway(t *testing.T, plan gatewayPlan) *exec.Cmd {
	t.Helper()
	input, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleKey+"=gateway")
	cmd.Stdin = strings.NewReader(string(input))
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// The gateway inherits a pipe without close-on-exec, as from a make with a job server. Its
	// children must not inherit the pipe.
	inherited, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	cmd.ExtraFiles = []*os.File{writer}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	t.Cleanup(func() { kill9(cmd) })
	line := make([]byte, 6)
	if _, err := io.ReadFull(output, line); err != nil {
		t.Fatalf("the gateway did not come up: %v", err)
	}
	return cmd
}

func kill9(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// stateDir returns a directory whose processes end with the test in any case.
func stateDir(t *testing.T) string {
	t.Helper()
	path := t.TempDir()
	t.Cleanup(func() {
		d, err := Open(path, nil)
		if err == nil {
			err = d.endAllProcesses(context.Background(), 0)
		}
		if err != nil {
			t.Error(err)
		}
		testutil.Eventually(t, "the guard ends", func() bool { return guardPID(path) == 0 })
	})
	return path
}

func claimedDir(t *testing.T) *Dir {
	t.Helper()
	return claim(t, stateDir(t))
}

func claim(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Release)
	return d
}

func start(t *testing.T, d *Dir, s Spec) *Process {
	t.Helper()
	p, err := d.Start(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// script returns a Spec that runs a shell script.
func script(name, text string) Spec { return Spec{Name: name, Command: []string{"sh", "-c", text}} }

func sleeper(name string) Spec { return Spec{Name: name, Command: []string{"sleep", "1000"}} }

func running(pid int) bool {
	s, ok := readStat(pid)
	return ok && !s.dead()
}

// awaitGuard waits until the guard has written its pid.
func awaitGuard(t *testing.T, dir string) (pid int) {
	t.Helper()
	testutil.Eventually(t, "there is a guard", func() bool {
		pid = guardPID(dir)
		return pid != 0
	})
	return pid
}

// pidFile waits for a script to write a pid.
func pidFile(t *testing.T, path string) (pid int) {
	t.Helper()
	testutil.Eventually(t, "a pid in "+filepath.Base(path), func() bool {
		data, err := os.ReadFile(path)
		if err != nil || !strings.HasSuffix(string(data), "\n") {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(data)))
		return err == nil
	})
	return pid
}

func isDone(p *Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

func wait(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(testTimeout):
		t.Fatalf("%s does not end", p.Record().Name)
	}
}

func TestClaimIsExclusive(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	other, err := Open(d.Path(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var taken *ClaimedError
	if err := other.Claim(t.Context()); !errors.As(err, &taken) || taken.PID != os.Getpid() {
		t.Errorf("Claim of a claimed directory = %v, want a ClaimedError with pid %d", err, os.Getpid())
	}
	if _, err := other.Start(sleeper("x")); !errors.Is(err, ErrNotClaimed) {
		t.Errorf("Start without the claim = %v, want %v", err, ErrNotClaimed)
	}
	if _, ok := other.Adopt("x"); ok {
		t.Error("Adopt works without the claim")
	}
	d.Release()
	if err := other.Claim(t.Context()); err != nil {
		t.Errorf("Claim of a released directory = %v", err)
	}
	other.Release()
}

func TestClaimOutlivesNoProcess(t *testing.T) {
	t.Parallel()
	path := stateDir(t)
	gateway := startGateway(t, gatewayPlan{Dir: path})
	d, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	var taken *ClaimedError
	if err := d.Claim(t.Context()); !errors.As(err, &taken) || taken.PID != gateway.Process.Pid {
		t.Fatalf("Claim beside a gateway = %v, want a ClaimedError with pid %d", err, gateway.Process.Pid)
	}
	_ = gateway.Process.Signal(syscall.SIGSTOP)
	if err := d.Claim(t.Context()); !errors.As(err, &taken) {
		t.Fatalf("Claim beside a stopped gateway = %v, want a ClaimedError", err)
	}
	// The test does not wait for it: it may still be dying, and then stays a zombie.
	_ = gateway.Process.Kill()
	if err := d.Claim(t.Context()); err != nil {
		t.Fatalf("Claim after the gateway's death = %v", err)
	}
	d.Release()
}
