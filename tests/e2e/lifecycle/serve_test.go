package lifecycle

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// serveBeside starts a gateway beside an Envoy that the test runs, and waits until it is ready.
func serveBeside(t *testing.T, config string) *harness.Gateway {
	t.Helper()
	g := harness.Prepare(t, config)
	bootstrap, err := exec.Command(harness.Program(), "bootstrap", "-c", g.Config).Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(g.Config), "envoy.json")
	if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
		t.Fatal(err)
	}
	envoy := exec.Command(testutil.Tool(t, "envoy"), "-c", file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error")
	envoy.Stdout, envoy.Stderr = g.Log, g.Log
	if err := envoy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		envoy.Process.Kill()
		envoy.Wait()
		g.Stop()
	})
	g.Command = []string{"serve", "-c", g.Config}
	g.Launch()
	g.AwaitReady()
	return g
}

func TestE2E_E4_ServeBesideAnEnvoyOfSomeoneElse(t *testing.T) {
	t.Parallel()
	g := serveBeside(t, harness.OneSim)
	a := g.Post("/v1/chat/completions", harness.ChatBody("chat", true, 5, "hello"))
	if err := harness.CheckWholeStream(a.Content); err != nil {
		t.Errorf("%v: %s", err, a)
	}
}
