package join

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

func TestReplicasComeAndGo(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	a := g.plan("gpu-2", "127.0.0.9", nodeDir(t)).run(t, nil)
	h := g.host("gpu-2")
	h.Set([]local.Model{model("chat", 0, 2), model("embed")})
	for _, id := range []string{"chat-0", "chat-2"} {
		r := g.is(id, engines.Ready)
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
	h.Set([]local.Model{model("chat", 2), model("embed", 1)})
	if s := g.replica("chat-0").State; s != engines.Draining {
		t.Errorf("a replica that is wanted no longer is %q at once, want %q", s, engines.Draining)
	}
	g.gone("chat-0")
	g.is("embed-1", engines.Ready)
	eventually(t, "its process ends", func() bool { return !processRuns(pids[0]) })
	if r := g.replica("chat-2"); r.PID != pids[1] || r.State != engines.Ready {
		t.Errorf("the replica that stays is %+v", r)
	}
	if lines := states(); strings.Contains(lines, "chat-2 dr") || !strings.Contains(lines, "chat-0 draining") {
		t.Errorf("history:\n%s", lines)
	}
	h.Set(nil) // also when the model is gone altogether
	g.gone("chat-2")
	g.gone("embed-1")
	eventually(t, "its process ends", func() bool { return !processRuns(pids[1]) })
	for _, text := range []string{"hf_secret", strings.Split(g.token(), ".")[1]} {
		if logged(g.logs, text) || logged(a.logs, text) {
			t.Error("a secret is in a log")
		}
	}
	info, err := os.Stat(filepath.Join(a.config.Dir.Path(), "node", "wish.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the wish is kept as %v, %v", info, err)
	}
}

func TestDrainWaitsForRequests(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	g.plan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	h := g.host("n")
	h.Set([]local.Model{model("chat", 0)})
	pid := g.is("chat-0", engines.Ready).PID
	g.setLoad("chat-0", 1)
	h.Set([]local.Model{model("chat")})
	g.is("chat-0", engines.Draining)
	// Ten looks of the launcher at least.
	for range 4 {
		before := time.Now()
		eventually(t, "time passes", func() bool { return time.Since(before) > 100*time.Millisecond })
		if !processRuns(pid) {
			t.Fatal("a replica with a request was ended")
		}
	}
	g.setLoad("chat-0", 0)
	g.gone("chat-0")
	eventually(t, "its process ends", func() bool { return !processRuns(pid) })
}

func TestAgentKilledAndBack(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	plan := g.plan("n", "127.0.0.1", nodeDir(t))
	first := plan.spawn(t)
	g.host("n").Set([]local.Model{model("chat", 0, 1)})
	before := map[string]engines.Replica{"chat-0": g.is("chat-0", engines.Ready), "chat-1": g.is("chat-1", engines.Ready)}
	states := g.history()
	changes := g.changed()
	kill9(first)
	eventually(t, "the stream has ended", func() bool { return !g.server.Hosts()[0].settled() })
	plan.Token = "" // it has joined
	plan.spawn(t)
	h := g.host("n")
	// A replica that comes proves that the new agent is at work.
	h.Set([]local.Model{model("chat", 0, 1, 2)})
	g.is("chat-2", engines.Ready)
	for id, r := range before {
		if now := g.replica(id); now.PID != r.PID || now.Address != r.Address || now.State != engines.Ready {
			t.Errorf("%s was %+v and is %+v", id, r, now)
		}
	}
	for line := range strings.Lines(states()) {
		if !strings.HasPrefix(line, "chat-2") && !strings.HasSuffix(line, " ready\n") {
			t.Errorf("the fleet has seen %q", line)
		}
	}
	if g.changed() == changes {
		t.Error("nobody was told that the node is back")
	}
}

func TestLostAndHealed(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Second)
	plan := g.plan("gpu-2", "127.0.0.1", nodeDir(t))
	first := plan.spawn(t)
	h := g.host("gpu-2")
	h.Set([]local.Model{model("chat", 0, 1)})
	pids := []int{g.is("chat-0", engines.Ready).PID, g.is("chat-1", engines.Ready).PID}
	changes := g.changed()
	kill9(first)
	r := g.is("chat-0", engines.Failed)
	if r.Reason != "node gpu-2 does not answer" || r.Address.IsValid() || r.PID != 0 {
		t.Errorf("a lost replica is %+v", r)
	}
	if node, ok := h.Node(); !ok || !node.Lost || node.CPUs == 0 {
		t.Errorf("Node = %+v, %v", node, ok)
	}
	if g.changed() == changes {
		t.Error("nobody was told that the node is lost")
	}
	h.Set([]local.Model{model("chat", 1)}) // chat-0 is replaced elsewhere
	g.gone("chat-0")
	g.is("chat-1", engines.Failed)
	states := g.history()
	plan.spawn(t)
	if again := g.host("gpu-2"); again != h {
		t.Error("the node has another Host")
	}
	if r := g.is("chat-1", engines.Ready); r.PID != pids[1] {
		t.Errorf("the replica that is still wanted is %+v, its pid was %d", r, pids[1])
	}
	eventually(t, "the other one ends", func() bool { return !processRuns(pids[0]) })
	if strings.Contains(states(), "chat-0") {
		t.Errorf("the fleet has seen the replica that others replace:\n%s", states())
	}
	h.Set([]local.Model{model("chat", 0, 1)})
	if r := g.is("chat-0", engines.Ready); r.PID == pids[0] {
		t.Error("the old process is back")
	}
}

