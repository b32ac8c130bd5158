package lifecycle

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// The commands that show a running gateway say what the admin API says, as tables and as JSON. They
// find the gateway by the file, by ./sluice.yaml, and by the address.
func TestE2E_O8_CommandsThatShow(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.OneSim)
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "x")); a.StatusCode != 200 {
		t.Fatal(a)
	}
	for _, test := range []struct {
		args []string
		want string // a regular expression
	}{
		{[]string{"status", "-c", g.Config}, `(?s)^gateway  \S+ \(pid \d+\), up \d+s, ready\nclients  http://127.*Envoy    live.*\nMODEL +STATE +READY.*\nchat +ready +1 +1 +1 +1 +0 +0 +local\n`},
		{[]string{"ps", "--admin", strings.TrimPrefix(g.Admin, "http://")}, `(?m)^chat-0 +chat +ready +\d+s +0 of \d+ +1 +0 +127\.0\.0\.1:\d+ `},
		{[]string{"ps", "--admin", g.Admin, "--model", "other"}, `^There is no replica\.\n$`},
		{[]string{"requests", "--admin", g.Admin}, `(?m)^\S{36} +done +200 +chat +anyone +native .* chat-0\n0 requests run or wait\.$`},
	} {
		harness.Eventually(t, strings.Join(test.args, " "), func() error { return printed(g, test.want, test.args...) })
	}
	out, err := g.RunCommand("ps", "-c", g.Config, "--output", "json")
	var list struct{ Replicas []harness.Replica }
	if err != nil || json.Unmarshal([]byte(out), &list) != nil || len(list.Replicas) != 1 || list.Replicas[0].ID != "chat-0" {
		t.Errorf("ps as JSON: %v\n%s", err, out)
	}
	here := exec.Command(harness.Program(), "status")
	here.Dir = filepath.Dir(g.Config)
	if out, err := here.CombinedOutput(); err != nil || !strings.Contains(string(out), "chat") {
		t.Errorf("status beside sluice.yaml: %v\n%s", err, out)
	}
	// The file may be in the middle of a change.
	rewrite(g, "admin: "+strings.TrimPrefix(g.Admin, "http://")+"\nmodels: 3\n")
	if err := printed(g, "ready", "status", "-c", g.Config); err != nil {
		t.Error("with a faulty file:", err)
	}
	if err := os.Remove(g.Config); err != nil {
		t.Fatal(err)
	}
	if out, err := g.RunCommand("status", "-c", g.Config); err == nil || !strings.Contains(out, "cannot be read") {
		t.Errorf("without a file: %v\n%s", err, out)
	}
}

// printed returns an error unless a command succeeds and its output matches.
func printed(g *harness.Gateway, want string, args ...string) error {
	out, err := g.RunCommand(args...)
	if err != nil || !regexp.MustCompile(want).MatchString(out) {
		return fmt.Errorf("sluice %s: %v, not %s:\n%s", strings.Join(args, " "), err, want, out)
	}
	return nil
}
