package guard

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain fails when it runs as a guard: the package must have taken over before.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command {
		os.Exit(99)
	}
	os.Exit(m.Run())
}

// guardOf runs a guard with these arguments in a process of its own, and returns what it has
// written and its exit status.
func guardOf(t *testing.T, args ...string) (output string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{Command}, args...)...)
	cmd.WaitDelay = time.Second
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

// The process of a guard ends by itself when nothing is to be guarded.
func TestGuardEnds(t *testing.T) {
	if out, status := guardOf(t, "--state-dir", t.TempDir(), "--grace", "1m"); status != 0 || out != "" {
		t.Errorf("exit status %d: %s", status, out)
	}
}

func TestGuardRefuses(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for want, args := range map[string][]string{
		"guard needs --state-dir DIRECTORY":      {},
		"takes no other arguments":               {"--state-dir", t.TempDir(), "more"},
		missing + " does not exist":              {"--state-dir", missing},
		`invalid value "soon" for flag -grace`:   {"--state-dir", t.TempDir(), "--grace", "soon"},
		"flag provided but not defined: -statte": {"--statte", "x"},
	} {
		if out, status := guardOf(t, args...); status != 1 || !strings.Contains(out, want) {
			t.Errorf("%q: exit status %d: %s", args, status, out)
		}
	}
}

// The lines of the guard's log have the form of the gateway's.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	log := newLogger(&out)
	log.Log(-1, "a detail")
	log.Log(1, "processes found")
	line := out.String()
	if !strings.HasPrefix(line, `{"level":"warn","time":"`) || !strings.HasSuffix(line, `Z","msg":"processes found"}`+"\n") {
		t.Error(line)
	}
}

// The guard imports nothing that Go initialises late: neither itself nor what it needs. See
// decision 115.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dep := range strings.FieldsSeq(string(out)) {
		switch root, _, _ := strings.Cut(dep, "/"); {
		case dep == "net" || dep == "net/http" || dep == "net/url" || dep == "go.uber.org/zap",
			root == "k8s.io" || root == "google.golang.org" || root == "go.opentelemetry.io":
			t.Errorf("the guard imports %s", dep)
		}
	}
}
