package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/config"
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

// namedModel matches a model in a command or a call of an example.
var namedModel = regexp.MustCompile(`-model (\w+) |\bmodel="(\w+)"|^ .*\\?"model\\?": \\?"(\w+)`)

// TestO11_ExamplesNameModelsThatThereAre checks that the commands of the examples that come without
// a file of their own name models of the quick start.
func TestO11_ExamplesNameModelsThatThereAre(t *testing.T) {
	t.Parallel()
	quickStart, err := config.Load(filepath.Join(testutil.Root(), "examples/quickstart/sluice.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range []string{"grpc", "realtime"} {
		text, err := os.ReadFile(filepath.Join(testutil.Root(), "examples", name, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			for _, m := range namedModel.FindAllStringSubmatch(line, -1) {
				found++
				model := m[1] + m[2] + m[3]
				if !slices.ContainsFunc(quickStart.Models, func(have config.Model) bool { return have.Name == model }) {
					t.Errorf("examples/%s/README.md names the model %s, which the quick start has not", name, model)
				}
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d models are named", found)
	}
}

// firstCell matches the code in the first cells of a row: the name of a condition or, behind its
// status, the code of an error.
var firstCell = regexp.MustCompile("(?m)^\\| (?:[0-9]+ \\| )?`(\\w+)` \\|")

// readDoc returns a page of docs.
func readDoc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testutil.Root(), "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestO11_TroubleshootNamesEachCodeAndCondition checks that the page has each error code and each
// condition of the generated lists.
func TestO11_TroubleshootNamesEachCodeAndCondition(t *testing.T) {
	t.Parallel()
	page := readDoc(t, "troubleshoot.md")
	for _, list := range []string{"errors.md", "conditions.md"} {
		rows := firstCell.FindAllStringSubmatch(readDoc(t, list), -1)
		if len(rows) < 20 {
			t.Fatalf("%s: only %d rows", list, len(rows))
		}
		for _, row := range rows {
			if !strings.Contains(page, "`"+row[1]+"`") {
				t.Errorf("docs/troubleshoot.md does not name %s of %s", row[1], list)
			}
		}
	}
}

// TestO11_IndexNamesEachDocument checks that docs/README.md links to each page of docs.
func TestO11_IndexNamesEachDocument(t *testing.T) {
	t.Parallel()
	index := readDoc(t, "README.md")
	for _, page := range docPages(t) {
		name, err := filepath.Rel(filepath.Join(testutil.Root(), "docs"), page)
		if err == nil && !strings.HasPrefix(name, "..") && name != "README.md" && !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/README.md does not name %s", name)
		}
	}
}
