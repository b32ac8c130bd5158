package join

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestReplicasComeAndGo(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	a := g.agentPlan("gpu-2", "127.0.0.9", nodeDir(t)).run(t, nil)
	n := g.waitConnected("gpu-2")
	n.Set([]local.Model{model("chat", 0, 2), model("embed")})
	for _, id := range []string{"chat-0", "chat-2"} {
		r := g.waitState(id, engines.Ready)
		if r.Node != "gpu-2" || r.Launcher != engines.Local || r.PID == 0 {
			t.Errorf("the replica is %+v", r)
		}
		if r.Address.Addr().String() != "127.0.0.9" {
			t.Errorf("%s listens on %s, want 127.0.0.9", id, r.Address)
		}
	}
	if n := len(g.replicas()); n != 2 {
		t.Errorf("there are %d replicas, want 2", n)
	}
	pids := []int{g.replica("chat-0").PID, g.replica("chat-2").PID}
	states := g.history()
	n.Set([]local.Model{model("chat", 2), model("embed", 1)})
	if s := g.replica("chat-0").State; s != engines.Draining {
		t.Errorf("a replica that is no longer assigned is %q at once, want %q", s, engines.Draining)
	}
	g.waitGone("chat-0")
	g.waitState("embed-1", engines.Ready)
	eventually(t, "its process ends", func() bool { return !isProcessRunning(pids[0]) })
	if r := g.replica("chat-2"); r.PID != pids[1] || r.State != engines.Ready {
		t.Errorf("the replica that is still assigned is %+v", r)
	}
	if lines := states(); strings.Contains(lines, "chat-2 dr") || !strings.Contains(lines, "chat-0 draining") {
		t.Errorf("history:\n%s", lines)
	}
	n.Set(nil) // An assignment without the model must stop its replicas too.
	g.waitGone("chat-2")
	g.waitGone("embed-1")
	eventually(t, "its process ends", func() bool { return !isProcessRunning(pids[1]) })
	for _, text := range []string{"hf_secret", a.token.secret} {
		if hasLogged(g.logs, text) || hasLogged(a.logs, text) {
			t.Error("a log contains a secret")
		}
	}
	info, err := os.Stat(filepath.Join(a.config.Dir.Path(), "node", "wish.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the saved assignment has %v, %v, want mode 0600", info, err)
	}
}

func TestDrainWaitsForRequests(t *testing.T) {
	t.Parallel()
	g, n, _ := startOperated(t)
	pid := g.replica("chat-0").PID
	g.setRequests("chat-0", 1)
	n.Set([]local.Model{model("chat")})
	g.waitState("chat-0", engines.Draining)
	// The launcher checks the requests at least ten times in this period.
	for range 4 {
		before := time.Now()
		eventually(t, "time passes", func() bool { return time.Since(before) > 100*time.Millisecond })
		if !isProcessRunning(pid) {
			t.Fatal("a replica with a request was stopped")
		}
	}
	g.setRequests("chat-0", 0)
	g.waitGone("chat-0")
	eventually(t, "its process ends", func() bool { return !isProcessRunning(pid) })
}

func TestAgentKilledAndBack(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	plan := g.agentPlan("n", "127.0.0.1", nodeDir(t))
	first := plan.spawn(t)
	g.waitConnected("n").Set([]local.Model{model("chat", 0, 1)})
	before := map[string]engines.Replica{"chat-0": g.waitState("chat-0", engines.Ready), "chat-1": g.waitState("chat-1", engines.Ready)}
	states := g.history()
	changes := g.changeCount()
	kill(first)
	eventually(t, "the stream has ended", func() bool { return !g.server.Nodes()[0].hasReported() })
	plan.Token = "" // The node has joined already.
	plan.spawn(t)
	n := g.waitConnected("n")
	// A new replica proves that the new agent applies assignments.
	n.Set([]local.Model{model("chat", 0, 1, 2)})
	g.waitState("chat-2", engines.Ready)
	for id, r := range before {
		if now := g.replica(id); now.PID != r.PID || now.Address != r.Address || now.State != engines.Ready {
			t.Errorf("%s was %+v and is %+v after the agent's restart", id, r, now)
		}
	}
	for line := range strings.Lines(states()) {
		if !strings.HasPrefix(line, "chat-2") && !strings.HasSuffix(line, " ready\n") {
			t.Errorf("the fleet has shown %q", line)
		}
	}
	if g.changeCount() == changes {
		t.Error("Changed was not called when the node reconnected")
	}
}

