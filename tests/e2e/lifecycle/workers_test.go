package lifecycle

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// workersOf returns the names of the worker threads of a process.
func workersOf(t *testing.T, pid int) []string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		if name, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(name), "wrk:worker_") {
			names = append(names, strings.TrimSpace(string(name)))
		}
	}
	return names
}

// TestE2E_E4_EnvoyHasTheWorkersOfTheFile: three, however many processors there are, and it serves.
// When the number changes, a restart replaces Envoy, and no stream is cut.
func TestE2E_E4_EnvoyHasTheWorkersOfTheFile(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "envoy: {workers: 3}"+harness.SlowSims)
	if names := workersOf(t, processIDs(g)["envoy"]); len(names) != 3 {
		t.Errorf("Envoy has the workers %v, want three", names)
	}
	for i := range 12 { // each over a connection of its own, so more than one worker has requests
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, fmt.Sprint(i)), "connection", "close"); a.StatusCode != 200 {
			t.Errorf("request %d: %s", i, a)
		}
	}
	g.AwaitIdle("chat")
	running := g.OpenStreams(4, 150)
	g.Configure("envoy: {workers: 1}" + harness.SlowSims)
	if out := restart(g); !strings.Contains(out, "replaced: Envoy") {
		t.Errorf("the command printed %q", out)
	}
	if names := workersOf(t, processIDs(g)["envoy"]); len(names) != 1 {
		t.Errorf("after the restart Envoy has the workers %v, want one", names)
	}
	running.Wait()
}
