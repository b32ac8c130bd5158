package lifecycle

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// A dry run of a reload names the changes and the replicas that it would replace, and changes
// nothing.
func TestE2E_O9_DryRun(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.OneSim)
	before := g.Replicas()
	whole, err := os.ReadFile(g.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := printed(g, "^The file says what is in force", "reload", "--dry-run", "-c", g.Config); err != nil {
		t.Error(err)
	}
	proposed := filepath.Join(t.TempDir(), "next.yaml")
	dryRun := func(text string) (string, error) {
		if err := os.WriteFile(proposed, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return g.RunCommand("reload", "--dry-run", proposed, "-c", g.Config)
	}
	for change, want := range map[string]string{
		"token_interval: 0s=token_interval: 1ms": `(?m)^model chat: changed variables.token_interval, replaces chat-0$`,
		"aliases: [default-chat]=aliases: [x]":   `(?m)^model chat: changed aliases$`,
		"name: chat\n=name: other\n":             `(?s)model other: added\nmodel chat: removed, ends chat-0\nIt needs --force`,
	} {
		old, next, _ := strings.Cut(change, "=")
		if out, err := dryRun(strings.Replace(string(whole), old, next, 1)); err != nil || !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%s: %v, %s", change, err, out)
		}
	}
	if out, err := dryRun(string(whole) + "nonsense: 1\n"); err == nil || !strings.Contains(out, "nonsense") {
		t.Errorf("a faulty file: %v, %s", err, out)
	}
	if now := g.Replicas(); now["chat-0"].PID != before["chat-0"].PID {
		t.Error("a dry run has replaced a replica")
	}
}
