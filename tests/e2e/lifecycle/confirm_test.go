package lifecycle

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// rewrite replaces the content of the file in place, as an editor on a full disk does.
func rewrite(g *harness.Gateway, content string) {
	g.T.Helper()
	if err := os.WriteFile(g.Config, []byte(content), 0o600); err != nil {
		g.T.Fatal(err)
	}
}

// An empty file and a file without tenants and models are not put in force. The first is a fault,
// and the second needs `sluice reload --force`.
func TestE2E_X10_AFileThatRemovesEverythingIsHeldBack(t *testing.T) {
	t.Parallel()
	keys, tenants := harness.TenantKeys("acme")
	g := harness.Start(t, "\nauth: {mode: keys}\n"+tenants+harness.OneSim)
	before := processIDs(g)
	serves := func(want int) error {
		a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "x"), "Authorization: Bearer "+keys["acme"])
		if a.StatusCode != want {
			return errors.New(a.String())
		}
		return nil
	}
	whole, err := os.ReadFile(g.Config)
	if err != nil {
		t.Fatal(err)
	}
	rewrite(g, "")
	if c := g.AwaitCondition(condition.ConfigRejected, ""); c.Reason != "Faults" || !strings.Contains(c.Message, g.Config+":1: the file is empty") {
		t.Errorf("condition %+v of an empty file", c)
	}
	if err := serves(200); err != nil {
		t.Error(err)
	}
	shrunken, _, _ := strings.Cut(string(whole), "tenants:")
	rewrite(g, shrunken)
	harness.Eventually(t, "the file is held back", func() error {
		if c := g.AwaitCondition(condition.ConfigRejected, ""); c.Reason != "Held" || !strings.Contains(c.Message, "every tenant (acme) and every model that has replicas (chat)") {
			return errors.New(c.Message)
		}
		return nil
	})
	if out, err := g.RunCommand("reload", "-c", g.Config); err == nil || !strings.Contains(out, "--force") {
		t.Errorf("reload: %v\n%s", err, out)
	}
	if err := serves(200); err != nil {
		t.Error(err)
	}
	for name, pid := range processIDs(g) {
		if before[name] != pid {
			t.Errorf("%s had pid %d and has %d now", name, before[name], pid)
		}
	}
	if out, err := g.RunCommand("reload", "--force", "-c", g.Config); err != nil {
		t.Errorf("reload --force: %v\n%s", err, out)
	}
	if err := serves(401); err != nil {
		t.Error(err)
	}
	g.AwaitNoCondition(condition.ConfigRejected)
}

// A start with a file that is empty, faulty or shrunken says so, exits, and leaves Envoy, replicas
// and streams to the next start.
func TestE2E_X10_AStartWithoutAFileEndsNothing(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.LastingSims)
	before := processIDs(g)
	running := g.OpenStreams(20, harness.LastingTokens)
	g.Kill()
	whole, err := os.ReadFile(g.Config)
	if err != nil {
		t.Fatal(err)
	}
	shrunken, _, _ := strings.Cut(string(whole), "models:")
	for content, want := range map[string]string{
		"":                        g.Config + ":1: the file is empty",
		shrunken + "models: [{":   "not valid YAML",
		shrunken + "models: []\n": "has none of the models whose replicas run here (chat)",
	} {
		rewrite(g, content)
		g.Launch()
		g.AwaitExit()
		if text := g.LogText(); g.Process.ProcessState.ExitCode() != 1 || !strings.Contains(text, want) {
			t.Errorf("the start exited with %d and did not say %q:\n%s", g.Process.ProcessState.ExitCode(), want, text)
		}
		for name, pid := range before {
			if err := syscall.Kill(pid, 0); err != nil {
				t.Errorf("%s was ended by a start with %q: %v", name, content, err)
			}
		}
	}
	rewrite(g, string(whole))
	g.Launch()
	g.AwaitReady()
	mustHaveAdopted(g, before)
	harness.FinishAnswers(t, g.Replicas())
	running.Wait()
}
