package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/carry"
	"github.com/sluice-gateway/sluice/internal/config"
)

func configOf(t *testing.T, dir, tenant, model string, maxConcurrent string) *config.Config {
	return parse(t, dir, `
auth: {mode: keys}
tenants: [{name: `+tenant+`, keys: ["`+authz.HashKey("key-of-"+tenant)+`"]}]
models: [{name: `+model+`, launcher: none, admission: {max_concurrent_requests: `+maxConcurrent+`}}]
`)
}

// A configuration that the last part refuses changes nothing: every part goes on with the old one.
func TestRefusedConfigurationLeavesAllPartsOnTheOldOne(t *testing.T) {
	path := t.TempDir()
	first := configOf(t, path, "acme", "old", "5")
	g := newGateway(t, claimed(t, path), first)
	if err := g.applyFirst(); err != nil {
		t.Fatal(err)
	}
	runsFirst := func(when string) {
		t.Helper()
		if g.config() != first || g.settings.file != first {
			t.Errorf("%s another configuration is in force", when)
		}
		_, acme := g.auth.Tenant("acme")
		_, other := g.auth.Tenant("other")
		if !acme || other {
			t.Errorf("%s tenant acme is known: %t, tenant other: %t", when, acme, other)
		}
		models := g.fleet.Snapshot().Models
		if models["old"] == nil || models["new"] != nil || len(models) != 1 {
			t.Errorf("%s the fleet has %d models, not only the old one", when, len(models))
		}
		if v, _ := g.dispatcher.View("old"); v.Policy.Limits.MaxConcurrent != 5 {
			t.Errorf("%s model old may have %d requests, want 5", when, v.Policy.Limits.MaxConcurrent)
		}
	}
	runsFirst("after the start")

	refuse := true
	g.parts = append(g.parts, part{"test", func(c *config.Config) (func() error, error) {
		return func() error {
			if refuse && c != first {
				return errors.New("no room")
			}
			return nil
		}, nil
	}})
	second := configOf(t, path, "other", "new", "7")
	if err := g.reload(second); err == nil || !strings.Contains(err.Error(), "test: no room") {
		t.Errorf("the error %v does not name the part that refused", err)
	}
	runsFirst("after a commit was refused")

	refuse = false
	g.parts = append(g.parts, part{"test", func(c *config.Config) (func() error, error) {
		if c == second {
			return nil, errors.New("cannot be built")
		}
		return func() error { return nil }, nil
	}})
	if err := g.reload(second); err == nil || !strings.Contains(err.Error(), "cannot be built") {
		t.Errorf("the error %v does not say what could not be built", err)
	}
	runsFirst("after a plan was refused")

	g.parts = g.configParts()
	if err := g.reload(second); err != nil {
		t.Fatal(err)
	}
	if _, ok := g.auth.Tenant("other"); !ok || g.fleet.Snapshot().Models["new"] == nil || g.config() != second {
		t.Error("a good configuration was not put in force after a refused one")
	}
}

// Two tenants must not share a key. The file's check does not see keys that only hash to the same.
func TestConfigurationWithABadKeyIsRefusedBeforeAnyPartRunsIt(t *testing.T) {
	path := t.TempDir()
	g := newGateway(t, claimed(t, path), configOf(t, path, "acme", "old", "5"))
	if err := g.applyFirst(); err != nil {
		t.Fatal(err)
	}
	next := configOf(t, path, "other", "new", "7")
	next.Tenants[0].Keys[0].Hash = "sha256:short"
	if err := g.reload(next); err == nil || !strings.Contains(err.Error(), "authentication") {
		t.Errorf("the error %v does not name the part that refused", err)
	}
	if _, ok := g.auth.Tenant("acme"); !ok || g.fleet.Snapshot().Models["new"] != nil {
		t.Error("the refused configuration is partly in force")
	}
}

// runs runs a gateway until the test ends it, and says with which error it returned.
func runs(t *testing.T, g *Gateway) (stop func(), returned <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		defer close(done)
		done <- runGateway(ctx, g)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return cancel, done
}

// sockets that Envoy uses.
func envoySockets(g *Gateway) []string {
	b := bootstrap(g.dir)
	return []string{b.ControlSocket, b.APISocket, relaySocket(g.dir), grpcSocket(g.dir)}
}

func accepts(path string) bool {
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
	}
	return err == nil
}

func TestRunServesUntilItIsStopped(t *testing.T) {
	path := t.TempDir()
	g := newGateway(t, claimed(t, path), configOf(t, path, "acme", "old", "5"))
	stop, returned := runs(t, g)
	for _, socket := range envoySockets(g) {
		eventually(t, socket+" accepts connections", func() bool { return accepts(socket) })
	}
	stop()
	if err := <-returned; err != nil {
		t.Error(err)
	}
	for _, socket := range envoySockets(g) {
		if accepts(socket) {
			t.Errorf("%s still accepts connections", socket)
		}
	}
	if records := g.dir.Records(); len(records) > 0 {
		t.Errorf("%d processes are left in the state directory", len(records))
	}
}

// pidOf is the process of the model's ready replica; 0 when there is none.
func pidOf(g *Gateway, model string) int {
	if m := g.fleet.Snapshot().Models[model]; m != nil {
		for _, r := range m.Replicas {
			if r.State == engines.Ready {
				return r.PID
			}
		}
	}
	return 0
}

// alive reports whether a process runs. One that has ended and that nobody has reaped does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}

// oneReplica is a model with one replica.
const oneReplica = `
auth: {mode: none}
models: [{name: chat, task: text-generation, engine: sim, replicas: {min: 1, max: 1}}]
`

