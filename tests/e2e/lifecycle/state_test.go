package lifecycle

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// schedule asks for a task and checks the status of the answer.
func schedule(g *harness.Gateway, status int) *harness.Answer {
	g.T.Helper()
	a := g.Post("/schedule", `{"model": "chat", "estimated_tokens": 10}`)
	if a.StatusCode != status {
		g.T.Errorf("/schedule: %s, want status %d", a, status)
	}
	return a
}

// The state directory is full, the gateway is killed, and the next one adopts Envoy, the replicas
// and the streams. It tells what is wrong, and serves all but tasks. Before, it ended everything.
func TestE2E_B10_X5_FullStateDirectory(t *testing.T) {
	t.Parallel()
	g := harness.Prepare(t, harness.LastingSims)
	if err := os.Mkdir(g.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	testutil.SmallDisk(t, g.Dir, "4m")
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	before := processIDs(g)
	running := g.OpenStreams(30, harness.LastingTokens)
	schedule(g, 200)
	free := testutil.FillDisk(t, g.Dir)
	if c := g.AwaitCondition(condition.StateNotWritable, ""); !strings.Contains(c.Message, "of 4194304 bytes") {
		t.Errorf("the condition does not say how full the disk is: %s", c.Message)
	}
	g.Kill()
	g.Launch()
	g.AwaitReady()
	mustHaveAdopted(g, before)
	g.AwaitCondition(condition.StateNotWritable, "")
	harness.Eventually(t, "no task is recorded any more", func() error { // the last block of the journal may have room
		if a := g.Post("/schedule", `{"model": "chat", "estimated_tokens": 10}`); a.StatusCode == 200 {
			return errors.New(a.String())
		}
		return nil
	})
	if a := schedule(g, 503); a.Code() != "gateway_unavailable" || a.Header.Get("Retry-After") == "" {
		t.Errorf("/schedule on a full disk: %s, headers %v", a, a.Header)
	}
	free()
	g.AwaitNoCondition(condition.StateNotWritable)
	schedule(g, 200)
	harness.FinishAnswers(t, g.Replicas())
	running.Wait()
	mustHaveAdopted(g, before)
}

// On a read-only file system no gateway starts, and what runs goes on until there is one.
func TestE2E_X5_ReadOnlyStateDirectory(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.LastingSims)
	before := processIDs(g)
	running := g.OpenStreams(30, harness.LastingTokens)
	g.Kill()
	writable := testutil.ReadOnly(t, g.Dir)
	g.Launch()
	g.AwaitExit()
	if text := g.LogText(); g.Process.ProcessState.ExitCode() != 1 || !strings.Contains(text, "read-only file system") {
		t.Errorf("the start exited with %d and said:\n%s", g.Process.ProcessState.ExitCode(), text)
	}
	for name, pid := range before {
		if err := syscall.Kill(pid, 0); err != nil {
			t.Errorf("%s was ended: %v", name, err)
		}
	}
	writable()
	g.Launch()
	g.AwaitReady()
	mustHaveAdopted(g, before)
	harness.FinishAnswers(t, g.Replicas())
	running.Wait()
}

// The disk of the state directory hangs when the gateway is told to stop. The gateway says so, ends
// Envoy and the replicas, and exits. Before, it waited for the disk.
func TestE2E_B10_X5_AGatewayStopsAlthoughItsDiskHangs(t *testing.T) {
	t.Parallel()
	g := harness.Prepare(t, "drain_timeout: 1s\norphan_grace: 1s"+harness.SlowSims)
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	running := processIDs(g)
	// Whoever opens one of these waits for the other side of the pipe.
	for _, name := range []string{"writable.probe", "processes/envoy.hangs.json"} {
		pipe := filepath.Join(g.Dir, name)
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			release, err := os.OpenFile(pipe, os.O_RDWR, 0)
			if err := errors.Join(err, os.Remove(pipe), release.Close()); err != nil { // the guard waits, too
				t.Error(err)
			}
		})
	}
	g.Signal(syscall.SIGTERM)
	g.AwaitExit()
	if code := g.Process.ProcessState.ExitCode(); code != 1 || !strings.Contains(g.LogText(), "state directory does not answer") {
		t.Errorf("the gateway exited with %d and said:\n%s", code, g.LogText())
	}
	left := g.Processes()
	for name, pid := range running {
		if left[pid] != "" {
			t.Errorf("%s runs on: %s", name, left[pid])
		}
	}
}

// A directory that other users may change is refused with what to do.
func TestE2E_X13_StateDirectoryOfOthersIsRefused(t *testing.T) {
	t.Parallel()
	g := harness.Prepare(t, harness.OneSim)
	if err := errors.Join(os.Mkdir(g.Dir, 0o700), os.Chmod(g.Dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	out, err := g.RunCommand(g.Command...)
	if err == nil || !strings.Contains(out, "chmod 700 "+g.Dir) {
		t.Errorf("the start exited with %v and said:\n%s", err, out)
	}
}

// All files of the state directory are damaged, one after the other, each before a start. Every
// start adopts Envoy, the replicas and the streams.
func TestE2E_X13_DamagedStateDirectory(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.LastingSims)
	before := processIDs(g)
	running := g.OpenStreams(30, harness.LastingTokens)
	schedule(g, 200)
	for _, name := range []string{"id", "claim.lock", "guard.lock", "envoy.json", "tasks.jsonl", "limits.json",
		"processes/envoy.json", "processes/envoy.json.copy", "processes/replica%2Fchat-0.json"} {
		g.Kill()
		file := filepath.Join(g.Dir, name)
		text, err := os.ReadFile(file)
		if err != nil && name != "limits.json" {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, text[:len(text)/2], 0o600); err != nil {
			t.Fatal(err)
		}
		g.Launch()
		g.AwaitReady()
		mustHaveAdopted(g, before)
		if t.Failed() {
			t.Fatalf("after %s was damaged", name)
		}
	}
	if kept, _ := filepath.Glob(filepath.Join(g.Dir, "tasks.jsonl.damaged-*")); len(kept) != 1 {
		t.Errorf("damaged journals: %v", kept)
	}
	harness.FinishAnswers(t, g.Replicas())
	running.Wait()
	g.AwaitIdle("chat")
}

// An Envoy that is stopped answers nothing. It is told and replaced, and the replicas stay.
func TestE2E_X13_StoppedEnvoyIsReplaced(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "envoy: {hang_timeout: 3s}"+harness.SlowSims)
	before := processIDs(g)
	if err := syscall.Kill(before["envoy"], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	g.AwaitCondition(condition.EnvoyUnresponsive, "")
	harness.Eventually(t, "another Envoy runs", func() error {
		if after := processIDs(g); after["envoy"] == 0 || after["envoy"] == before["envoy"] || after["chat-0"] != before["chat-0"] {
			return fmt.Errorf("before %v, after %v", before, after)
		}
		return nil
	})
	g.AwaitReady()
	g.AwaitNoCondition(condition.EnvoyUnresponsive)
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "new")); a.StatusCode != 200 {
		t.Errorf("after the replacement: %s", a)
	}
}
