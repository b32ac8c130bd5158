package ray

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/raytest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// serverProgram is a server that answers with the devices that Ray gave it. It fails if the file
// "fail" lies beside it, and then names a secret.
const serverProgram = `
import http.server, os, sys
here = os.path.dirname(os.path.abspath(sys.argv[0]))
if os.path.exists(os.path.join(here, "fail")):
    print("loading weights", flush=True)
    sys.exit("cannot load with token=hf_abcdefghijklmnopqrstuvwxyz")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = os.environ.get("CUDA_VISIBLE_DEVICES", "none").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
`

// fixture is a cluster with a program for jobs.
type fixture struct {
	*raytest.Cluster
	t   *testing.T
	dir string
}

// newFixture starts a cluster of a head and two nodes with two GPUs each.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(f.dir, "server.py"), []byte(serverProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Cluster = raytest.Start(t, "")
	f.AddNode("a", 4, 2)
	f.AddNode("b", 4, 2)
	return f
}

// model returns a model with replicas of one GPU.
func (f *fixture) model(name string, desired int, gpus float64) Model {
	return Model{
		Model:     engines.Model{Name: name, Desired: desired, MaxReplicas: desired},
		Resources: &engines.Resources{CPU: 0.5, GPU: gpus},
		Version: engines.Version{Command: []string{"python3", filepath.Join(f.dir, "server.py"), "{{.Host}}", "{{.Port}}"},
			Ready: engines.Probe{Path: "/"}, Health: engines.Probe{Path: "/"}},
	}
}

// gateway is a launcher that runs.
type gateway struct {
	*Launcher
	t     *testing.T
	fleet *engines.Fleet
	stop  func()
}

// gateway starts a launcher. change may be nil.
func (f *fixture) gateway(change func(*Config)) *gateway {
	f.t.Helper()
	return f.gatewayAt(f.Address, change)
}

// gatewayAt is gateway for the cluster at the address.
func (f *fixture) gatewayAt(address string, change func(*Config)) *gateway {
	f.t.Helper()
	c := Config{Address: address, Identity: "one", Ports: Ports{21000, 21999}, Fleet: engines.NewFleet(), Log: zaptest.NewLogger(f.t)}
	if change != nil {
		change(&c)
	}
	g := &gateway{Launcher: New(c), t: f.t, fleet: c.Fleet}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := g.Run(ctx); err != nil {
			f.t.Error(err)
		}
	}()
	g.stop = func() { cancel(); <-ended }
	f.t.Cleanup(g.stop)
	return g
}

func (g *gateway) replicas(model string) []engines.Replica {
	if m := g.fleet.Snapshot().Models[model]; m != nil {
		return m.Replicas
	}
	return nil
}

// await waits until the model's replicas are as ok says, and returns them.
func (g *gateway) await(model, what string, ok func([]engines.Replica) bool) []engines.Replica {
	g.t.Helper()
	var now []engines.Replica
	testutil.EventuallyNil(g.t, what, func() error {
		if now = g.replicas(model); !ok(now) {
			return fmt.Errorf("replicas are %+v", now)
		}
		return nil
	})
	return now
}

// awaitReady waits until the model has n replicas, all ready.
func (g *gateway) awaitReady(model string, n int) []engines.Replica {
	g.t.Helper()
	return g.await(model, fmt.Sprint(n, " replicas are ready"), func(all []engines.Replica) bool {
		return len(all) == n && !slices.ContainsFunc(all, func(r engines.Replica) bool { return r.State != engines.Ready })
	})
}

// jobsOf returns the ids of the jobs of a model that run.
func (f *fixture) jobsOf(model string) []string {
	var ids []string
	for _, j := range f.Jobs() {
		if strings.HasPrefix(j.ID, model+"-") && j.Status == statusRunning {
			ids = append(ids, j.ID)
		}
	}
	slices.Sort(ids)
	return ids
}
