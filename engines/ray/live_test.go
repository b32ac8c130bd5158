package ray

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// answer returns what the server of a replica answers.
func answer(t *testing.T, r engines.Replica) string {
	t.Helper()
	resp, err := http.Get("http://" + r.Address.String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestN4_ReplicasAreJobsOfRay follows replicas on a real cluster. It shows what they are given, how
// they outlive a gateway and the head, how a lost node is replaced, and how they end.
func TestN4_ReplicasAreJobsOfRay(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Ray cluster")
	}
	f := newFixture(t)
	var requests atomic.Int64
	load := func(c *Config) { c.InFlight = func(string) int { return int(requests.Load()) } }
	g := f.gateway(load)

	// Ray gives each replica a GPU of its own, on the node that has one.
	g.Set([]Model{f.model("m/chat", 2, 2)})
	ready := g.awaitReady("m/chat", 2)
	if ready[0].ID != "m/chat-0" || ready[1].ID != "m/chat-1" || ready[0].Node == ready[1].Node || ready[0].Launcher != engines.Ray {
		t.Errorf("replicas are %+v", ready)
	}
	for _, r := range ready {
		if got := answer(t, r); got != "0,1" && got != "1,0" {
			t.Errorf("%s has the GPUs %q", r.ID, got)
		}
	}
	jobs := f.jobsOf("m-chat")

	// A gateway that starts adopts the jobs.
	g.stop()
	found := make(chan map[string]int, 1)
	g = f.gateway(func(c *Config) { load(c); c.OnFound = func(n map[string]int) { found <- n } })
	g.Set(nil) // before OnFound: nothing ends
	if n := <-found; n["m/chat"] != 2 {
		t.Errorf("OnFound got %v", n)
	}
	g.Set([]Model{f.model("m/chat", 2, 2)})
	adopted := g.awaitReady("m/chat", 2)
	if now := f.jobsOf("m-chat"); !slices.Equal(now, jobs) {
		t.Errorf("jobs were %v and are %v", jobs, now)
	}

	// The death of the head ends nothing.
	f.KillHead()
	testutil.Eventually(t, "the head is missed", func() bool { return g.Status().Fault != "" })
	for _, r := range g.awaitReady("m/chat", 2) {
		answer(t, r)
	}
	f.StartHead()
	testutil.Eventually(t, "Ray answers", func() bool { return g.Status().Fault == "" })
	if again := g.awaitReady("m/chat", 2); again[0].Address != adopted[0].Address || again[1].Address != adopted[1].Address {
		t.Errorf("replicas were %+v and are %+v", adopted, again)
	}

	// The replica of a lost node is started on another one.
	f.AddNode("c", 4, 2)
	lost := slices.IndexFunc(adopted, func(r engines.Replica) bool { return r.Node == "a" })
	f.KillNode("a")
	g.await("m/chat", "the replica is replaced", func(all []engines.Replica) bool {
		return len(all) == 2 && all[lost].State == engines.Ready && all[lost].Node == "c"
	})

	// A replica that has requests is not stopped. Jobs of others are left alone.
	f.Submit(map[string]any{"entrypoint": "sleep 600", "submission_id": "m-chat-9-foreign", "entrypoint_num_cpus": 0.5,
		"metadata": map[string]string{"owner": "somebody else"}})
	requests.Store(1)
	g.Set([]Model{f.model("m/chat", 0, 2)})
	g.await("m/chat", "it drains", func(all []engines.Replica) bool { return len(all) == 2 && all[0].State == engines.Draining })
	for range 3 {
		g.cycle(t.Context())
	}
	for _, r := range g.replicas("m/chat") {
		answer(t, r)
	}
	requests.Store(0)
	g.await("m/chat", "they are gone", func(all []engines.Replica) bool { return len(all) == 0 })
	testutil.Eventually(t, "their jobs are deleted", func() bool {
		jobs := f.Jobs()
		return len(jobs) == 1 && jobs[0].ID == "m-chat-9-foreign" && jobs[0].Status != "STOPPED"
	})
}

// TestN4_AFailedReplicaSaysWhy shows the end of the log of a replica that does not start, without
// its secrets, and what a replica waits for that fits nowhere.
func TestN4_AFailedReplicaSaysWhy(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Ray cluster")
	}
	f := newFixture(t)
	fail := filepath.Join(f.dir, "fail")
	if err := os.WriteFile(fail, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	g := f.gateway(nil)
	g.Set([]Model{f.model("chat", 1, 0.5), f.model("big", 1, 3)})
	failed := g.await("chat", "it fails", func(all []engines.Replica) bool { return len(all) == 1 && all[0].State == engines.Failed })
	if why := failed[0].Reason; !strings.Contains(why, "exit code 1") || !strings.Contains(why, "loading weights") ||
		!strings.Contains(why, "cannot load with") || strings.Contains(why, "hf_abc") || !strings.Contains(why, "next start after") {
		t.Errorf("the reason is %q", why)
	}
	waiting := g.await("big", "it waits", func(all []engines.Replica) bool {
		return len(all) == 1 && all[0].State == engines.Pending && strings.Contains(all[0].Reason, "waiting for resources")
	})
	if waiting[0].Address.IsValid() {
		t.Errorf("a replica without a node has the address %v", waiting[0].Address)
	}

	if err := os.Remove(fail); err != nil {
		t.Fatal(err)
	}
	ready := g.awaitReady("chat", 1)
	if ready[0].Restarts == 0 || ready[0].FailedStarts != 0 {
		t.Errorf("the replica is %+v", ready[0])
	}

	// A changed model gets its successor first.
	changed := f.model("chat", 1, 0.5)
	changed.Env = map[string]string{"CHANGED": "yes"}
	g.Set([]Model{changed})
	g.await("chat", "the successor serves", func(all []engines.Replica) bool {
		return len(all) == 1 && all[0].ID == "chat-1" && all[0].State == engines.Ready
	})
	g.await("big", "nobody wants it", func(all []engines.Replica) bool { return len(all) == 0 })
}
