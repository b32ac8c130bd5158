package kubernetes

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/kubetest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// waitLimit is how long a test waits for something that normally happens soon. It is long because
// the machine may be busy.
const waitLimit = 2 * time.Minute

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "play-engine" {
		runTestEngine(os.Args[2])
		return
	}
	os.Exit(kubetest.Main(m,
		// client-go keeps connections open for later clients.
		goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"),
		goleak.IgnoreTopFunction("golang.org/x/net/http2.(*clientStream).writeRequest"),
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"),
	))
}

// runTestEngine serves /health with the status CODE. /set/503 changes the status, /exit/3 ends the
// process.
func runTestEngine(address string) {
	var code atomic.Int64
	code.Store(http.StatusOK)
	if said, err := strconv.ParseInt(os.Getenv("CODE"), 10, 64); err == nil {
		code.Store(said)
	}
	if os.Getenv("CODE") == "exit" {
		os.Exit(7)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(code.Load())) })
	mux.HandleFunc("/set/{code}", func(_ http.ResponseWriter, r *http.Request) {
		said, _ := strconv.ParseInt(r.PathValue("code"), 10, 64)
		code.Store(said)
	})
	mux.HandleFunc("/exit/{code}", func(_ http.ResponseWriter, r *http.Request) {
		said, _ := strconv.Atoi(r.PathValue("code"))
		os.Exit(said)
	})
	fmt.Println(http.ListenAndServe(address, mux))
	os.Exit(1)
}

// testNamespace is a namespace of a real control plane with one node.
type testNamespace struct {
	*kubetest.Cluster
	t         *testing.T
	namespace string
}

var nodes atomic.Int64 // It numbers nodes, which have no namespace.

func newTestNamespace(t *testing.T, capacity map[string]string) *testNamespace {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	c := kubetest.Shared(t)
	return namespaceOn(t, c, capacity)
}

func namespaceOn(t *testing.T, c *kubetest.Cluster, capacity map[string]string) *testNamespace {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.Programs["engine"] = self
	s := &testNamespace{Cluster: c, t: t, namespace: c.Namespace(t)}
	s.node(capacity)
	return s
}

func (s *testNamespace) node(capacity map[string]string) *kubetest.Node {
	return s.Node(s.t, fmt.Sprint("kubernetes-", nodes.Add(1)), capacity)
}

// gateway is a launcher with the requests and loads that a test sets.
type gateway struct {
	*Launcher
	t     *testing.T
	fleet *engines.Fleet
	stop  func()

	mu       sync.Mutex
	requests map[string]int
	loads    map[string]engines.Load
	demand   []string
}

// gateway starts a gateway. change may modify its configuration.
func (s *testNamespace) gateway(name string, change func(*Config)) *gateway {
	s.t.Helper()
	g := &gateway{t: s.t, fleet: engines.NewFleet(), requests: map[string]int{}, loads: map[string]engines.Load{}}
	c := Config{
		Access: Access{Kubeconfig: s.Kubeconfig}, Namespace: s.namespace, Identity: name, Fleet: g.fleet, DrainTimeout: time.Hour,
		Log: zaptest.NewLogger(s.t).Named(name), Renew: 4 * time.Second, DrainSettle: 300 * time.Millisecond,
		Load:     func(model string) engines.Load { g.mu.Lock(); defer g.mu.Unlock(); return g.loads[model] },
		InFlight: func(replica string) int { g.mu.Lock(); defer g.mu.Unlock(); return g.requests[replica] },
		OnDemand: func(model string) { g.mu.Lock(); defer g.mu.Unlock(); g.demand = append(g.demand, model) },
	}
	if change != nil {
		change(&c)
	}
	g.Launcher = New(c)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	g.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(g.stop)
	return g
}

// engine returns a model of the test binary's engine.
func engine(name string, desired int, change ...func(*Model)) Model {
	m := Model{
		Model: engines.Model{Name: name, Desired: desired},
		Version: engines.Version{
			Command: []string{"engine", "play-engine", "{{.Host}}:{{.Port}}"}, Image: "engine:1",
			Ready: engines.Probe{Path: "/health", Every: time.Second}, Health: engines.Probe{}, Slots: engines.Slots{Default: 4},
		},
		Launch: engines.Launch{Name: name},
		Env:    map[string]string{},
	}
	for _, c := range change {
		c(&m)
	}
	return m
}

func env(name, value string) func(*Model) { return func(m *Model) { m.Env[name] = value } }

// setRequests sets how many requests this gateway has on a replica.
func (g *gateway) setRequests(replica string, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests[replica] = n
}

// replicas returns the model's replicas in the fleet.
func (g *gateway) replicas(model string) []engines.Replica {
	m, ok := g.fleet.Snapshot().Models[model]
	if !ok {
		return nil
	}
	return m.Replicas
}

// idsIn returns the ids of the replicas in the state.
func idsIn(all []engines.Replica, state engines.State) []string {
	var ids []string
	for _, r := range all {
		if r.State == state {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

func waitUntil(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testutil.Eventually(t, what, holds)
}

// waitReplicas waits until holds returns true for the model's replicas, and returns them.
func (g *gateway) waitReplicas(model, what string, holds func([]engines.Replica) bool) []engines.Replica {
	g.t.Helper()
	for deadline := time.Now().Add(waitLimit); ; {
		all := g.replicas(model)
		if holds(all) {
			return all
		}
		if time.Now().After(deadline) {
			g.t.Fatalf("it did not happen in time: %s; there is %+v; %+v", what, all, g.Status())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// waitReady waits until the model has exactly n replicas, all ready, and returns their ids.
func (g *gateway) waitReady(model string, n int) []string {
	g.t.Helper()
	all := g.waitReplicas(model, fmt.Sprint(n, " ready"), func(all []engines.Replica) bool {
		return len(all) == n && len(idsIn(all, engines.Ready)) == n
	})
	return idsIn(all, engines.Ready)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// objects returns the names of the Deployments, ReplicaSets and pods in the namespace.
func (s *testNamespace) objects() []string {
	s.t.Helper()
	out := s.Kubectl(s.t, "get", "deployments,replicasets,pods", "-n", s.namespace, "-o", "name")
	return strings.Fields(out)
}

func (s *testNamespace) deployments() []string {
	s.t.Helper()
	return slices.DeleteFunc(s.objects(), func(name string) bool { return !strings.HasPrefix(name, "deployment") })
}
