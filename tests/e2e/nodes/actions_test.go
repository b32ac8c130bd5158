package nodes

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// command runs a command of the gateway's operator and fails the test unless the output has a text.
func command(g *harness.Gateway, want string, args ...string) {
	g.T.Helper()
	if out, err := g.RunCommand(append(args, "-c", g.Config)...); err != nil || !strings.Contains(out, want) {
		g.T.Errorf("sluice %v: %v: %s", args, err, out)
	}
}

// awaitNewProcesses waits until each of the replicas is ready with another process than before.
func awaitNewProcesses(g *harness.Gateway, before map[string]harness.Replica, ids ...string) {
	g.T.Helper()
	harness.Eventually(g.T, fmt.Sprint("new processes of ", ids), func() error {
		now := g.Replicas()
		for _, id := range ids {
			if r := now[id]; r.State != "ready" || r.PID == before[id].PID {
				return fmt.Errorf("%s was %+v and is %+v", id, before[id], r)
			}
		}
		return nil
	})
}

// TestE2E_O8_O10_ActionsOnNodes: the operator restarts, drains and scales replicas on nodes that
// have joined, and reads their logs, as if they were on the gateway's machine. No stream is cut.
func TestE2E_O8_O10_ActionsOnNodes(t *testing.T) {
	t.Parallel()
	at, line := controlAddress(t)
	g := harness.Prepare(t, line+fmt.Sprintf(modelOnNodes, 2, 2, mostCPUs(), "20ms", "cluster: h100"))
	startBeforeNodes(g)
	joinNewNode(g, at, "gpu-1")
	joinNewNode(g, at, "gpu-2")
	awaitReplicasOn(g, map[string]int{"gpu-1": 1, "gpu-2": 1})
	g.AwaitReady()

	command(g, "listens on http", "logs", "chat-0")
	command(g, "No line with", "logs", "chat-0", "--search", "nobody says this")
	followed, err := http.Get(g.Admin + "/api/v1/replicas/chat-0/log?tail=0&follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer followed.Body.Close()

	before, streams := g.Replicas(), g.OpenStreams(6, 100)
	command(g, "is replaced when it has finished its requests", "replicas", "restart", "chat-0")
	awaitNewProcesses(g, before, "chat-0")
	streams.Wait()
	if g.Replicas()["chat-1"].PID != before["chat-1"].PID {
		t.Error("chat-1 was restarted as well")
	}
	if line, err := bufio.NewReader(followed.Body).ReadString('\n'); err != nil || line == "" {
		t.Errorf("the followed log has %q, %v", line, err)
	}

	before, streams = g.Replicas(), g.OpenStreams(4, 100)
	command(g, "are replaced one after another", "models", "restart", "chat")
	awaitNewProcesses(g, before, "chat-0", "chat-1")
	streams.Wait()

	command(g, "is drained", "replicas", "drain", "chat-1")
	for range 6 {
		if got := askReplica(g, "x"); got != "chat-0" {
			t.Errorf("served by %s", got)
		}
	}
	command(g, "gets requests again", "replicas", "undrain", "chat-1")
	command(g, "chat has 1 to 1 replicas", "models", "scale", "chat", "--min", "1", "--max", "1")
	g.AwaitReplicas("chat", 1)
}
