// Package airflow_test runs the example's worker without Airflow against the batch API and a Models
// Backend. Go's test runner uses it to check the example.
package airflow_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// testEnv is the batch API, the Models Backend and the backlog of a worker.
type testEnv struct {
	*testing.T
	gateway *gateway
	backend *backend
	limits  map[string]admission.Limits
	db      string
	urls    []string // arguments of the worker
}

func setUp(t *testing.T, lease time.Duration) *testEnv {
	t.Parallel()
	// Go runs a cached test again if a file that the test has opened has changed.
	for _, file := range []string{"worker.py", "dag.py"} {
		if _, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	limits := map[string]admission.Limits{
		"small": {MaxConcurrent: 1, TokensPerMinute: 1_000_000}, "middle": {MaxConcurrent: 2, TokensPerMinute: 2_000_000, Weight: 2},
		"large": {MaxConcurrent: 3, TokensPerMinute: 3_000_000, Weight: 3},
	}
	b := &testEnv{T: t, limits: limits, backend: newBackend(limits), db: filepath.Join(t.TempDir(), "tasks.db"),
		gateway: &gateway{Controller: admission.New(admission.Config{}), lease: lease}}
	for model, l := range limits {
		b.gateway.SetLimits(model, l)
	}
	b.gateway.SetPools(map[string][]string{pool: slices.Sorted(maps.Keys(limits))})
	s := httptest.NewServer(b.backend)
	t.Cleanup(s.Close)
	b.urls = []string{"--sluice", b.gateway.serve(t), "--backend", s.URL}
	return b
}

// python runs a command of the worker until it ends.
func (b *testEnv) python(args ...string) string {
	b.Helper()
	cmd, out := b.start(args...)
	if err := cmd.Wait(); err != nil {
		b.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out.String()
}

// start starts a command of the worker. The command is killed if it takes too long. Read the output
// after it has ended.
func (b *testEnv) start(args ...string) (*exec.Cmd, *bytes.Buffer) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	cmd, out := exec.CommandContext(ctx, "python3", append([]string{"worker.py", "--db", b.db}, args...)...), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if err := cmd.Start(); err != nil {
		cancel()
		b.Fatalf("the worker needs python3: %v", err)
	}
	b.Cleanup(func() {
		cmd.Process.Kill() // Kill at once, because the context kills in a goroutine.
		cancel()
	})
	return cmd, out
}

func (b *testEnv) run(args ...string) []string { return slices.Concat([]string{"run"}, b.urls, args) }

// load adds n tasks.
func (b *testEnv) load(n int) {
	b.Helper()
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, `{"id": "t%d", "prompt": "p%d", "estimated_tokens": 500}`+"\n", i, i)
	}
	file := filepath.Join(b.TempDir(), "tasks.jsonl")
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	if out := b.python("load", file); out != fmt.Sprintf("%d new tasks\n", n) {
		b.Fatalf("load: %s", out)
	}
	if out := b.python("load", file); out != "0 new tasks\n" {
		b.Fatalf("load again: %s", out)
	}
}

// solved returns the ids of the tasks that have the right answer.
func (b *testEnv) solved() []string {
	b.Helper()
	ids := []string{}
	for d := json.NewDecoder(strings.NewReader(b.python("answers"))); d.More(); {
		var a struct{ ID, Status, Model, Answer string }
		if err := d.Decode(&a); err != nil {
			b.Fatal(err)
		}
		if a.Status == "solved" && a.Answer == "about p"+a.ID[1:]+" by "+a.Model {
			ids = append(ids, a.ID)
		}
	}
	return ids
}

func (b *testEnv) until(what string, holds func() bool) {
	b.Helper()
	testutil.Eventually(b, what, holds)
}

// check checks the final state: n tasks have their answers, no limit was exceeded, and no lease is
// held.
func (b *testEnv) check(n int) {
	b.Helper()
	if got := len(b.solved()); got != n {
		b.Errorf("%d tasks are solved; want %d", got, n)
	}
	if len(b.backend.violations) > 0 {
		b.Errorf("limits exceeded: %v", b.backend.violations)
	}
	if got := b.gateway.inFlight(b.limits); got != 0 {
		b.Errorf("%d leases are left", got)
	}
}

// TestEachTaskOnce: every task is admitted, called and answered once, even if responses of the
// gateway are lost. Its real cost is reported.
func TestEachTaskOnce(t *testing.T) {
	b := setUp(t, 15*time.Minute)
	b.gateway.loseEvery = 5
	b.load(60)
	out := b.python(b.run("--workers", "10", "--max-wait-s", "2")...)
	b.check(60)
	if !strings.HasSuffix(out, "60 tasks solved\n") || !strings.Contains(out, "retrying") {
		t.Errorf("said:\n%s", out)
	}
	for prompt, calls := range b.backend.calls {
		if calls != 1 {
			t.Errorf("%s was called %d times", prompt, calls)
		}
	}
	if diff := cmp.Diff(slices.Repeat([]int{actualTokens}, 60), b.gateway.completed); diff != "" {
		t.Errorf("completed with %s", diff)
	}
}

