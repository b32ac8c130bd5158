package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/envoy/filter"
)

// readFile returns the text of a file of the repository.
func readFile(t *testing.T, path ...string) string {
	t.Helper()
	root, _ := gitFiles(t)
	text, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// namedModel matches a model in a command or a call of an example. modelOfFile matches one of a
// configuration file.
var (
	namedModel  = regexp.MustCompile(`-model (\w+) |\bmodel="(\w+)"|^ .*\\?"model\\?": \\?"(\w+)`)
	modelOfFile = regexp.MustCompile(`(?m)^  - name: (\w+)$`)
)

// TestO11_ExamplesNameModelsThatThereAre checks that the commands of the examples that come without
// a file of their own name models of the quick start.
func TestO11_ExamplesNameModelsThatThereAre(t *testing.T) {
	var models []string
	for _, m := range modelOfFile.FindAllStringSubmatch(readFile(t, "examples/quickstart/sluice.yaml"), -1) {
		models = append(models, m[1])
	}
	found := 0
	for _, name := range []string{"grpc", "realtime"} {
		for line := range strings.Lines(readFile(t, "examples", name, "README.md")) {
			for _, m := range namedModel.FindAllStringSubmatch(line, -1) {
				found++
				if model := m[1] + m[2] + m[3]; !slices.Contains(models, model) {
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

// TestO11_TroubleshootNamesEachCodeAndCondition checks that the page has each error code and each
// condition of the generated lists.
func TestO11_TroubleshootNamesEachCodeAndCondition(t *testing.T) {
	page := readFile(t, "docs/troubleshoot.md")
	for _, list := range []string{"errors.md", "conditions.md"} {
		rows := firstCell.FindAllStringSubmatch(readFile(t, "docs", list), -1)
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
	index := readFile(t, "docs/README.md")
	_, paths := gitFiles(t)
	found := 0
	for _, path := range paths {
		name, inDocs := strings.CutPrefix(path, "docs/")
		if inDocs && filepath.Ext(name) == ".md" && name != "README.md" && !strings.HasPrefix(name, "decisions/") {
			found++
			if !strings.Contains(index, "]("+name+")") {
				t.Errorf("docs/README.md does not name %s", name)
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d pages were found", found)
	}
}

// TestTheUnitKeepsWhatReplicasUse: the end of the gateway deletes nothing that replicas use which
// outlive it, systemd can start the next gateway beside them, and /tmp can be written.
func TestTheUnitKeepsWhatReplicasUse(t *testing.T) {
	unit := readFile(t, "packaging/sluice.service")
	lines := strings.Split(unit, "\n")
	for _, line := range []string{"KillMode=process", "DelegateSubgroup=sluice", "ReadWritePaths=/tmp /var/tmp", "RemoveIPC=no"} {
		if !slices.Contains(lines, line) {
			t.Errorf("the unit has no line %s", line)
		}
	}
	if slices.Contains(lines, "PrivateTmp=yes") {
		t.Error("the unit has PrivateTmp=yes: a crash of the gateway deletes the files of its replicas")
	}
	if strings.Contains(unit, "\nRestrictNamespaces=") {
		t.Error("the unit has RestrictNamespaces, which forbids clone3: no replica can start in a control group of its own")
	}
}

// TestTheUnitIsStartedUntilItRuns: systemd does not give up when the first starts fail at once.
// They do while a package index, a name server or the API of Kubernetes cannot be reached yet.
func TestTheUnitIsStartedUntilItRuns(t *testing.T) {
	unit, service, _ := strings.Cut(readFile(t, "packaging/sluice.service"), "\n[Service]\n") // systemd knows this limit in [Unit] alone
	if !slices.Contains(strings.Split(unit, "\n"), "StartLimitIntervalSec=0") || !slices.Contains(strings.Split(service, "\n"), "Restart=on-failure") {
		t.Error("the unit lacks StartLimitIntervalSec=0 or Restart=on-failure: five failed starts in ten seconds are its end")
	}
}

// word matches a word of a page, linkTarget what a link leads to.
var (
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
	word       = regexp.MustCompile(`\S*\w\S*`)
)

// TestH11_TheMapIsShort keeps ARCHITECTURE.md a map. What is longer has a place in docs.
func TestH11_TheMapIsShort(t *testing.T) {
	const most = 1500
	page := linkTarget.ReplaceAllString(readFile(t, "ARCHITECTURE.md"), "]")
	if n := len(word.FindAllString(page, -1)); n > most {
		t.Errorf("ARCHITECTURE.md has %d words, more than %d", n, most)
	}
}

// logMessage matches the message of a log line. nameOfProgram is the name of a program in it, as a
// command or a field would write the name.
var (
	logMessage    = regexp.MustCompile(`\.(?:Debug|Info|Warn|Error)\("([^"]*)"`)
	nameOfProgram = regexp.MustCompile(`\b(?:envoy|redis)\b`)
)

// TestLogsWriteNamesOneWay: messages of the log write Envoy and Redis as names.
func TestLogsWriteNamesOneWay(t *testing.T) {
	root, paths := gitFiles(t)
	found := 0
	for _, path := range paths {
		if filepath.Ext(path) != ".go" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range logMessage.FindAllStringSubmatch(string(text), -1) {
			found++
			if nameOfProgram.MatchString(m[1]) {
				t.Errorf("%s logs %q: write Envoy and Redis", path, m[1])
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d messages were found", found)
	}
}

// TestOneVersionOfEnvoy: other files than those of Go name the version that the filter is made for.
func TestOneVersionOfEnvoy(t *testing.T) {
	for file, before := range map[string]string{
		"packaging/helm/sluice/values.yaml":      "envoyproxy/envoy:distroless-v",
		"examples/kubernetes/envoys/envoys.yaml": "envoyproxy/envoy:distroless-v",
		"docs/filter.md":                         "the version that the filter is made for, ",
		"envoy/filter/src/abi.h":                 "dynamic modules of Envoy ",
	} {
		if want := before + filter.EnvoyVersion; !strings.Contains(readFile(t, file), want) {
			t.Errorf("%s has not %q", file, want)
		}
	}
}
