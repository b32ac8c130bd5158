package join

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/engines/supervise"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

const (
	// waitLimit is how long a test waits for something that normally happens soon. It is long
	// because the machine may be busy.
	waitLimit = testutil.Patience
	// roleKey makes the test binary run as an engine or an agent. agentKey holds the agent's
	// configuration. hangKey is a file: while it exists, an engine answers nothing.
	roleKey  = "JOIN_TEST_ROLE"
	agentKey = "JOIN_TEST_AGENT"
	hangKey  = "JOIN_TEST_HANG"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleKey) {
	case "":
		goleak.VerifyTestMain(m)
	case "engine":
		runTestEngine(net.JoinHostPort(os.Args[1], os.Args[2]))
	case "agent":
		runTestAgent(os.Getenv(agentKey))
	}
}

// runTestEngine serves HTTP at the address. It is ready at once.
func runTestEngine(address string) {
	err := http.ListenAndServe(address, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := os.Stat(os.Getenv(hangKey)); err == nil {
			<-r.Context().Done()
		}
	}))
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// agentPlan is the configuration of an agent, in a form that can be passed to another process.
type agentPlan struct{ Gateway, Token, Name, Address, Dir string }

func (p agentPlan) config(dir *process.Dir) AgentConfig {
	return AgentConfig{Gateway: p.Gateway, Token: p.Token, Name: p.Name, Address: netip.MustParseAddr(p.Address), Dir: dir, Self: os.Args[0],
		Launcher: local.Config{DrainSettle: 10 * time.Millisecond, BackOff: supervise.BackOff{First: 20 * time.Millisecond}}}
}

// runTestAgent runs an agent until the process is killed.
func runTestAgent(text string) {
	var plan agentPlan
	exitOnError(json.Unmarshal([]byte(text), &plan))
	dir, err := process.Open(plan.Dir, nil)
	exitOnError(err)
	exitOnError(dir.Claim(context.Background()))
	a, err := NewAgent(plan.config(dir))
	exitOnError(err)
	exitOnError(a.Run(context.Background()))
}

func exitOnError(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// gateway is a Server with its fleet, log and folder.
type gateway struct {
	t      *testing.T
	config ServerConfig
	fleet  *engines.Fleet
	server *Server
	// address is the host:port of the listener. It stays the same when the gateway starts again.
	address string
	logs    *observer.ObservedLogs
	// stop ends the server without telling its nodes, as a crash would.
	stop func()

	mu sync.Mutex
	// inFlight holds requests by replica id. elsewhere says that they are at the replica of this
	// address, if another one has the id too. changes counts the calls of Changed. Guarded by mu.
	inFlight  map[string]int
	elsewhere map[string]netip.AddrPort
	changes   int
}

// newGateway returns a running gateway with the models "chat" and "embed".
func newGateway(t *testing.T, lostAfter time.Duration) *gateway {
	t.Helper()
	g := &gateway{t: t, address: fmt.Sprint("127.0.0.1:", testutil.FreePort(t)), inFlight: map[string]int{}, elsewhere: map[string]netip.AddrPort{}}
	core, logs := observer.New(zap.DebugLevel)
	g.logs = logs
	g.config = ServerConfig{
		OwnName: func() string { return "own" },
		Dir:     t.TempDir(), InFlight: g.requests, LostAfter: lostAfter, DrainSettle: 20 * time.Millisecond, Log: zap.New(core),
		Labels: func(node string) []string { return []string{"label-of-" + node} },
		// The nodes of the tests listen on addresses of their own, and connect from 127.0.0.1.
		Addresses: func(string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} },
		Changed: func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.changes++
		},
	}
	g.start()
	return g
}

// start starts the server with an empty fleet, for the first time or again.
func (g *gateway) start() {
	g.t.Helper()
	g.fleet = engines.NewFleet()
	g.fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "chat"}, {Name: "embed"}}})
	g.config.Fleet = g.fleet
	server, err := NewServer(g.config)
	if err != nil {
		g.t.Fatal(err)
	}
	listener := testutil.ListenAgain(g.t, g.address)
	g.server, g.address = server, listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listener) }()
	var once sync.Once
	g.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				g.t.Errorf("Serve = %v", err)
			}
		})
	}
	g.t.Cleanup(g.stop)
}

func (g *gateway) requests(id string, address netip.AddrPort) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := g.elsewhere[id]; address.IsValid() && at.IsValid() && at != address {
		return 0
	}
	return g.inFlight[id]
}

func (g *gateway) setRequests(id string, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight[id] = n
}

func (g *gateway) changeCount() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changes
}

// token makes a token for the name, which may replace the machine that has it.
func (g *gateway) token(name string) string {
	g.t.Helper()
	token, err := Token(g.config.Dir, TokenRequest{Node: name, Replace: true})
	if err != nil {
		g.t.Fatal(err)
	}
	return token
}

// waitConnected waits until the node is connected and has reported.
func (g *gateway) waitConnected(name string) *Node {
	g.t.Helper()
	var found *Node
	eventually(g.t, "node "+name+" is connected", func() bool {
		for _, n := range g.server.Nodes() {
			if node, ok := n.Node(); n.Name() == name && n.hasReported() && ok && !node.Lost {
				found = n
			}
		}
		return found != nil
	})
	return found
}