// handOverOf starts a gateway with a ready replica and tells it to hand over. startNext starts its
// successor.
func handOverOf(t *testing.T, startNext func(ctx context.Context, g *Gateway) (*successor, error)) (g *Gateway, replica int, stop func(), returned <-chan error) {
	t.Helper()
	path := t.TempDir()
	g = newGateway(t, claimed(t, path), parse(t, path, oneReplica))
	g.succession.start = func(ctx context.Context) (*successor, error) { return startNext(ctx, g) }
	stop, returned = runs(t, g)
	eventually(t, "the replica is ready", func() bool { return pidOf(g, "chat") != 0 })
	replica = pidOf(g, "chat")
	if err := syscall.Kill(os.Getpid(), handOverSignal); err != nil {
		t.Fatal(err)
	}
	return g, replica, stop, returned
}

// A hand-over leaves the replicas running. The successor adopts them, and a clean stop ends them.
func TestX20_TheSuccessorAdoptsTheReplicas(t *testing.T) {
	g, replica, stop, returned := handOverOf(t, func(ctx context.Context, g *Gateway) (*successor, error) { return g.startInProcess(ctx) })
	eventually(t, "the successor serves", func() bool { return g.decisions.Retired() })
	if !alive(replica) {
		t.Fatal("the hand-over ended the replica")
	}
	stop()
	if err := <-returned; err != nil {
		t.Error(err)
	}
	if alive(replica) {
		t.Error("the replica outlives a clean stop")
	}
}

// When the new process does not start, the old one goes on with everything and says why. The new
// process may have said why before the old one speaks to it.
func TestX20_AProcessThatDoesNotStartChangesNothing(t *testing.T) {
	for name, start := range map[string]func(context.Context, *Gateway) (*successor, error){
		"no process": func(context.Context, *Gateway) (*successor, error) { return nil, errors.New("no such file") },
		"a process that has ended": func(context.Context, *Gateway) (*successor, error) {
			ours, file, err := socketPair()
			if err != nil {
				return nil, err
			}
			theirs, err := net.FileConn(file)
			if err != nil {
				return nil, err
			}
			c := newHandOverConn(theirs)
			return &successor{conn: newHandOverConn(ours), end: ours.Close},
				errors.Join(c.send(handOverMessage{Failed: "no such file"}), c.Close(), file.Close())
		},
	} {
		t.Run(name, func(t *testing.T) { checkGoesOn(t, start) })
	}
}

func checkGoesOn(t *testing.T, start func(context.Context, *Gateway) (*successor, error)) {
	g, replica, stop, returned := handOverOf(t, start)
	eventually(t, "the hand-over has failed", func() bool { return g.status().Upgrade.Failed == "no such file" })
	if g.decisions.Retired() || !alive(replica) || pidOf(g, "chat") != replica || g.dir.Holder() != os.Getpid() {
		t.Error("the gateway has not gone on as before")
	}
	stop()
	if err := <-returned; err != nil || alive(replica) {
		t.Errorf("the stop: %v, replica alive: %v", err, alive(replica))
	}
}

// failsLate starts a successor that prepares, and dies when it should take over.
func failsLate(context.Context, *Gateway) (*successor, error) {
	ours, theirs := net.Pipe()
	go func() {
		c := newHandOverConn(theirs)
		c.receive(context.Background(), time.Minute)
		c.send(handOverMessage{Prepared: &carry.Process{}})
		c.receive(context.Background(), time.Minute)
		c.send(handOverMessage{Failed: "out of memory"})
		c.Close()
	}()
	return &successor{conn: newHandOverConn(ours), end: func() error { return ours.Close() }}, nil
}

// A new process that fails after it was told to take over is replaced by the old one.
func TestX20_AProcessThatFailsLateIsReplaced(t *testing.T) {
	g, replica, stop, returned := handOverOf(t, failsLate)
	eventually(t, "a Gateway of this process has taken over", func() bool { return g.decisions.Retired() })
	if failed, _ := g.succession.failure.last(); !strings.Contains(failed, "out of memory") {
		t.Errorf("the reason is %q", failed)
	}
	if !alive(replica) || g.dir.Holder() != os.Getpid() {
		t.Error("the gateway has not gone on")
	}
	stop()
	if err := <-returned; err != nil || alive(replica) {
		t.Errorf("the stop: %v, replica alive: %v", err, alive(replica))
	}
}

// A file that is changed while the gateway runs is put in force; a faulty one is not.
func TestRunReloadsTheFile(t *testing.T) {
	path := t.TempDir()
	file, addresses := filepath.Join(path, "sluice.yaml"), listeners(t)
	write := func(tenant string) {
		t.Helper()
		text := addresses + "state_dir: " + filepath.Join(path, "state") +
			"\ntenants: [{name: " + tenant + ", keys: [\"" + authz.HashKey(tenant) + "\"]}]\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("acme")
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	g := newGateway(t, claimed(t, c.StateDir), c)
	runs(t, g)
	eventually(t, "tenant acme is known", func() bool { _, ok := g.auth.Tenant("acme"); return ok })
	write("other")
	if err := g.watcher.Reload(false); err != nil {
		t.Fatal(err)
	}
	if _, ok := g.auth.Tenant("other"); !ok {
		t.Error("the changed file is not in force")
	}
	write("")
	if err := g.watcher.Reload(false); err == nil {
		t.Error("a faulty file was reloaded without an error")
	}
	if _, ok := g.auth.Tenant("other"); !ok {
		t.Error("a faulty file changed who may call")
	}
}

// A second gateway on the same directory is refused.
func TestRunNeedsTheStateDirectoryForItself(t *testing.T) {
	path := t.TempDir()
	claimed(t, path)
	c := configOf(t, path, "acme", "old", "5")
	if err := Run(t.Context(), Options{Config: c, Log: zap.NewNop()}); err == nil {
		t.Error("Run started on a state directory that another gateway holds")
	}
}
