package nodes

import (
	"bufio"
	"fmt"
	"net/http"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// awaitOtherJob waits until one job runs, which is not the one of before, and its replica is ready.
func awaitOtherJob(g *harness.Gateway, jobs func() string, before string) {
	g.T.Helper()
	harness.Eventually(g.T, "another job than "+before, func() error {
		m, now := g.Model("chat"), jobs()
		if now == before || now == "" || m.Ready != 1 || m.Replicas != 1 {
			return fmt.Errorf("jobs %q, %+v", now, m)
		}
		return nil
	})
}

// TestE2E_O8_O10_ActionsOnRay: the operator restarts, drains and scales jobs of Ray and reads their
// logs, which come by Ray's API. No stream is cut.
func TestE2E_O8_O10_ActionsOnRay(t *testing.T) {
	t.Parallel()
	c := startRay(t)
	g := harness.Start(t, rayConfig(c, "{min: 1, max: 1}"))
	g.AwaitReplicas("chat", 1)
	jobs := func() string { return runningJobs(c) }

	harness.Eventually(t, "the engine has logged", func() error {
		out, err := g.RunCommand("logs", "chat-0", "--search", "LISTENS", "-c", g.Config)
		if err != nil || out == "" {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	followed, err := http.Get(g.Admin + "/api/v1/replicas/chat-0/log?tail=200&follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer followed.Body.Close()
	if line, err := bufio.NewReader(followed.Body).ReadString('\n'); err != nil || followed.StatusCode != 200 {
		t.Errorf("the followed log has %q, %v", line, err)
	}

	before, streams := jobs(), g.OpenStreams(2, 100)
	command(g, "is replaced when it has finished its requests", "replicas", "restart", "chat-0")
	awaitOtherJob(g, jobs, before)
	streams.Wait()
	before, streams = jobs(), g.OpenStreams(2, 100)
	command(g, "are replaced one after another", "models", "restart", "chat")
	awaitOtherJob(g, jobs, before)
	streams.Wait()

	command(g, "chat has 2 to 2 replicas", "models", "scale", "chat", "--min", "2")
	g.AwaitReplicas("chat", 2)
	command(g, "is drained", "replicas", "drain", "chat-0")
	for i := range 4 {
		if got := askReplica(g, fmt.Sprint(i)); got == "chat-0" {
			t.Error("served by the drained replica")
		}
	}
	command(g, "chat has 1 to 1 replicas", "models", "scale", "chat", "--reset")
	g.AwaitReplicas("chat", 1)
}
