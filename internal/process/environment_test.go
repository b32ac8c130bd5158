package process

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/redact"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// setEnvironment replaces the environment of the test for its duration.
func setEnvironment(t *testing.T, entries ...string) {
	t.Helper()
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		t.Setenv(name, value) // which restores it when the test ends
	}
	path := os.Getenv("PATH")
	os.Clearenv()
	t.Setenv("PATH", path)
	for _, entry := range entries {
		name, value, _ := strings.Cut(entry, "=")
		t.Setenv(name, value)
	}
}

func TestX11_EnvironmentIsAnAllowList(t *testing.T) {
	setEnvironment(t, "LC_ALL=C", "TZ=UTC", "OPENAI_API_KEY=sk-upstream", "CUDA_HOME=/usr/cuda", "NVIDIA_API_KEY=nvapi-x",
		"HTTPS_PROXY=http://user:password@proxy:3128", "HTTP_PROXY=http://proxy:3128", "HOME=/root")
	for _, c := range []struct {
		more, want []string
	}{
		{nil, []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH"), "TZ=UTC"}},
		{[]string{"CUDA_*", "NVIDIA_*", "HTTP_PROXY", "HTTPS_PROXY", "OPENAI_API_KEY"},
			[]string{"CUDA_HOME=/usr/cuda", "HTTP_PROXY=http://proxy:3128", "LC_ALL=C", "PATH=" + os.Getenv("PATH"), "TZ=UTC"}},
	} {
		got := Environment(c.more...)
		slices.Sort(got)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("with %v: %s", c.more, diff)
		}
	}
}

// A child without an environment of its own, such as Envoy or the guard, gets the base variables.
func TestX11_ChildrenDoNotInherit(t *testing.T) {
	setEnvironment(t, "OPENAI_API_KEY=sk-upstream", "HF_TOKEN=hf_secret", "AWS_PROFILE=x", "TZ=UTC")
	d := claimedDir(t)
	p := start(t, d, sleeper("x"))
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range strings.Split(strings.TrimRight(string(env), "\x00"), "\x00") {
		name, _, _ := strings.Cut(entry, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{"PATH", markerKey, "TZ"}, names); diff != "" {
		t.Error(diff)
	}
}

func TestX15_LogLinesHideSecrets(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	// The secret reaches over the place where a line is cut.
	padding := strings.Repeat("a ", maxTailLineBytes/2-4)
	s := script("x", "echo '"+padding+"top-secret-value'; echo token=abc; exit 3")
	s.Redactor = redact.New("top-secret-value")
	p := start(t, d, s)
	wait(t, p)
	want := []string{padding + redact.Hidden, "token=" + redact.Hidden}
	if diff := cmp.Diff(want, p.Tail(5)); diff != "" {
		t.Error(diff)
	}
	if reason := p.ExitReason(); strings.Contains(reason, "top") || strings.Contains(reason, "abc") {
		t.Error(reason)
	}
	adopted := start(t, d, script("y", "echo top-secret-value; sleep 1000"))
	adopted.SetRedactor(redact.New("top-secret-value"))
	testutil.Eventually(t, "it has logged", func() bool { return len(adopted.Tail(1)) > 0 })
	if lines := adopted.Tail(1); lines[0] != redact.Hidden {
		t.Error(lines)
	}
}
