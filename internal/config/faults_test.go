package config

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// TestEveryFaultAtOnce loads one file with every kind of fault. Load reports all of them at once,
// each on its line.
func TestEveryFaultAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Load("testdata/wrong.yaml")
	if err == nil {
		t.Fatal("no fault")
	}
	here, wrong := os.Getwd()
	if wrong != nil {
		t.Fatal(wrong)
	}
	golden(t, "testdata/wrong.golden", []byte(strings.ReplaceAll(err.Error(), here+"/", "")+"\n"))
	if strings.Contains(err.Error(), "hushhush") {
		t.Error("a fault shows a secret")
	}
}

// faultsOf returns the faults of a file as lines of text.
func faultsOf(t *testing.T, file string) []string {
	t.Helper()
	_, err := Parse("testdata/f", []byte(file))
	if err == nil {
		return nil
	}
	var faults Faults
	if !errors.As(err, &faults) {
		t.Fatalf("the error is %T", err)
	}
	var lines []string
	for _, f := range faults {
		lines = append(lines, strings.TrimPrefix(f.Error(), "testdata/f:"))
	}
	return lines
}

// A fault of no file has no colon in front.
func TestO9_AFaultWithoutAFile(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]Fault{
		"no file":               {Message: "no file"},
		"a.yaml: no":            {File: "a.yaml", Message: "no"},
		"a.yaml:3: models: no":  {File: "a.yaml", Line: 3, Path: "models", Message: "no"},
		"models[chat].name: no": {Path: "models[chat].name", Message: "no"},
	} {
		if got := f.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
