package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// fence matches a fenced block of Markdown: its info string and its text.
var fence = regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$")

// command matches a line that is a command of a shell.
var command = regexp.MustCompile(`(?m)^(SLUICE_\w+=\S+ )?(bin/)?(sluice|curl|git|make|kubectl|docker|helm|openssl|pip|python3|promtool|go) `)

// notRun begins the info string of a block of commands that the tests do not run. The reason
// follows.
const notRun = "sh not-run: "

// docPages returns the README, the pages of docs, and those of the examples.
func docPages(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/reference/*.md", "examples/*/README.md"} {
		files, err := filepath.Glob(filepath.Join(testutil.Root(), pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		all = append(all, files...)
	}
	return all
}

// documented is a gateway that has what the commands of the documents name: the models chat and
// qwen, and the tenant people.
const documented = `
tenants: [{name: people}]
models:
  - {name: chat, engine: sim, replicas: {min: 1, max: 2}}
  - {name: qwen, engine: sim}
`

// TestE2E_O11_CommandsOfTheDocsRun runs each block of shell commands of the README, the documents
// and the examples against a gateway. A block that cannot run here says why.
func TestE2E_O11_CommandsOfTheDocsRun(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, documented)
	harness.Eventually(t, "the replicas are ready", func() error {
		for _, model := range []string{"chat", "qwen"} {
			if n := g.Metric(`sluice_replicas{model="` + model + `",state="ready"}`); n != 1 {
				return fmt.Errorf("%s has %v ready replicas", model, n)
			}
		}
		return nil
	})
	bin := t.TempDir()
	if err := os.Symlink(harness.Program(), filepath.Join(bin, "sluice")); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, page := range docPages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range fence.FindAllStringSubmatch(string(text), -1) {
			switch info := block[1]; {
			case info == "sh":
				ran++
				runDocumented(t, g, bin, filepath.Base(page), block[2])
			case strings.HasPrefix(info, notRun) && len(info) > len(notRun):
			case command.MatchString(block[2]) && (info == "" || strings.HasPrefix(info, "sh") || info == "bash"):
				t.Errorf("%s: a block of commands must be `sh`, or `%sREASON`, is %q:\n%s", page, notRun, info, block[2])
			}
		}
	}
	if ran < 8 {
		t.Errorf("only %d blocks were run", ran)
	}
}

// runDocumented runs a block of commands in the folder of the gateway's file.
func runDocumented(t *testing.T, g *harness.Gateway, bin, page, script string) {
	t.Helper()
	host := func(url string) string { return strings.TrimPrefix(url, "http://") }
	script = strings.NewReplacer("127.0.0.1:8080", host(g.URL), "127.0.0.1:9090", host(g.Admin), "localhost:9090", host(g.Admin),
		"curl ", "curl -fsS ").Replace(script)
	c := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	c.Dir = filepath.Dir(g.Config)
	c.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s\n%s", page, err, script, out)
	}
}
