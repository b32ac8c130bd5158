package arch_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the names of tests in docs/requirements.md")

const (
	requirementsPage = "docs/requirements.md"
	updateHint       = "to write them: go test ./internal/arch -run Requirements -update"
)

var (
	// requirementID is the form of an id. It is a whole part of a test's name: a name is cut at
	// its underscores.
	requirementID = regexp.MustCompile(`^[NWSPTEBXURO][1-9][0-9]?$`)
	// requirementLine is a line of the page that states a requirement: its id and its text.
	requirementLine = regexp.MustCompile(`^- \*\*([A-Z][0-9]+)\*\* (.+)$`)
	// testLine is a line of the page that names one test of the requirement above it.
	testLine = regexp.MustCompile("^  - `(Test[A-Za-z0-9_]+)`$")
)

// TestRequirements compares the ids in the names of all tests with docs/requirements.md. With
// -update it writes the tests of each requirement into the page.
func TestRequirements(t *testing.T) {
	root, paths := gitFiles(t)
	page := filepath.Join(root, requirementsPage)
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	tests := testsByRequirement(t, root, paths)
	if len(tests) < 30 {
		t.Fatalf("only %d requirements have a test, which cannot be all", len(tests))
	}
	if *update {
		text = []byte(withTests(string(text), tests))
		if err := os.WriteFile(page, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	compareRequirements(t, readRequirements(t, string(text)), tests)
	if t.Failed() {
		t.Log(updateHint)
	}
}

// compareRequirements fails for every difference between the page and the tests. Both are the names
// of tests by id.
func compareRequirements(t *testing.T, page, tests map[string][]string) {
	t.Helper()
	for _, id := range slices.Sorted(maps.Keys(tests)) {
		listed, known := page[id]
		if !known {
			t.Errorf("%s has no line for %s, which %s carries", requirementsPage, id, tests[id][0])
			continue
		}
		for _, name := range tests[id] {
			if !slices.Contains(listed, name) {
				t.Errorf("%s does not list %s under %s", requirementsPage, name, id)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(page)) {
		for _, name := range page[id] {
			if !slices.Contains(tests[id], name) {
				t.Errorf("%s lists %s under %s, but no test has this name", requirementsPage, name, id)
			}
		}
	}
}

// readRequirements returns the tests that the page lists, by id. An id without tests has none.
func readRequirements(t *testing.T, text string) map[string][]string {
	t.Helper()
	listed := map[string][]string{}
	current := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if m := requirementLine.FindStringSubmatch(line); m != nil {
			current = m[1]
			if _, twice := listed[current]; twice {
				t.Errorf("%s states %s twice", requirementsPage, current)
			}
			listed[current] = nil
		} else if m := testLine.FindStringSubmatch(line); m != nil {
			listed[current] = append(listed[current], m[1])
		}
	}
	return listed
}

// withTests returns the page with the given tests below each requirement, in the place of those
// that it had.
func withTests(text string, tests map[string][]string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		bare := strings.TrimSuffix(line, "\n")
		if testLine.MatchString(bare) {
			continue
		}
		b.WriteString(line)
		if m := requirementLine.FindStringSubmatch(bare); m != nil {
			for _, name := range tests[m[1]] {
				b.WriteString("  - `" + name + "`\n")
			}
		}
	}
	return b.String()
}

// testsByRequirement returns the sorted names of the tests that carry an id, by id. It reads all
// test files that git tracks, whatever their build tags are.
func testsByRequirement(t *testing.T, root string, paths []string) map[string][]string {
	t.Helper()
	tests := map[string][]string{}
	fset := token.NewFileSet()
	for _, path := range paths {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join(root, path), nil, parser.SkipObjectResolution)
		if os.IsNotExist(err) {
			continue // deleted in the working tree, and not yet in git
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil {
				continue
			}
			for _, id := range requirementsOf(fn.Name.Name) {
				tests[id] = append(tests[id], fn.Name.Name)
			}
		}
	}
	for id := range tests {
		slices.Sort(tests[id])
		tests[id] = slices.Compact(tests[id])
	}
	return tests
}

// requirementsOf returns the ids in the name of a test: N4 and S4 for TestE2E_N4_S4_Something. A
// name that ends with what looks like an id does not carry it, as in TestP95.
func requirementsOf(name string) []string {
	rest, isTest := strings.CutPrefix(name, "Test")
	if !isTest {
		return nil
	}
	parts := strings.Split(rest, "_")
	var ids []string
	for _, part := range parts[:len(parts)-1] {
		if requirementID.MatchString(part) {
			ids = append(ids, part)
		}
	}
	return ids
}

func TestRequirementsOf(t *testing.T) {
	for name, want := range map[string][]string{
		"TestE2E_N4_S4_DeletedWhileAStreamRuns": {"N4", "S4"},
		"TestN8_NoGPUsNothingHidden":            {"N8"},
		"TestE2E_VLLM_N1_P3_T6_TextFromZero":    {"N1", "P3", "T6"},
		"TestE2E_LeasesNeverLeak":               nil,
		"TestP95":                               nil,
		"testE2E_N4_Helper":                     nil,
	} {
		if got := requirementsOf(name); !slices.Equal(got, want) {
			t.Errorf("requirementsOf(%q) = %v, want %v", name, got, want)
		}
	}
}
