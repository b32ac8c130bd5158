package local

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// The engine's environment overrides the launcher's own, and the model's overrides the engine's.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	m := Model{
		Version: engines.Version{
			Command: []string{"run"},
			Env:     map[string]string{"ADDRESS": "{{.Host}}:{{.Port}}", "SLOTS": "{{.Variables.slots}}", "LEVEL": "info"},
		},
		Launch: engines.Launch{Variables: map[string]any{"slots": 3}},
		Env:    map[string]string{"LEVEL": "debug", "MORE": "1"},
	}
	at := netip.AddrPortFrom(loopback(), 9001)
	env, err := m.environment(at)
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Concat(inherited(), []string{"ADDRESS=" + loopback().String() + ":9001", "LEVEL=debug", "MORE=1", "SLOTS=3"})
	if diff := cmp.Diff(want, env); diff != "" {
		t.Error(diff)
	}
	if len(m.Env) != 2 {
		t.Errorf("the model's own environment was changed: %v", m.Env)
	}
	before := m.fingerprint(loopback())
	m.Launch.Variables = map[string]any{"slots": 4}
	if m.fingerprint(loopback()) == before {
		t.Error("a replica with another environment is taken for the same")
	}
	m.Version.Env = map[string]string{"ADDRESS": "{{.Nowhere}}"}
	if _, err := m.environment(at); err == nil {
		t.Error("an environment that cannot be made was made")
	}
}

// A real engine gets what it needs, what the file gives it, and no key of the gateway.
func TestX11_EngineEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"OPENAI_API_KEY": "sk-upstream", "HF_TOKEN": "hf_gateway", "REDIS_URL": "redis://:pw@h:1", "HTTPS_PROXY": "http://u:p@proxy:1",
		"NVIDIA_API_KEY": "nvapi-x", "CUDA_HOME": "/usr/cuda", "HF_HOME": "/models", "LD_LIBRARY_PATH": "/usr/cuda/lib", "LC_TIME": "C",
	} {
		t.Setenv(name, value)
	}
	w := newFixture(t)
	m := w.model("chat", 1)
	m.Env["GIVEN_TOKEN"] = "by the file"
	l := New(w.config())
	l.Set([]Model{m})
	run(t, l)
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", w.awaitReady("chat", 1)[0].PID))
	if err != nil {
		t.Fatal(err)
	}
	env := strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
	for _, want := range []string{"CUDA_HOME=/usr/cuda", "HF_HOME=/models", "LD_LIBRARY_PATH=/usr/cuda/lib", "LC_TIME=C", "GIVEN_TOKEN=by the file"} {
		if !slices.Contains(env, want) {
			t.Errorf("the engine lacks %s", want)
		}
	}
	for _, entry := range env {
		for _, name := range []string{"OPENAI_API_KEY", "HF_TOKEN", "REDIS_URL", "HTTPS_PROXY", "NVIDIA_API_KEY"} {
			if strings.HasPrefix(entry, name+"=") {
				t.Errorf("the engine inherits %s", entry)
			}
		}
	}
}

// What an engine logs is shown without its secrets: while it starts, when it fails, and after an
// adoption.
func TestX15_ReasonsHideSecrets(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.tell("loading")
	m := w.model("chat", 1)
	m.Env["OPAQUE"], m.SecretEnv = "very-secret-value", []string{"OPAQUE"}
	l := New(w.config())
	l.Set([]Model{m})
	stop := run(t, l)
	w.eventually("it starts", func() bool { return w.replica("chat-0").PID != 0 })
	w.say("loading with very-secret-value and api_key=abc 1\n")
	w.eventually("it shows", func() bool { return w.replica("chat-0").Reason == "loading with … and api_key=… 1" })
	w.crash(stop)
	l = New(w.config())
	l.Adopt([]Model{m})
	run(t, l)
	w.say("loading with very-secret-value and api_key=abc 2\n")
	w.eventually("it shows after the adoption", func() bool { return w.replica("chat-0").Reason == "loading with … and api_key=… 2" })
}