// TestKilled: leases and claims of killed workers end after their time. Another run solves the
// other tasks.
func TestKilled(t *testing.T) {
	b := setUp(t, 2*time.Second)
	b.load(30)
	b.backend.holdAfter(10)
	timing := []string{"--workers", "8", "--renew-s", "0.3", "--claim-s", "2"}
	cmd, out := b.start(b.run(timing...)...)
	b.until("every model is full", func() bool { return b.backend.heldCalls() == 6 })
	if n := b.gateway.inFlight(b.limits); n != 6 {
		t.Errorf("%d leases for 6 calls", n)
	}
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
	b.until("the calls of the dead are gone", func() bool { return b.backend.heldCalls() == 0 })
	b.until("the leases of the dead have ended", func() bool { return b.gateway.inFlight(b.limits) == 0 })
	before := b.solved()
	// A call may be answered but killed before the worker has saved the answer.
	if len(before) < 4 || len(before) > 10 {
		t.Errorf("%d tasks were solved before the kill\n%s", len(before), out)
	}
	b.backend.release()
	b.python(b.run(timing...)...)
	b.check(30)
	for _, id := range before {
		if calls := b.backend.calls["p"+id[1:]]; calls != 1 {
			t.Errorf("%s was solved before the kill, and called %d times", id, calls)
		}
	}
}

// TestStopped: a worker that is told to stop finishes its running calls, releases everything and
// claims nothing more.
func TestStopped(t *testing.T) {
	b := setUp(t, 15*time.Minute)
	b.load(30)
	b.backend.holdAfter(10)
	cmd, out := b.start(b.run("--workers", "8", "--max-wait-s", "0.5")...)
	b.until("every model is full", func() bool { return b.backend.heldCalls() == 6 })
	cmd.Process.Signal(syscall.SIGTERM)
	// Time for the signal to arrive. The checks below hold for any time.
	time.Sleep(200 * time.Millisecond)
	b.backend.release()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	first := len(b.solved())
	b.check(first)
	if first < 16 {
		t.Errorf("%d tasks were solved\n%s", first, out)
	}
	out2 := b.python(b.run("--workers", "8")...) // It need not wait for claims of the first run.
	b.check(30)
	if want := fmt.Sprintf("%d tasks solved\n", 30-first); !strings.HasSuffix(out2, want) || b.backend.total != 30 {
		t.Errorf("%d calls; the second run said\n%s", b.backend.total, out2)
	}
}

// TestRenewed: a call that takes longer than its lease keeps the lease.
func TestRenewed(t *testing.T) {
	b := setUp(t, 3*time.Second)
	b.load(1)
	b.backend.holdAfter(0)
	cmd, out := b.start(b.run("--workers", "2", "--renew-s", "0.2", "--claim-s", "3")...)
	b.until("the call runs", func() bool { return b.backend.heldCalls() == 1 })
	over := time.Now().Add(b.gateway.lease)
	b.until("the first lease is over", func() bool { return time.Now().After(over) })
	if n := b.gateway.inFlight(b.limits); n != 1 {
		t.Errorf("%d leases while the call runs", n)
	}
	b.backend.release()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b.check(1)
	if b.backend.total != 1 || b.gateway.renewed == 0 || len(b.gateway.completed) != 1 {
		t.Errorf("%d calls, %d renewals, completed %v\n%s", b.backend.total, b.gateway.renewed, b.gateway.completed, out)
	}
}

// TestMisconfigured: a task that is too large for every model is set aside. With an unknown pool
// the worker gives up and sets nothing aside.
func TestMisconfigured(t *testing.T) {
	b := setUp(t, 15*time.Minute)
	b.load(3)
	huge := filepath.Join(t.TempDir(), "huge.jsonl")
	if err := os.WriteFile(huge, []byte(`{"id": "huge", "prompt": "p", "estimated_tokens": 3000001}`), 0o600); err != nil {
		t.Fatal(err)
	}
	b.python("load", huge)
	cmd, out := b.start(b.run("--workers", "2", "--pool", "none")...)
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "giving up: /schedule: 404") {
		t.Errorf("with a wrong pool: %v\n%s", err, out)
	}
	if answers := b.python("answers"); answers != "" {
		t.Errorf("with a wrong pool: %s", answers)
	}
	b.python(b.run("--workers", "2")...)
	b.check(3)
	if answers := b.python("answers"); !strings.Contains(answers, `"id": "huge", "status": "refused"`) {
		t.Errorf("answers:\n%s", answers)
	}
}

// TestDAG loads the DAG with stand-ins for the names of Airflow, and runs its task until the
// backlog is empty.
func TestDAG(t *testing.T) {
	b := setUp(t, 15*time.Minute)
	b.load(12)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "python3", "-c", `
import sys, types
drained = []
class Task:
    def __init__(self, run): self.run = run
    def expand(self, number): drained.extend(self.run(n) for n in number)
sdk = types.ModuleType("airflow.sdk")
sdk.dag = lambda **options: lambda make: make
sdk.task = lambda **options: Task
sys.modules["airflow"] = types.ModuleType("airflow")
sys.modules["airflow.sdk"] = sdk
import dag
print(len(drained), sum(drained))`)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "BACKLOG_DB="+b.db, "SLUICE_URL="+b.urls[1], "BACKEND_URL="+b.urls[3])
	out, err := cmd.Output()
	if err != nil || string(out) != "4 12\n" {
		t.Errorf("%v: %s", err, out)
	}
	b.check(12)
}
