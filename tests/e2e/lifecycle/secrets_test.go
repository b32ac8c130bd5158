package lifecycle

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// The keys in the environment of the gateway reach Envoy, the guard and the engines only as far as
// the file says so.
func TestE2E_X11_ChildrenDoNotInheritKeys(t *testing.T) {
	for name, value := range map[string]string{"OPENAI_API_KEY": "sk-upstream-key", "AWS_SECRET_ACCESS_KEY": "aws", "HF_TOKEN": "hf_gateway_token"} {
		t.Setenv(name, value)
	}
	g := harness.Prepare(t, `
models:
  - {name: plain, engine: sim}
  - name: given
    engine: sim
    env: {LEVEL: debug}
    env_from: {variables: [HF_TOKEN], files: [given.env]}
`)
	if err := os.WriteFile(filepath.Join(filepath.Dir(g.Config), "given.env"), []byte("# of this model\nOWN_KEY=own-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	given := g.Replicas()["given-0"].PID
	checked := 0
	for pid, command := range g.Processes() {
		if pid == g.Process.Process.Pid {
			continue
		}
		checked++
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "OWN_KEY", "LEVEL"} {
			has := strings.Contains("\x00"+string(env), "\x00"+secret+"=")
			want := pid == given && (secret == "HF_TOKEN" || secret == "OWN_KEY" || secret == "LEVEL")
			if has != want {
				t.Errorf("%s has %s: %v, want %v", command, secret, has, want)
			}
		}
	}
	if checked != 4 {
		t.Errorf("%d processes beside the gateway, want Envoy, the guard and two engines", checked)
	}
}