func TestNodeLostAndBack(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Second)
	plan := g.agentPlan("gpu-2", "127.0.0.1", nodeDir(t))
	first := plan.spawn(t)
	n := g.waitConnected("gpu-2")
	n.Set([]local.Model{model("chat", 0, 1)})
	pids := []int{g.waitState("chat-0", engines.Ready).PID, g.waitState("chat-1", engines.Ready).PID}
	changes := g.changeCount()
	kill(first)
	r := g.waitState("chat-0", engines.Failed)
	if r.Reason != "node gpu-2 does not answer" || r.Address.IsValid() || r.PID != 0 {
		t.Errorf("a lost replica is %+v", r)
	}
	if node, ok := n.Node(); !ok || !node.Lost || node.CPUs == 0 {
		t.Errorf("Node = %+v, %v", node, ok)
	}
	if g.changeCount() == changes {
		t.Error("Changed was not called when the node was lost")
	}
	n.Set([]local.Model{model("chat", 1)}) // Another node replaces chat-0.
	g.waitGone("chat-0")
	g.waitState("chat-1", engines.Failed)
	g.mu.Lock() // The other chat-0 has a request, for which the one of this node does not wait.
	g.inFlight["chat-0"], g.elsewhere["chat-0"] = 1, netip.MustParseAddrPort("127.0.0.9:9")
	g.mu.Unlock()
	states := g.history()
	plan.spawn(t)
	if again := g.waitConnected("gpu-2"); again != n {
		t.Error("the node has another *Node after it reconnected")
	}
	if r := g.waitState("chat-1", engines.Ready); r.PID != pids[1] {
		t.Errorf("the replica that is still assigned is %+v, its pid was %d", r, pids[1])
	}
	eventually(t, "the other one ends", func() bool { return !isProcessRunning(pids[0]) })
	if strings.Contains(states(), "chat-0") {
		t.Errorf("the fleet has shown the replica that another node replaces:\n%s", states())
	}
	g.setRequests("chat-0", 0)
	n.Set([]local.Model{model("chat", 0, 1)})
	if r := g.waitState("chat-0", engines.Ready); r.PID == pids[0] {
		t.Error("the old process runs again")
	}
}

