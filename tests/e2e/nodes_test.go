package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// host is a `sluice node` on an address of its own.
type host struct {
	*gateway // only what starts, stops and looks at processes
	name     string
}

// hosts are addresses of the loopback network that stand for hosts, counted up.
var hosts atomic.Int64

// address is a loopback address of the test's own.
func address() string {
	n := hosts.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()%40, os.Getpid()/40%250, n+1)
}

// control is the address that hosts join a gateway on, as a line of its file.
func control(t *testing.T) (address, line string) {
	address = fmt.Sprint("127.0.0.1:", freePort(t))
	return address, "control: " + address + "\n"
}

// begin starts a gateway that is not ready before hosts have joined.
func (g *gateway) begin() {
	g.t.Helper()
	g.t.Cleanup(g.stop)
	g.launch()
	g.awaitAdmin()
}

func (g *gateway) awaitAdmin() {
	g.t.Helper()
	eventually(g.t, "the admin listener answers", func() error { return g.tryGet("/api/v1/status", new(struct{})) })
}

// token is what lets hosts join.
func (g *gateway) token() string {
	g.t.Helper()
	out, err := exec.Command(binary, "node", "token", "-c", g.Config).Output()
	if err != nil {
		g.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// join starts a host that joins.
func join(t *testing.T, control, token, name string) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "sn-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &host{gateway: &gateway{t: t, Dir: filepath.Join(dir, "state")}, name: name}
	h.command = []string{"node", "--join", control, "--token", token, "--name", name, "--address", address(), "--state-dir", h.Dir, "--drain-timeout", "5s"}
	if h.log, err = os.Create(filepath.Join(dir, "node.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.stop)
	h.launch()
	return h
}

// die is the loss of the whole host: nothing on it runs any more.
func (h *host) die() {
	h.t.Helper()
	for n := len(h.processes()); n > 0; n = len(h.processes()) {
		for pid := range h.processes() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	<-h.exited
}

// awaitHosts waits until these have joined and answer.
func (g *gateway) awaitHosts(names ...string) {
	g.t.Helper()
	eventually(g.t, fmt.Sprint("hosts that answer: ", names), func() error {
		var list struct {
			Nodes []struct {
				Name string
				Lost bool
			}
		}
		g.get("/api/v1/nodes", &list)
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

// awaitOn waits until so many replicas of the model are ready on each of the hosts.
func (g *gateway) awaitOn(want map[string]int) map[string]replica {
	g.t.Helper()
	var all map[string]replica
	eventually(g.t, fmt.Sprint("replicas by host: ", want), func() error {
		all = g.replicas()
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

// mostOf is most of a host's processors: two replicas that take so much do not fit on one.
func mostOf() string { return fmt.Sprint(0.75 * float64(runtime.NumCPU())) }

func hereName(t *testing.T) string {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

const onHosts = `
nodes: [{name: gpu-1, labels: [h100]}, {name: gpu-2, labels: [h100]}]
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
	at, line := control(t)
	g := prepare(t, line+fmt.Sprintf(onHosts, 3, 3, mostOf(), "0s", ""))
	g.begin()
	token := g.token()
	join(t, at, token, "gpu-1")
	join(t, at, token, "gpu-2")
	g.awaitOn(map[string]int{hereName(t): 1, "gpu-1": 1, "gpu-2": 1})
	g.awaitReady()
	served := map[string]bool{}
	for i := range 12 {
		a := g.post("/v1/chat/completions", chat("chat", i%2 == 0, 3, "Hello"))
		if a.StatusCode != 200 {
			t.Fatal(a)
		}
		served[a.Header.Get("X-Sluice-Replica")] = true
	}
	if len(served) != 3 {
		t.Errorf("served by %v", served)
	}
	wrong := join(t, at, token[:len(token)-4]+"AAAA", "gpu-3")
	eventually(t, "a wrong token is refused", func() error {
		if log := wrong.logText(); !strings.Contains(log, "token") {
			return fmt.Errorf("it logs %s", log)
		}
		return nil
	})
	var list struct{ Nodes []struct{ Name string } }
	g.get("/api/v1/nodes", &list)
	if len(list.Nodes) != 3 {
		t.Errorf("%+v", list.Nodes)
	}
}

func TestE2E_N4_ALabelKeepsAModelOnItsHosts(t *testing.T) {
	t.Parallel()
	at, line := control(t)
	g := prepare(t, line+fmt.Sprintf(onHosts, 1, 1, "0.1", "0s", "cluster: h100"))
	g.begin()
	eventually(t, "it waits for such a host", func() error {
		if r := g.replicas()["chat-0"]; r.State != "pending" || !strings.Contains(r.Reason, "h100") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	token := g.token()
	join(t, at, token, "plain")
	join(t, at, token, "gpu-1")
	g.awaitOn(map[string]int{"gpu-1": 1})
}

// The loss of a host is noticed and made up for, and until then costs no request whose response has not begun.
func TestE2E_N4_N5_AHostIsLost(t *testing.T) {
	t.Parallel()
	at, line := control(t)
	g := prepare(t, line)
	g.begin()
	token := g.token()
	join(t, at, token, "gpu-1")
	second := join(t, at, token, "gpu-2")
	g.awaitHosts("gpu-1", "gpu-2")
	g.configure(line + fmt.Sprintf(onHosts, 4, 4, "0.2", "2ms", "cluster: h100"))
	g.awaitOn(map[string]int{"gpu-1": 2, "gpu-2": 2})
	g.awaitReady()
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
				r, err := g.open(context.Background(), "/v1/chat/completions", chat("chat", n%2 == 0, 10, fmt.Sprint(i, " asks ", n)))
				if err != nil || r.StatusCode != 200 {
					t.Errorf("failed before its response had begun: %v %v", r, err)
					return
				}
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}
		})
	}
	second.die()
	g.awaitOn(map[string]int{"gpu-1": 4})
	close(stop)
	clients.Wait()
	second.launch()
	g.awaitHosts("gpu-1", "gpu-2")
	g.awaitOn(map[string]int{"gpu-1": 4}) // nobody moves for that
}

// Neither the agent's death nor the gateway's touches a replica or its streams.
func TestE2E_N4_ReplicasOfAHostOutliveAgentAndGateway(t *testing.T) {
	t.Parallel()
	at, line := control(t)
	g := prepare(t, line+fmt.Sprintf(onHosts, 2, 2, "0.2", "20ms", "cluster: h100"))
	g.begin()
	h := join(t, at, g.token(), "gpu-1")
	before := g.awaitOn(map[string]int{"gpu-1": 2})
	g.awaitReady()
	var streams sync.WaitGroup
	for range 4 {
		r, err := g.open(context.Background(), "/v1/chat/completions", chat("chat", true, 400, "Hello")) // eight seconds
		if err != nil || r.StatusCode != 200 {
			t.Fatal(r, err)
		}
		streams.Go(func() {
			defer r.Body.Close()
			body, err := io.ReadAll(r.Body)
			if err == nil {
				err = wholeStream(body)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	h.kill()
	h.launch()
	g.kill()
	g.launch()
	g.awaitReady()
	after := g.awaitOn(map[string]int{"gpu-1": 2})
	for id, r := range before {
		if after[id].PID != r.PID {
			t.Errorf("%s had pid %d and has %d", id, r.PID, after[id].PID)
		}
	}
	if a := g.post("/v1/chat/completions", chat("chat", false, 2, "Hello")); a.StatusCode != 200 {
		t.Error(a)
	}
	streams.Wait()
}

// A host that comes back some seconds after the gateway keeps what it has, though nobody asks for it in that moment.
func TestE2E_N4_AHostIsLateAfterARestart(t *testing.T) {
	t.Parallel()
	at, line := control(t)
	g := prepare(t, line+fmt.Sprintf(onHosts, 0, 2, "0.2", "0s", "cluster: h100"))
	g.begin()
	h := join(t, at, g.token(), "gpu-1")
	g.awaitHosts("gpu-1")
	ask := func() {
		t.Helper()
		if a := g.post("/v1/chat/completions", chat("chat", false, 2, "Hello")); a.StatusCode != 200 {
			t.Error(a)
		}
	}
	g.awaitReady()
	ask()
	before := g.awaitOn(map[string]int{"gpu-1": 1})
	h.signal(syscall.SIGSTOP)
	g.kill()
	g.launch()
	eventually(t, "the gateway goes on without the host", func() error {
		if n := strings.Count(g.logText(), "INFO  serving"); n < 2 {
			return fmt.Errorf("it has served %d times", n)
		}
		return nil
	})
	h.signal(syscall.SIGCONT)
	after := g.awaitOn(map[string]int{"gpu-1": 1})
	ask()
	if after["chat-0"].PID != before["chat-0"].PID || strings.Contains(g.logText(), "needs fewer replicas") {
		t.Errorf("%+v is now %+v, or leaves", before, after)
	}
}

func TestE2E_N4_ACleanStopEndsReplicasOnAllHosts(t *testing.T) {
	t.Parallel()
	at, line := control(t)
	g := prepare(t, line+fmt.Sprintf(onHosts, 2, 2, "0.2", "0s", "cluster: h100"))
	g.launch()
	g.awaitAdmin()
	h := join(t, at, g.token(), "gpu-1")
	g.awaitOn(map[string]int{"gpu-1": 2})
	g.stop()
	for _, command := range h.processes() {
		if strings.Contains(command, " sim ") {
			t.Errorf("still running: %s", command)
		}
	}
}

// A model that does not fit takes the place of one that nobody uses, and waits for one that somebody does.
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
	g := start(t, "models:"+fmt.Sprintf(model, "a", mostOf())+fmt.Sprintf(model, "b", mostOf()))
	for _, name := range []string{"a", "b", "a"} {
		if a := g.post("/v1/chat/completions", chat(name, false, 2, "Hello")); a.StatusCode != 200 {
			t.Fatal(a)
		}
	}
	r, err := g.open(context.Background(), "/v1/chat/completions", chat("a", true, 100, "Hello")) // two seconds
	if err != nil || r.StatusCode != 200 {
		t.Fatal(r, err)
	}
	defer r.Body.Close()
	began := time.Now()
	a := g.post("/v1/chat/completions", chat("b", false, 2, "Hello"))
	if a.StatusCode != 200 {
		t.Error(a)
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = wholeStream(body)
	}
	if err != nil {
		t.Errorf("the busy model's stream: %v", err)
	}
	if time.Since(began) < time.Second {
		t.Error("the busy model was not waited for")
	}
}
