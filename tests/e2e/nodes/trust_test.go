package nodes

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// A replica at an address that is not its node's gets no requests until the file lists the address.
func TestE2E_X9_AddressesOfReplicas(t *testing.T) {
	t.Parallel()
	at, line := controlAddress(t)
	config := line + fmt.Sprintf(modelOnNodes, 1, 1, "0.1", "0s", "cluster: h100")
	g := harness.Prepare(t, strings.ReplaceAll(config, ", addresses: [127.0.0.0/8]", ""))
	startBeforeNodes(g)
	joinNewNode(g, at, "gpu-1")
	harness.Eventually(t, "the replica has failed", func() error {
		if r := g.Replicas()["chat-0"]; r.State != "failed" || !strings.Contains(r.Reason, "connects from 127.0.0.1") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	g.Configure(config)
	awaitReplicasOn(g, map[string]int{"gpu-1": 1})
	g.AwaitReady()
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "Hello")); a.StatusCode != 200 {
		t.Error(a)
	}
}

// A token admits one machine by one name, once. Without a token that replaces it, a machine keeps
// its name, and nobody gets the gateway's own.
func TestE2E_X9_TokensAndNames(t *testing.T) {
	t.Parallel()
	at, line := controlAddress(t)
	g := harness.Prepare(t, line)
	startBeforeNodes(g)
	token := joinToken(g, "gpu-1")
	first := joinNode(t, at, token, "gpu-1")
	awaitNodes(g, "gpu-1")
	logs := func(n *joinedNode, words string) {
		t.Helper()
		harness.Eventually(t, "the node logs: "+words, func() error {
			if log := n.LogText(); !strings.Contains(log, words) {
				return fmt.Errorf("it logs %s", log)
			}
			return nil
		})
	}
	logs(joinNode(t, at, token, "gpu-1"), "another machine has used this token")
	logs(joinNode(t, at, joinToken(g, "gpu-2"), "gpu-3"), `the token is for the name "gpu-2"`)
	for name, want := range map[string]string{"gpu-1": "--replace", hostname(t): "the name of the gateway's own node"} {
		if out, err := g.RunCommand("node", "token", name, "-c", g.Config); err == nil || !strings.Contains(out, want) {
			t.Errorf("a token for %s: %v, %s", name, err, out)
		}
	}
	first.Kill()
	first.Launch()
	awaitNodes(g, "gpu-1") // with the used token, and its own key
	out, err := exec.Command(harness.Program(), "node", "token", "gpu-1", "--replace", "-c", g.Config).Output()
	if err != nil {
		t.Fatal(err)
	}
	second := joinNode(t, at, strings.TrimSpace(string(out)), "gpu-1")
	logs(second, "gateway connected")
	logs(first, "another machine has")
}
