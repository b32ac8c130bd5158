package kubernetes

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
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

// awaitPods waits until the model chat has n pods, all ready and none of those in without. It
// returns their names.
func awaitPods(g *harness.Gateway, n int, without ...string) (names []string) {
	g.T.Helper()
	harness.Eventually(g.T, fmt.Sprintf("%d pods without %v", n, without), func() error {
		names = nil
		all := g.Replicas()
		for id, r := range all {
			if r.State == "ready" && !slices.Contains(without, id) {
				names = append(names, id)
			}
		}
		if len(names) != n || len(all) != n {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
	slices.Sort(names)
	return names
}

// TestE2E_O8_ScaleAtTheLeader: of two gateways, the leader sets the number of pods. The other one
// refuses and names the leader, because its number would have no effect.
func TestE2E_O8_ScaleAtTheLeader(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	first := k.start("")
	k.apply("chat", `replicas: {min: 1, max: 1}, `+fastVariables)
	awaitPods(first, 1)
	second := k.start("")
	awaitPods(second, 1)
	command(first, "chat has 2 to 2 replicas", "models", "scale", "chat", "--min", "2")
	awaitPods(second, 2)
	harness.Eventually(t, "the second gateway refuses", func() error {
		out, err := second.RunCommand("models", "scale", "chat", "--min", "3", "-c", second.Config)
		if err == nil || !strings.Contains(out, "decides how many replicas the model `chat` has") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	command(second, "chat has 1 to 1 replicas", "models", "scale", "chat", "--reset")
	awaitPods(first, 2)
}

// TestE2E_O8_O10_ActionsOnPods: the operator restarts, drains and scales pods and reads their logs,
// with the rights of the manifests' Role, and no stream is cut. A log that the Role does not allow
// is refused with the API's reason. The API server is real. The stand-in for the kubelet has the
// logs.
func TestE2E_O8_O10_ActionsOnPods(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	g := k.start("")
	k.apply("chat", `replicas: {min: 2, max: 4}, cooldown: 1h, routing: {strategy: round_robin, slow_start: 0s}, `+slowVariables)
	pods := awaitPods(g, 2)
	g.AwaitReady()

	command(g, "listens on http", "logs", pods[0])
	command(g, "listens on http", "logs", pods[0], "--search", "LISTENS")
	if out, err := g.RunCommand("logs", pods[0], "--search", "nobody says this", "-c", g.Config); err != nil || !strings.HasPrefix(out, "No line with ") {
		t.Errorf("%v: %q", err, out)
	}
	followed, err := http.Get(g.Admin + "/api/v1/replicas/" + pods[0] + "/log?tail=200&follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer followed.Body.Close()
	if line, err := bufio.NewReader(followed.Body).ReadString('\n'); err != nil || followed.StatusCode != 200 {
		t.Errorf("the followed log has %q, %v", line, err)
	}

	command(g, "is drained", "replicas", "drain", pods[0])
	for range 4 {
		a := g.Post(harness.ChatPath, harness.ChatBody("chat", false, 1, "x"))
		if got := a.Header.Get("X-Sluice-Replica"); got != pods[1] {
			t.Errorf("served by %s: %s", got, a)
		}
	}
	command(g, "gets requests again", "replicas", "undrain", pods[0])

	streams := g.OpenStreams(4, 100)
	command(g, "is replaced when it has finished its requests", "replicas", "restart", pods[0])
	now := awaitPods(g, 2, pods[0])
	streams.Wait()
	if !slices.Contains(now, pods[1]) {
		t.Errorf("%s was replaced as well: %v", pods[1], now)
	}
	streams = g.OpenStreams(4, 100)
	command(g, "are replaced one after another", "models", "restart", "chat")
	now = awaitPods(g, 2, now...)
	streams.Wait()

	command(g, "chat has 3 to 4 replicas", "models", "scale", "chat", "--min", "3")
	awaitPods(g, 3)
	command(g, "chat has 2 to 4 replicas", "models", "scale", "chat", "--reset")

	k.kubectl("patch", "role", "sluice", "--type=json", "-p", `[{"op": "remove", "path": "/rules/7"}]`)
	harness.Eventually(t, "the Role has no right to logs", func() error {
		out, err := g.RunCommand("logs", now[0], "-c", g.Config)
		if err == nil || !strings.Contains(out, "There is no log to show") || !strings.Contains(out, "forbidden") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}