func TestGatewayRestart(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	g.plan("a", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.plan("b", "127.0.0.2", nodeDir(t)).run(t, nil)
	g.host("a").Set([]local.Model{model("chat", 0)})
	g.host("b").Set([]local.Model{model("chat", 1)})
	pids := []int{g.is("chat-0", engines.Ready).PID, g.is("chat-1", engines.Ready).PID}
	g.stop()
	g.start()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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
	if all := g.host("a").Replicas(); len(all) != 1 || all[0].ID != "chat-0" {
		t.Errorf("Replicas = %+v", all)
	}
	g.host("a").Set([]local.Model{model("chat", 0)})
	g.host("b").Set([]local.Model{model("chat", 1, 2)})
	g.is("chat-2", engines.Ready)
	for i, id := range []string{"chat-0", "chat-1"} {
		if r := g.replica(id); r.PID != pids[i] {
			t.Errorf("%s was restarted: %+v", id, r)
		}
	}
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	a := g.plan("a", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.host("a")
	a.stop()
	g.stop()
	g.start()
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan struct{})
	go func() { defer close(returned); g.server.Await(ctx) }()
	if node, ok := g.server.Hosts()[0].Node(); ok {
		t.Errorf("before it is due, a node of an earlier run is %+v", node)
	}
	select {
	case <-returned:
		t.Error("Await returned without the node")
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	<-returned
}

func TestServerStop(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	g.plan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	h := g.host("n")
	h.Set([]local.Model{model("chat", 0)})
	pid := g.is("chat-0", engines.Ready).PID
	g.setLoad("chat-0", 1)
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := g.server.Stop(short); err == nil || !strings.Contains(err.Error(), "n") || !processRuns(pid) {
		t.Errorf("Stop with a request = %v", err)
	}
	g.is("chat-0", engines.Draining)
	h.Set([]local.Model{model("chat", 0, 1)})
	if w, _ := h.newWish(0); len(named(w.Models)) != 0 {
		t.Error("Set after Stop was taken")
	}
	g.setLoad("chat-0", 0)
	if err := g.server.Stop(t.Context()); err != nil {
		t.Errorf("Stop = %v", err)
	}
	if processRuns(pid) || len(g.replicas()) != 0 {
		t.Errorf("after Stop there are %+v", g.replicas())
	}
}

func TestStopAfterServe(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	g.plan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.host("n").Set([]local.Model{model("chat", 0)})
	g.is("chat-0", engines.Ready)
	g.stop()
	if err := g.server.Stop(t.Context()); err == nil || !strings.Contains(err.Error(), "n") {
		t.Errorf("Stop of a server that has ended = %v", err)
	}
}

func TestServerStopDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	g.stop()
	g.config.DrainTimeout = 100 * time.Millisecond
	g.start()
	g.plan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	m := model("chat", 0)
	m.DrainTimeout = time.Hour
	g.host("n").Set([]local.Model{m})
	g.is("chat-0", engines.Ready)
	g.setLoad("chat-0", 1) // for ever
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := g.server.Stop(ctx); err != nil {
		t.Errorf("Stop = %v", err)
	}
}

func TestAgentStop(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	a := g.plan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	h := g.host("n")
	h.Set([]local.Model{model("chat", 0)})
	pid := g.is("chat-0", engines.Ready).PID
	g.setLoad("chat-0", 1)
	stopped := make(chan error, 1)
	go func() { stopped <- a.Stop(context.Background()) }()
	g.is("chat-0", engines.Draining)
	eventually(t, "nothing is placed there", func() bool { node, _ := h.Node(); return node.Lost })
	h.Set([]local.Model{model("chat")})
	if !processRuns(pid) {
		t.Error("the replica was ended with a request")
	}
	g.setLoad("chat-0", 0)
	if err := <-stopped; err != nil {
		t.Errorf("Stop = %v", err)
	}
	if processRuns(pid) {
		t.Error("Stop has returned and the replica runs")
	}
	// It said goodbye: nobody waits a minute for it.
	eventually(t, "the node is gone", func() bool { n, _ := h.Node(); return n.Lost && len(g.replicas()) == 0 })
	if !logged(g.logs, "a node has left") {
		t.Error("the gateway does not say that the node has left")
	}
	a.stop()
	if err := a.ended(t); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestOrphan(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	dir := nodeDir(t)
	a := g.plan("n", "127.0.0.1", dir).run(t, func(c *AgentConfig) {
		c.OrphanGrace, c.DrainTimeout = 200*time.Millisecond, 100*time.Millisecond
	})
	h := g.host("n")
	h.Set([]local.Model{model("chat", 0)})
	pid := g.is("chat-0", engines.Ready).PID
	g.stop()
	eventually(t, "the replica ends", func() bool { return !processRuns(pid) && len(a.Replicas()) == 0 })
	g.start()
	h = g.host("n")
	if n := len(h.Replicas()); n != 0 {
		t.Errorf("the orphan still has %d replicas", n)
	}
	h.Set([]local.Model{model("chat", 0)})
	g.is("chat-0", engines.Ready)
}
