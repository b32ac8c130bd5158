package gateway

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/join"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// runsNode runs the agent of a node of this gateway until the test ends.
func runsNode(t *testing.T, g *Gateway, name string) *join.Agent {
	t.Helper()
	c := g.options.Config
	token, err := join.Token(joinDir(c.StateDir), join.TokenRequest{Node: name})
	if err != nil {
		t.Fatal(err)
	}
	dir := claimed(t, filepath.Join(t.TempDir(), name))
	agent, err := join.NewAgent(join.AgentConfig{
		Gateway: c.Control.Nodes, Token: token, Name: name, Address: netip.MustParseAddr("127.0.0.1"), Dir: dir, Self: g.self,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the agent: %v", err)
		}
		if err := dir.EndAll(context.Background(), 0); err != nil {
			t.Error(err)
		}
	})
	return agent
}

// lostNodes returns the nodes that the condition NodeLost names.
func lostNodes(g *Gateway) (lost []string) {
	for _, c := range g.nodeConditions() {
		lost = append(lost, c.Subject)
	}
	return lost
}

// A node whose agent was stopped properly is no fault, also for the next run of the gateway. It
// gets no replicas.
func TestN4_ANodeThatHasLeftIsNoFault(t *testing.T) {
	path := t.TempDir()
	free := strings.TrimPrefix(strings.Split(listeners(t), "\n")[0], "listen: ")
	c := parse(t, path, "control: {nodes: '"+free+"'}\n"+oneReplica)
	dir := claimed(t, path)
	g := newGateway(t, dir, c)
	stop, returned := runs(t, g)
	agent := runsNode(t, g, "far")
	known := func() bool {
		return slices.ContainsFunc(g.launchers.allNodes(), func(n engines.Node) bool { return n.Name == "far" && !n.Lost })
	}
	eventually(t, "the node has joined", known)
	if err := agent.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node has left", func() bool { return !known() })
	if lost := lostNodes(g); len(lost) > 0 {
		t.Errorf("%v are lost", lost)
	}
	if all := g.launchers.allNodes(); !all[1].Left {
		t.Errorf("%+v has not left", all[1])
	}
	stop()
	if err := <-returned; err != nil {
		t.Fatal(err)
	}
	if err := dir.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	g = newGateway(t, dir, c)
	if all := g.launchers.allNodes(); len(all) != 2 || !all[1].Lost || !all[1].Left || len(lostNodes(g)) > 0 {
		t.Errorf("the next run knows %+v, of which %v are lost", all, lostNodes(g))
	}
}

// A gateway that is told to stop while it tries to recover from a failed restart also stops the
// replicas of the nodes that have joined.
func TestX20_AGatewayWithoutASuccessorStopsTheReplicasOfNodes(t *testing.T) {
	path, certificates := t.TempDir(), t.TempDir()
	testutil.NewAuthority(t, "authority").Issue(t, certificates, "server", "gateway.example")
	key := filepath.Join(certificates, "server.key")
	free := strings.TrimPrefix(strings.Split(listeners(t), "\n")[0], "listen: ")
	c := parse(t, path, "control: {nodes: '"+free+"'}\nnodes: [{name: far, labels: [far]}]\n"+
		"tls: {cert: "+filepath.Join(certificates, "server.crt")+", key: "+key+"}\nauth: {mode: none}\n"+
		"models: [{name: chat, task: text-generation, engine: sim, cluster: far, replicas: {min: 1, max: 1}}]\n")
	g := newGateway(t, claimed(t, path), c)
	g.succession.start = func(ctx context.Context) (*successor, error) {
		if err := os.Remove(key); err != nil {
			return nil, err
		}
		return failsLate(ctx, g)
	}
	stop, returned := runs(t, g)
	runsNode(t, g, "far")
	eventually(t, "the replica is ready", func() bool { return pidOf(g, "chat") != 0 })
	replica := pidOf(g, "chat")
	if err := syscall.Kill(os.Getpid(), handOverSignal); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a try has failed", func() bool { failed, _ := g.succession.failure.last(); return strings.Contains(failed, "server.key") })
	stop()
	if err := <-returned; err != nil || alive(replica) {
		t.Errorf("the stop: %v, replica alive: %v", err, alive(replica))
	}
}
