package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// The filter is tried with the Envoy that will load it. What keeps it from being used is a warning,
// because ext_proc serves.
func TestB6_DoctorTriesTheFilter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// standIn makes a program that says it is this version of Envoy. It loads a filter if check
	// succeeds.
	standIn := func(name, version, check string) string {
		path := filepath.Join(dir, name)
		text := "#!/bin/sh\n[ \"$1\" = --version ] && echo envoy version: 0/" + version + "/Clean/RELEASE/BoringSSL && exit\n" +
			"file=$(sed -n 's/.*\"filename\":\"\\([^\"]*\\)\".*/\\1/p' \"$4\")\n" + check + "\n"
		testutil.WriteProgram(t, path, text)
		return path
	}
	loads := standIn("loads", envoy.TestedVersion, `grep -q compiled "$file"`)
	refuses := standIn("refuses", envoy.TestedVersion, `echo "[error] wrong ABI"; exit 1`)
	noexec := standIn("noexec", envoy.TestedVersion, `echo "[error] Failed to load dynamic module: $file: failed to map segment from shared object"; exit 1`)
	compiled := []byte("compiled")
	for name, test := range map[string]struct {
		o     Options
		level Level
		says  string
	}{
		"loaded":              {Options{Envoy: loads, Filter: compiled, AskedBy: config.FilterAuto}, OK, "Envoy loads Sluice's filter"},
		"refused":             {Options{Envoy: refuses, Filter: compiled, AskedBy: config.FilterAuto}, Warning, "wrong ABI"},
		"mounted with noexec": {Options{Envoy: noexec, Filter: compiled, AskedBy: config.FilterAuto}, Warning, "name a state_dir on another"},
		"not in this program": {Options{Envoy: loads, AskedBy: config.FilterModule}, Warning, "built without the filter"},
		"not wanted":          {Options{Envoy: refuses, Filter: compiled, AskedBy: config.FilterExtProc}, OK, "ext_proc asks Sluice"},
	} {
		test.o.Config = &config.Config{StateDir: filepath.Join(dir, "new", "state")}
		e := &examination{Options: test.o}
		e.envoy(t.Context())
		found := of(e.found, "filter")
		if len(found) != 1 || found[0].Level != test.level || !strings.Contains(found[0].Says, test.says) || (found[0].Hint == "") != (test.level == OK) {
			t.Errorf("%s: %+v", name, e.found)
		}
	}
	e := &examination{Options: Options{Envoy: standIn("newer", "1.41.0", ""), Filter: compiled}}
	if e.envoy(t.Context()); len(of(e.found, "filter")) != 0 {
		t.Errorf("the filter is tried with another version of Envoy: %+v", e.found)
	}
}

// The filter is tried where a gateway has it: in the state directory, or where that can be made. A
// folder for temporary files that cannot be written is no fault of Envoy's.
func TestO6_WhereTheFilterIsTried(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
	dir := t.TempDir()
	for _, state := range []string{dir, filepath.Join(dir, "new", "state")} {
		e := &examination{Options: Options{Config: &config.Config{StateDir: state}, Filter: []byte("compiled")}}
		file, err := e.writeFilter()
		if err != nil || filepath.Dir(filepath.Dir(file)) != dir {
			t.Errorf("%s: %s, %v", state, file, err)
		}
	}
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e := &examination{Options: Options{Config: &config.Config{StateDir: filepath.Join(plain, "state")}, Filter: []byte("compiled")}}
	e.filter(t.Context(), "/bin/true")
	if len(e.found) != 1 || !strings.Contains(e.found[0].Says, "cannot be tried") || !strings.Contains(e.found[0].Hint, "TMPDIR") {
		t.Errorf("%+v", e.found)
	}
}

// TestO6_DoctorFindsTheEnvoyThatUpRuns: an Envoy that `sluice up` has fetched is found, and one
// that it would fetch is no fault.
func TestO6_DoctorFindsTheEnvoyThatUpRuns(t *testing.T) {
	tools := t.TempDir()
	t.Chdir(t.TempDir())
	for name, value := range map[string]string{"SLUICE_ENVOY": "", "PATH": "", "SLUICE_TOOLS": tools} {
		t.Setenv(name, value)
	}
	look := func(o Options) Finding {
		t.Helper()
		e := &examination{Options: o}
		e.envoy(t.Context())
		return of(e.found, "Envoy")[0]
	}
	if f := look(Options{}); f.Level != Warning || !strings.Contains(f.Says, "`sluice up` fetches Envoy") {
		t.Errorf("nothing is fetched yet: %+v", f)
	}
	kept := filepath.Join(tools, "envoy-"+envoy.TestedVersion)
	text := "#!/bin/sh\necho envoy version: 0/" + envoy.TestedVersion + "/Clean/RELEASE/BoringSSL\n"
	testutil.WriteProgram(t, kept, text)
	if f := look(Options{}); f.Level != OK || !strings.Contains(f.Says, kept) {
		t.Errorf("one was fetched: %+v", f)
	}
	if f := look(Options{Envoy: "/none"}); f.Level != Fault {
		t.Errorf("the flag is wrong: %+v", f)
	}
}
