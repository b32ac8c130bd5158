package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// joinedNode is a running `sluice node`. It stands for a machine with an address of its own.
type joinedNode struct {
	*harness.Gateway // used only to start, stop and observe processes
}

// lastNodeAddress counts the loopback addresses that stand for nodes.
var lastNodeAddress atomic.Int64

// nextNodeAddress returns a loopback address that no other node of the tests has.
func nextNodeAddress() string {
	n := lastNodeAddress.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()%40, os.Getpid()/40%250, n+1)
}

// controlAddress returns a free address on which nodes join a gateway, and the line of the
// configuration that sets it.
func controlAddress(t *testing.T) (address, line string) {
	address = fmt.Sprint("127.0.0.1:", testutil.FreePort(t))
	return address, "control: " + address + "\n"
}

// startBeforeNodes starts a gateway that is not ready before nodes have joined.
func startBeforeNodes(g *harness.Gateway) {
	g.T.Helper()
	g.T.Cleanup(g.Stop)
	g.Launch()
	g.AwaitAdmin()
}

// joinToken makes a token with which a node joins the gateway by this name.
func joinToken(g *harness.Gateway, name string) string {
	g.T.Helper()
	out, err := exec.Command(harness.Program(), "node", "token", name, "-c", g.Config).Output()
	if err != nil {
		g.T.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// joinNewNode makes a token for a node and starts the node.
func joinNewNode(g *harness.Gateway, control, name string) *joinedNode {
	g.T.Helper()
	return joinNode(g.T, control, joinToken(g, name), name)
}

// joinNode starts a node that joins the gateway at the control address.
func joinNode(t *testing.T, control, token, name string) *joinedNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "sn-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &joinedNode{Gateway: &harness.Gateway{T: t, Dir: filepath.Join(dir, "state")}}
	h.Command = []string{"node", "--join", control, "--token", token, "--name", name, "--address", nextNodeAddress(), "--state-dir", h.Dir, "--drain-timeout", "5s"}
	if h.Log, err = os.Create(filepath.Join(dir, "node.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Stop)
	h.Launch()
	return h
}

// killAll kills every process of the node, as the loss of the machine does.
func (h *joinedNode) killAll() {
	h.T.Helper()
	for n := len(h.Processes()); n > 0; n = len(h.Processes()) {
		for pid := range h.Processes() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	h.AwaitExit()
}

// awaitNodes waits until the gateway reports each of the nodes as joined and not lost.
func awaitNodes(g *harness.Gateway, names ...string) {
	g.T.Helper()
	harness.Eventually(g.T, fmt.Sprint("nodes that are not lost: ", names), func() error {
		var list struct {
			Nodes []struct {
				Name string
				Lost bool
			}
		}
		g.Get("/api/v1/nodes", &list)
		here := map[string]bool{}
		for _, n := range list.Nodes {
			here[n.Name] = !n.Lost
		}
		for _, name := range names {
			if !here[name] {
				return fmt.Errorf("%+v", list)
			}
		}
		return nil
	})
}

// awaitReplicasOn waits until each node has as many ready replicas as want says. It returns all
// replicas.
func awaitReplicasOn(g *harness.Gateway, want map[string]int) map[string]harness.Replica {
	g.T.Helper()
	var all map[string]harness.Replica
	harness.Eventually(g.T, fmt.Sprint("ready replicas by node: ", want), func() error {
		all = g.Replicas()
		on := map[string]int{}
		for _, r := range all {
			if r.State == "ready" {
				on[r.Node]++
			}
		}
		if fmt.Sprint(on) != fmt.Sprint(want) {
			return fmt.Errorf("%v: %+v", on, all)
		}
		return nil
	})
	return all
}

// mostCPUs returns three quarters of the processors of a node. Two replicas that need so many do
// not fit on one node.
func mostCPUs() string { return fmt.Sprint(0.75 * process.CPULimit()) }

// hostname returns the name of the node on which the gateway itself runs.
func hostname(t *testing.T) string {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// modelOnNodes is a configuration with the nodes gpu-1 and gpu-2 and the simulated model chat. The
// nodes connect from 127.0.0.1, and their replicas have other loopback addresses.
const modelOnNodes = `
nodes:
  - {name: gpu-1, labels: [h100], addresses: [127.0.0.0/8]}
  - {name: gpu-2, labels: [h100], addresses: [127.0.0.0/8]}
models:
  - name: chat
    engine: sim
    task: text-generation
    replicas: {min: %d, max: %d}
    resources: {cpu: %s}
    routing: {strategy: round_robin, slow_start: 0s}
    variables: {prefill_rate: 0, token_interval: %s, max_num_seqs: 64}
    %s
`

func TestE2E_N4_HostsJoinAndRunReplicas(t *testing.T) {
	t.Parallel()
	at, line := controlAddress(t)
	g := harness.Prepare(t, line+fmt.Sprintf(modelOnNodes, 3, 3, mostCPUs(), "0s", ""))
	startBeforeNodes(g)
	joinNewNode(g, at, "gpu-1")
	joinNewNode(g, at, "gpu-2")
	awaitReplicasOn(g, map[string]int{hostname(t): 1, "gpu-1": 1, "gpu-2": 1})
	g.AwaitReady()
	g.AwaitServing(3)
	token := joinToken(g, "gpu-3")
	wrong := joinNode(t, at, token[:len(token)-4]+"AAAA", "gpu-3")
	harness.Eventually(t, "a wrong token is refused", func() error {
		if log := wrong.LogText(); !strings.Contains(log, "token") {
			return fmt.Errorf("it logs %s", log)
		}
		return nil
	})
	var list struct{ Nodes []struct{ Name string } }
	g.Get("/api/v1/nodes", &list)
	if len(list.Nodes) != 3 {
		t.Errorf("%+v", list.Nodes)
	}
}

func TestE2E_N4_ALabelKeepsAModelOnItsHosts(t *testing.T) {
	t.Parallel()
	at, line := controlAddress(t)
	g := harness.Prepare(t, line+fmt.Sprintf(modelOnNodes, 1, 1, "0.1", "0s", "cluster: h100"))
	startBeforeNodes(g)
	harness.Eventually(t, "it waits for such a host", func() error {
		if r := g.Replicas()["chat-0"]; r.State != "pending" || !strings.Contains(r.Reason, "h100") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	joinNewNode(g, at, "plain")
	joinNewNode(g, at, "gpu-1")
	awaitReplicasOn(g, map[string]int{"gpu-1": 1})
}

// The loss of a host is noticed and made up for, and until then costs no request whose response has
// not begun.
func TestE2E_N4_N5_AHostIsLost(t *testing.T) {
	t.Parallel()
	at, line := controlAddress(t)
	g := harness.Prepare(t, line)
	startBeforeNodes(g)
	joinNewNode(g, at, "gpu-1")
	second := joinNewNode(g, at, "gpu-2")
	awaitNodes(g, "gpu-1", "gpu-2")
	g.Configure(line + fmt.Sprintf(modelOnNodes, 4, 4, "0.2", "2ms", "cluster: h100"))
	awaitReplicasOn(g, map[string]int{"gpu-1": 2, "gpu-2": 2})
	g.AwaitReady()
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				r, err := g.Open(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", n%2 == 0, 10, fmt.Sprint(i, " asks ", n)))
				if err != nil || r.StatusCode != 200 {
					t.Errorf("failed before its response had begun: %v %v", r, err)
					return
				}
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}
		})
	}
	second.killAll()
	awaitReplicasOn(g, map[string]int{"gpu-1": 4})
	close(stop)
	clients.Wait()
	second.Launch()
	awaitNodes(g, "gpu-1", "gpu-2")
	awaitReplicasOn(g, map[string]int{"gpu-1": 4}) // nobody moves for that
}

// Neither the agent's death nor the gateway's touches a replica or its streams.
func TestE2E_N4_ReplicasOfAHostOutliveAgentAndGateway(t *testing.T) {
	t.Parallel()
	at, line := controlAddress(t)
	g := harness.Prepare(t, line+fmt.Sprintf(modelOnNodes, 2, 2, "0.2", "20ms", "cluster: h100"))
	startBeforeNodes(g)
	h := joinNewNode(g, at, "gpu-1")
	before := awaitReplicasOn(g, map[string]int{"gpu-1": 2})
	g.AwaitReady()
	var streams sync.WaitGroup
	for range 4 {
		r, err := g.Open(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", true, 400, "Hello")) // eight seconds
		if err != nil || r.StatusCode != 200 {
			t.Fatal(r, err)
		}
		streams.Go(func() {
			defer r.Body.Close()
			body, err := io.ReadAll(r.Body)
			if err == nil {
				err = harness.CheckWholeStream(body)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	h.Kill()
	h.Launch()
	g.Kill()
	g.Launch()
	g.AwaitReady()
	after := awaitReplicasOn(g, map[string]int{"gpu-1": 2})
	for id, r := range before {
		if after[id].PID != r.PID {
			t.Errorf("%s had pid %d and has %d", id, r.PID, after[id].PID)
		}
	}
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "Hello")); a.StatusCode != 200 {
		t.Error(a)
	}
	streams.Wait()
}

// A host that comes back some seconds after the gateway keeps what it has, though nobody asks for
// it in that moment.
func TestE2E_N4_AHostIsLateAfterARestart(t *testing.T) {
	t.Parallel()
	at, line := controlAddress(t)
	g := harness.Prepare(t, line+fmt.Sprintf(modelOnNodes, 0, 2, "0.2", "0s", "cluster: h100"))
	startBeforeNodes(g)
	h := joinNewNode(g, at, "gpu-1")
	awaitNodes(g, "gpu-1")
	ask := func() {
		t.Helper()
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "Hello")); a.StatusCode != 200 {
			t.Error(a)
		}
	}
	g.AwaitReady()
	ask()
	before := awaitReplicasOn(g, map[string]int{"gpu-1": 1})
	h.Signal(syscall.SIGSTOP)
	g.Kill()
	g.Launch()
	g.AwaitLogged(`"msg":"serving"`, 2) // it goes on without the host
	h.Signal(syscall.SIGCONT)
	after := awaitReplicasOn(g, map[string]int{"gpu-1": 1})
	ask()
	if after["chat-0"].PID != before["chat-0"].PID || strings.Contains(g.LogText(), "needs fewer replicas") {
		t.Errorf("%+v is now %+v, or leaves", before, after)
	}
}

func TestE2E_N4_ACleanStopEndsReplicasOnAllHosts(t *testing.T) {
	t.Parallel()
	at, line := controlAddress(t)
	g := harness.Prepare(t, line+fmt.Sprintf(modelOnNodes, 2, 2, "0.2", "0s", "cluster: h100"))
	g.Launch()
	g.AwaitAdmin()
	h := joinNewNode(g, at, "gpu-1")
	awaitReplicasOn(g, map[string]int{"gpu-1": 2})
	g.Stop()
	for _, command := range h.Processes() {
		if strings.Contains(command, " sim ") {
			t.Errorf("still running: %s", command)
		}
	}
}

// A model that does not fit takes the place of one that nobody uses, and waits for one that
// somebody does.
func TestE2E_P3_EvictIdleButNeverBusy(t *testing.T) {
	t.Parallel()
	model := `
  - name: %s
    engine: sim
    task: text-generation
    replicas: {min: 0, max: 1}
    cooldown: 1h
    evict: idle
    resources: {cpu: %s}
    variables: {prefill_rate: 0, token_interval: 20ms, max_num_seqs: 8}
`
	g := harness.Start(t, "models:"+fmt.Sprintf(model, "a", mostCPUs())+fmt.Sprintf(model, "b", mostCPUs()))
	for _, name := range []string{"a", "b", "a"} {
		if a := g.Post("/v1/chat/completions", harness.ChatBody(name, false, 2, "Hello")); a.StatusCode != 200 {
			t.Fatal(a)
		}
	}
	r, err := g.Open(context.Background(), "/v1/chat/completions", harness.ChatBody("a", true, 100, "Hello")) // two seconds
	if err != nil || r.StatusCode != 200 {
		t.Fatal(r, err)
	}
	defer r.Body.Close()
	a := g.Post("/v1/chat/completions", harness.ChatBody("b", false, 2, "Hello"))
	if a.StatusCode != 200 {
		t.Error(a)
	}
	if n := g.Model("a").InFlight; n != 0 {
		t.Errorf("b was served while a had %d requests", n)
	}
	if r, there := g.Replicas()["a-0"]; there && r.State == "ready" {
		t.Errorf("b did not take the place of a: %+v", r)
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = harness.CheckWholeStream(body)
	}
	if err != nil {
		t.Errorf("the busy model was not waited for, its stream: %v", err)
	}
}

// TestE2E_P3_AModelComesBackWithItsReplica: a reload removes a model, and the next one puts it
// back. The model goes on with the replica that still streams, although there is no room for a
// second one.
func TestE2E_P3_AModelComesBackWithItsReplica(t *testing.T) {
	t.Parallel()
	model := `
  - name: %s
    engine: sim
    task: text-generation
    resources: {cpu: %s}
    variables: {prefill_rate: 0, token_interval: 20ms, max_num_seqs: 8}
`
	other := "models:" + fmt.Sprintf(model, "other", "0.1")
	both := other + fmt.Sprintf(model, "m", mostCPUs())
	g := harness.Start(t, both)
	g.AwaitReadyReplicas("m", 1)
	pid := g.Replicas()["m-0"].PID
	r, err := g.Open(context.Background(), "/v1/chat/completions", harness.ChatBody("m", true, 1000, "Hello")) // twenty seconds
	if err != nil || r.StatusCode != 200 {
		t.Fatal(r, err)
	}
	defer r.Body.Close()
	g.Configure(other)
	harness.Eventually(t, "the model is gone", func() error {
		if g.Model("m").Name != "" {
			return errors.New("it is served")
		}
		return nil
	})
	g.Configure(both)
	g.AwaitReadyReplicas("m", 1)
	if r := g.Replicas()["m-0"]; r.PID != pid {
		t.Errorf("it had the process %d and came back with %+v", pid, r)
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = harness.CheckWholeStream(body)
	}
	if err != nil {
		t.Errorf("its stream: %v", err)
	}
}
