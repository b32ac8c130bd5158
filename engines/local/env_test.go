package local

import (
	"net/netip"
	"os"
	"slices"
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
	want := slices.Concat(os.Environ(), []string{"ADDRESS=" + loopback().String() + ":9001", "LEVEL=debug", "MORE=1", "SLOTS=3"})
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