func TestGatewayRestart(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	g.agentPlan("a", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.agentPlan("b", "127.0.0.2", nodeDir(t)).run(t, nil)
	g.waitConnected("a").Set([]local.Model{model("chat", 0)})
	g.waitConnected("b").Set([]local.Model{model("chat", 1)})
	pids := []int{g.waitState("chat-0", engines.Ready).PID, g.waitState("chat-1", engines.Ready).PID}
	g.stop()
	g.start()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	g.server.Await(ctx)
	if ctx.Err() != nil {
		t.Fatal("Await returned because its context ended")
	}
	for i, id := range []string{"chat-0", "chat-1"} {
		if r := g.replica(id); r.State != engines.Ready || r.PID != pids[i] {
			t.Errorf("after Await %s is %+v, its pid was %d", id, r, pids[i])
		}
	}
	if all := g.waitConnected("a").Replicas(); len(all) != 1 || all[0].ID != "chat-0" {
		t.Errorf("Replicas = %+v", all)
	}
	g.waitConnected("a").Set([]local.Model{model("chat", 0)})
	g.waitConnected("b").Set([]local.Model{model("chat", 1, 2)})
	g.waitState("chat-2", engines.Ready)
	for i, id := range []string{"chat-0", "chat-1"} {
		if r := g.replica(id); r.PID != pids[i] {
			t.Errorf("%s was restarted: %+v", id, r)
		}
	}
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	a := g.agentPlan("a", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.waitConnected("a")
	a.stop()
	g.stop()
	g.start()
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan struct{})
	go func() { defer close(returned); g.server.Await(ctx) }()
	if node, ok := g.server.Nodes()[0].Node(); ok {
		t.Errorf("Node() of an earlier run is known before the node has connected: %+v", node)
	}
	select {
	case <-returned:
		t.Error("Await returned before the node had reported")
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	<-returned
}

func TestServerStop(t *testing.T) {
	t.Parallel()
	g, n, _ := startOperated(t)
	pid := g.replica("chat-0").PID
	g.setRequests("chat-0", 1)
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := g.server.Stop(short); err == nil || !strings.Contains(err.Error(), "gpu-7") || !isProcessRunning(pid) {
		t.Errorf("Stop with a request = %v", err)
	}
	g.waitState("chat-0", engines.Draining)
	n.Set([]local.Model{model("chat", 0, 1)})
	if w, _ := n.nextAssignment(0); len(assignedIDs(w.Models)) != 0 {
		t.Error("Set had an effect after Stop")
	}
	g.setRequests("chat-0", 0)
	if err := g.server.Stop(t.Context()); err != nil {
		t.Errorf("Stop = %v", err)
	}
	if isProcessRunning(pid) || len(g.replicas()) != 0 {
		t.Errorf("the fleet still has %+v after Stop", g.replicas())
	}
}

func TestStopAfterServe(t *testing.T) {
	t.Parallel()
	g, _, _ := startOperated(t)
	pid := g.replica("chat-0").PID
	g.stop()
	if err := g.server.Stop(t.Context()); err == nil || !strings.Contains(err.Error(), "gpu-7") {
		t.Errorf("Stop of a server that has ended = %v", err)
	}
	// Nodes that can connect again stop their replicas.
	if err := g.server.StopAt(t.Context(), testutil.ListenAgain(t, g.address)); err != nil || isProcessRunning(pid) {
		t.Errorf("StopAt = %v, the replica runs: %v", err, isProcessRunning(pid))
	}
	if !g.server.HasStopped() {
		t.Error("the server still serves after StopAt")
	}
}

func TestServerStopDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	g.stop()
	g.config.DrainTimeout = 100 * time.Millisecond
	g.start()
	g.agentPlan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	m := model("chat", 0)
	m.DrainTimeout = time.Hour
	g.waitConnected("n").Set([]local.Model{m})
	g.waitState("chat-0", engines.Ready)
	g.setRequests("chat-0", 1) // The request never ends.
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := g.server.Stop(ctx); err != nil {
		t.Errorf("Stop = %v", err)
	}
}

func TestAgentStop(t *testing.T) {
	t.Parallel()
	g, n, a := startOperated(t)
	pid := g.replica("chat-0").PID
	g.setRequests("chat-0", 1)
	stopped := make(chan error, 1)
	go func() { stopped <- a.Stop(context.Background()) }()
	g.waitState("chat-0", engines.Draining)
	eventually(t, "the node counts as lost", func() bool { node, _ := n.Node(); return node.Lost })
	n.Set([]local.Model{model("chat")})
	if !isProcessRunning(pid) {
		t.Error("a replica with a request was stopped")
	}
	g.setRequests("chat-0", 0)
	if err := <-stopped; err != nil {
		t.Errorf("Stop = %v", err)
	}
	if isProcessRunning(pid) {
		t.Error("the replica still runs after Stop has returned")
	}
	// The agent announced its end, so the gateway does not wait for LostAfter, which is a minute.
	eventually(t, "the node is lost", func() bool { node, _ := n.Node(); return node.Lost && len(g.replicas()) == 0 })
	if !hasLogged(g.logs, "node left") {
		t.Error("the gateway does not log that the node left")
	}
	a.stop()
	if err := a.waitEnd(t); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestOrphan(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	dir := nodeDir(t)
	a := g.agentPlan("n", "127.0.0.1", dir).run(t, func(c *AgentConfig) {
		c.OrphanGrace, c.DrainTimeout = 200*time.Millisecond, 100*time.Millisecond
	})
	n := g.waitConnected("n")
	n.Set([]local.Model{model("chat", 0)})
	pid := g.waitState("chat-0", engines.Ready).PID
	g.stop()
	eventually(t, "the replica ends", func() bool { return !isProcessRunning(pid) && a.replicaCount() == 0 })
	g.start()
	n = g.waitConnected("n")
	if n := len(n.Replicas()); n != 0 {
		t.Errorf("the orphan still has %d replicas", n)
	}
	n.Set([]local.Model{model("chat", 0)})
	g.waitState("chat-0", engines.Ready)
}
