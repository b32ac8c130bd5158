package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSyntaxFaultsNameTheirLine checks that the faults of files that are not YAML name the line at
// fault. They must not name the line before it or the beginning of its list. They must say what to
// do.
func TestSyntaxFaultsNameTheirLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, file string
		line       int
		hint       string
	}{
		{"indented less", "listen: 127.0.0.1:1\nmodels:\n  - name: a\n   engine: sim\n", 4, "indented otherwise"},
		{"a field beside a list", "admin: 127.0.0.1:1\nmodels:\n  - name: a\n    engine: sim\n  variables: {a: 1}\n", 5, "indented otherwise"},
		{"text after a quote", "models:\n  - name: \"a\" b\n    engine: sim\n", 2, "after a value in quotes"},
		{"no end of a mapping", "models:\n\n  - {name: a, engine: sim\n  - {name: b, engine: sim}\n", 3, "a { is not closed"},
		{"no end of a list", "admin: 127.0.0.1:1\nmodels:\n  - name: a\n    args: [a, b\n    engine: sim\n", 4, "a [ is not closed"},
		{"no comma in JSON", "{\n  \"admin\": \"127.0.0.1:1\",\n  \"drain_timeout\": \"1s\"\n  \"models\": []\n}\n", 4, "a comma is missing"},
		{"a tab", "models:\n\t- name: a\n", 2, "a tab indents the line"},
		{"a tab behind a dash", "models:\n-\tname: a\n\tengine: sim\n", 2, "a tab indents the line"},
		{"a tab before a field", "models:\n  - name: a\n\n\tengine: sim\n", 4, "a tab indents the line"},
		{"a tab in a text", "models:\n  - name: |\n\n\ta\n", 4, "a tab indents the line"},
		{"a byte of another encoding", "models:\n  - name: a # f\xfcr\n    engine: sim\n", 2, "encoding UTF-8"},
		{"a cut character", "models:\n  - name: a\n    engine: \xe2\x82", 3, "encoding UTF-8"},
		{"a zero byte", "models:\n  - name: a\n    engine: s\x00im\n", 3, "no text"},
		{"an at sign", "models:\n  - name: @a\n", 2, "must be in quotes"},
		{"no colon", "models\n  - name: a\n", 2, "the line above lacks its colon"},
		{"no colon in a later line", "admin: 127.0.0.1:1\nmodels\n  - name: a\n", 2, "a colon and a space"},
		{"no value", "admin: 127.0.0.1:1\nmodels: ]\n", 2, "did not find expected node content"},
		{"an anchor that is not there", "models:\n  - name: a\n    engine: *sim\n    replicas: {min: 1}\n", 3, "unknown anchor 'sim'"},
		{"a quote without an end", "models:\n  - name: a\n    engine: \"sim\n", 3, "a quote is not closed"},
		{"in the first line", "models: [", 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse("file", []byte(c.file))
			var faults Faults
			if !errors.As(err, &faults) || len(faults) != 1 {
				t.Fatalf("the faults are %v", err)
			}
			if f := faults[0]; f.Line != c.line || !strings.Contains(f.Message, c.hint) {
				t.Errorf("the fault is %q in line %d, want line %d and %q", f.Message, f.Line, c.line, c.hint)
			}
		})
	}
}

// TestAdminAddressOfBrokenFiles checks that the address of the running gateway is found in a file
// that is not valid YAML. None may be guessed where the file may name another.
func TestAdminAddressOfBrokenFiles(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"admin: 127.0.0.1:9191 # here\nmodels:\n\t- name: a\n":     "127.0.0.1:9191",
		"models:\n  - {name: a\nadmin: \"127.0.0.1:9192\"\n":       "127.0.0.1:9192",
		"models:\n\t- name: a\n":                                   "127.0.0.1:9090",
		"{\"admin\": \"127.0.0.1:9191\", \"models\": [}":           "",
		"admin: 127.0.0.1:1\nadmin: 127.0.0.1:2\nmodels:\n\t- a\n": "",
		"admin: here\nmodels:\n\t- a\n":                            "",
		"# only a comment\n":                                       "",
		"":                                                         "",
	} {
		file := filepath.Join(t.TempDir(), "sluice.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := AdminAddress(file); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: the address is %q, %v, want %q", text, got, err, want)
		}
	}
}
