package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/raytest"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// startRay starts a Ray cluster of a head and two nodes with two GPUs each. Jobs find this program
// under the name sluice.
func startRay(t *testing.T) *raytest.Cluster {
	t.Helper()
	programs := t.TempDir()
	if err := os.Symlink(harness.Program(), filepath.Join(programs, "sluice")); err != nil {
		t.Fatal(err)
	}
	c := raytest.Start(t, programs)
	c.AddNode("node-a", 4, 2)
	c.AddNode("node-b", 4, 2)
	return c
}

// rayConfig is a configuration with the model chat, whose replicas have two GPUs each. replicas is
// the field of that name.
func rayConfig(c *raytest.Cluster, replicas string) string {
	return fmt.Sprintf(`
ray: {address: %q}
models:
  - name: chat
    launcher: ray
    engine: sim
    task: text-generation
    replicas: %s
    cooldown: 1s
    resources: {cpu: 0.5, gpu: 2}
    variables: {token_interval: 50ms}
`, c.Address, replicas)
}

// runningJobs returns the ids of the jobs that run, sorted and joined by spaces.
func runningJobs(c *raytest.Cluster) string {
	var ids []string
	for _, j := range c.Jobs() {
		if j.Status == "RUNNING" {
			ids = append(ids, j.ID)
		}
	}
	slices.Sort(ids) // Ray lists them in any order
	return strings.Join(ids, " ")
}

// askReplica sends a request to the model chat and returns the replica that served it.
func askReplica(g *harness.Gateway, text string) string {
	g.T.Helper()
	a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, text))
	if a.StatusCode != 200 {
		g.T.Fatalf("the answer is %s", a)
	}
	return a.Header.Get("x-sluice-replica")
}

// TestE2E_N4_RayStartsReplicasOnDemand: a request starts a job of Ray, a stream outlives the death
// of the head, and the job ends when nobody asks any more.
func TestE2E_N4_RayStartsReplicasOnDemand(t *testing.T) {
	t.Parallel()
	c := startRay(t)
	g := harness.Start(t, rayConfig(c, "{min: 0, max: 2}"))
	if jobs := runningJobs(c); jobs != "" {
		t.Errorf("jobs run before the first request: %s", jobs)
	}
	if got := askReplica(g, "hello"); got != "chat-0" {
		t.Errorf("served by %q", got)
	}
	streams := g.OpenStreams(2, 300) // they keep the replica
	if r := g.Replicas()["chat-0"]; !strings.HasPrefix(r.Node, "node-") || r.State != "ready" {
		t.Errorf("the replica is %+v", r)
	}
	c.KillHead()
	g.AwaitCondition(condition.RayFault, "")
	if got := askReplica(g, "while the head is away"); got != "chat-0" {
		t.Errorf("served by %q while the head is away", got)
	}
	streams.Wait()
	c.StartHead()
	g.AwaitNoCondition(condition.RayFault)

	harness.Eventually(t, "no job is left", func() error {
		if jobs := c.Jobs(); len(jobs) > 0 {
			return fmt.Errorf("%+v", jobs)
		}
		return nil
	})
	if got := askReplica(g, "again"); got != "chat-0" {
		t.Errorf("served by %q after the model had no replica", got)
	}
}

// TestE2E_N4_N5_RayReplicasOutliveTheGateway: a gateway that was killed finds its replicas again, a
// node that dies is made up for, and requests go on.
func TestE2E_N4_N5_RayReplicasOutliveTheGateway(t *testing.T) {
	t.Parallel()
	c := startRay(t)
	g := harness.Start(t, rayConfig(c, "{min: 2, max: 2}"))
	g.AwaitReplicas("chat", 2)
	jobs, before := runningJobs(c), g.Replicas()

	g.Kill()
	g.Launch()
	g.AwaitReady()
	g.AwaitReplicas("chat", 2)
	if now := runningJobs(c); now != jobs {
		t.Errorf("jobs were %s and are %s", jobs, now)
	}
	for id, r := range g.Replicas() {
		if r.Address != before[id].Address {
			t.Errorf("%s was at %s and is at %s", id, before[id].Address, r.Address)
		}
	}
	askReplica(g, "adopted")

	c.AddNode("node-c", 4, 2)
	c.KillNode("node-a")
	awaitReplicasOn(g, map[string]int{"node-b": 1, "node-c": 1})
	askReplica(g, "replaced")
}

// TestE2E_N4_TwoGatewaysOnOneRay: of two gateways with one Redis the first writes. A request at the
// second starts a job, which both use. When the first is killed under a stream of the second, the
// second takes over. The job runs on, ends when nobody asks any more, and is started again.
func TestE2E_N4_TwoGatewaysOnOneRay(t *testing.T) {
	t.Parallel()
	c := startRay(t)
	config := "redis: " + redistest.URL(redistest.Start(t)) + rayConfig(c, "{min: 0, max: 2}")
	first, second := harness.Start(t, config), harness.Start(t, config)
	streams := second.OpenStreams(1, 300)
	for _, g := range []*harness.Gateway{first, second} { // the stream may have begun with a heartbeat
		if got := askReplica(g, "hello"); got != "chat-0" {
			t.Errorf("served by %q", got)
		}
	}
	jobs := runningJobs(c)
	if a, b := first.Replicas()["chat-0"], second.Replicas()["chat-0"]; a.Address == "" || a.Address != b.Address || len(c.Jobs()) != 1 {
		t.Errorf("the replica is at %q and %q; jobs %+v", a.Address, b.Address, c.Jobs())
	}

	first.Kill()
	streams.Wait()
	if now := runningJobs(c); now != jobs && now != "" { // it may have ended since the stream has
		t.Errorf("jobs were %q and are %q", jobs, now)
	}
	harness.Eventually(t, "no job is left", func() error {
		if jobs := c.Jobs(); len(jobs) > 0 {
			return fmt.Errorf("%+v", jobs)
		}
		return nil
	})
	if got := askReplica(second, "again"); got != "chat-0" {
		t.Errorf("served by %q after the model had no replica", got)
	}
	if conditions, err := second.Conditions(condition.RayFault); err != nil || len(conditions) > 0 {
		t.Errorf("conditions %v, %v", conditions, err)
	}
}