func (g *gateway) replicas() (all []engines.Replica) {
	for _, m := range g.fleet.Snapshot().Models {
		all = append(all, m.Replicas...)
	}
	return all
}

func (g *gateway) replica(id string) engines.Replica {
	for _, r := range g.replicas() {
		if r.ID == id {
			return r
		}
	}
	return engines.Replica{}
}

// waitState waits until the replica has the state.
func (g *gateway) waitState(id string, state engines.State) engines.Replica {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%s is %s", id, state), func() bool { return g.replica(id).State == state })
	return g.replica(id)
}

// waitGone waits until the fleet has no replica of this id.
func (g *gateway) waitGone(id string) {
	g.t.Helper()
	eventually(g.t, id+" is gone", func() bool { return g.replica(id).ID == "" })
}

// history records every snapshot as lines "id state" until the test ends.
func (g *gateway) history() (read func() string) {
	var mu sync.Mutex
	var lines strings.Builder
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	fleet := g.fleet
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			snapshot, changed := fleet.Watch()
			mu.Lock()
			for _, m := range snapshot.Models {
				for _, r := range m.Replicas {
					fmt.Fprintf(&lines, "%s %s\n", r.ID, r.State)
				}
			}
			mu.Unlock()
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}()
	g.t.Cleanup(func() { cancel(); <-ended })
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return lines.String()
	}
}

// model returns a model of the test binary's engine with replicas of these indices.
func model(name string, indices ...int) local.Model {
	if indices == nil {
		indices = []int{}
	}
	return local.Model{
		Model: engines.Model{Name: name, Desired: 9, Task: engines.TextGeneration, Launcher: engines.Local}, Indices: indices,
		Version: engines.Version{
			Command: []string{"{{.Sluice}}", "{{.Host}}", "{{.Port}}"},
			Ready:   engines.Probe{Path: "/health", Every: 10 * time.Millisecond},
			Health:  engines.Probe{Path: "/health", Every: 50 * time.Millisecond},
		},
		Launch:       engines.Launch{Name: name, Sluice: "/the/gateway's/own"},
		Env:          map[string]string{roleKey: "engine", "GORACE": "atexit_sleep_ms=0", "HF_TOKEN": "hf_secret"},
		StartTimeout: waitLimit, DrainTimeout: waitLimit,
	}
}

// nodeDir returns a state directory. Its processes are stopped when the test ends.
func nodeDir(t *testing.T) string {
	t.Helper()
	path := t.TempDir()
	t.Cleanup(func() {
		dir := claimDir(t, path)
		if err := dir.EndAll(context.Background(), 0); err != nil {
			t.Error(err)
		}
		dir.Release()
	})
	return path
}

func claimDir(t *testing.T, path string) *process.Dir {
	t.Helper()
	dir, err := process.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Claim(context.Background()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// agent is an Agent that runs in this process.
type agent struct {
	*Agent
	logs *observer.ObservedLogs
	// stop ends Run and leaves the replicas running. end receives the result of Run.
	stop func()
	end  chan error
}

func (g *gateway) agentPlan(name, address, dir string) agentPlan {
	return agentPlan{Gateway: g.address, Token: g.token(name), Name: name, Address: address, Dir: dir}
}

// run starts an agent. change may modify its configuration.
func (p agentPlan) run(t *testing.T, change func(*AgentConfig)) *agent {
	t.Helper()
	dir := claimDir(t, p.Dir)
	core, logs := observer.New(zap.DebugLevel)
	c := p.config(dir)
	c.Log = zap.New(core)
	if change != nil {
		change(&c)
	}
	a, err := NewAgent(c)
	if err != nil {
		dir.Release()
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	running := &agent{Agent: a, logs: logs, end: make(chan error, 1)}
	ended := make(chan struct{})
	go func() { defer close(ended); running.end <- a.Run(ctx) }()
	var once sync.Once
	running.stop = func() { once.Do(func() { cancel(); <-ended; dir.Release() }) }
	t.Cleanup(running.stop)
	return running
}

// replicaCount returns how many replicas the agent's own fleet has.
func (a *agent) replicaCount() int {
	count := 0
	for _, m := range a.fleet.Snapshot().Models {
		count += len(m.Replicas)
	}
	return count
}

// waitEnd waits until Run has returned.
func (a *agent) waitEnd(t *testing.T) error {
	t.Helper()
	select {
	case err := <-a.end:
		return err
	case <-time.After(waitLimit):
		t.Fatal("Run does not return")
		return nil
	}
}

// spawn starts an agent in a process of its own.
func (p agentPlan) spawn(t *testing.T) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleKey+"=agent", agentKey+"="+string(text), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testutil.Eventually(t, what, holds)
}

func isProcessRunning(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(data), ") Z ")
}

// hasLogged reports whether an entry has the text in its message or its fields.
func hasLogged(logs *observer.ObservedLogs, text string) bool {
	for _, e := range logs.All() {
		if strings.Contains(e.Message+fmt.Sprint(e.ContextMap()), text) {
			return true
		}
	}
	return false
}
