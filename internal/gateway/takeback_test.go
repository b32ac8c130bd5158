package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/adminclient"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// restarted is a gateway with a ready replica whose file was changed before its restart.
type restarted struct {
	*Gateway
	replica  int
	stop     func()
	returned <-chan error
}

// load writes a file and reads it.
func load(t *testing.T, file, text string) *config.Config {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// restart starts a gateway with a ready replica, reloads its file after change, and restarts the
// gateway. startNext starts its successor.
func restart(t *testing.T, fields string, change func(text string) string, startNext func(context.Context, *Gateway) (*successor, error)) *restarted {
	t.Helper()
	path := t.TempDir()
	file, text := filepath.Join(path, "sluice.yaml"), listeners(t)+"state_dir: "+filepath.Join(path, "state")+oneReplica+fields
	c := load(t, file, text)
	r := &restarted{Gateway: newGateway(t, claimed(t, c.StateDir), c)}
	r.succession.start = func(ctx context.Context) (*successor, error) { return startNext(ctx, r.Gateway) }
	r.stop, r.returned = runs(t, r.Gateway)
	eventually(t, "the replica is ready", func() bool { return pidOf(r.Gateway, "chat") != 0 })
	r.replica = pidOf(r.Gateway, "chat")
	load(t, file, change(text))
	if err := r.watcher.Reload(false); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(os.Getpid(), handOverSignal); err != nil {
		t.Fatal(err)
	}
	return r
}

// checkStop checks that the gateway has stopped cleanly.
func (r *restarted) checkStop(t *testing.T) {
	t.Helper()
	if err := <-r.returned; err != nil || alive(r.replica) {
		t.Errorf("the stop: %v, replica alive: %v", err, alive(r.replica))
	}
}

// takenAddress returns an address at which somebody listens until the test ends.
func takenAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// startChanged starts a successor with the file as it is now, as a new process does. It calls spoil
// when it has read the file.
func startChanged(ctx context.Context, g *Gateway, spoil func() error) (*successor, error) {
	c, err := config.Load(g.options.Config.File)
	if err == nil {
		err = spoil()
	}
	if err != nil {
		return nil, err
	}
	return g.startGateway(ctx, Options{Config: c, Version: "next", Log: zap.NewNop()})
}

// A restart that cannot open what the changed file says changes nothing.
func TestX20_WhatCannotBeOpenedChangesNothing(t *testing.T) {
	address, certificates := takenAddress(t), t.TempDir()
	testutil.NewAuthority(t, "authority").Issue(t, certificates, "server", "gateway.example")
	pair := ", cert: " + filepath.Join(certificates, "server.crt") + ", key: " + filepath.Join(certificates, "server.key") + "}\n"
	free := strings.TrimPrefix(strings.Split(listeners(t), "\n")[0], "listen: ")
	add := func(line string) func(string) string { return func(text string) string { return text + line } }
	nothing := func() error { return nil }
	keyFile := filepath.Join(certificates, "server.key")
	key, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	halveKey := func() error { return os.WriteFile(keyFile, key[:len(key)/2], 0o600) }
	for name, c := range map[string]struct {
		change func(text string) string
		spoil  func() error
		want   string
	}{
		"admin": {change: func(text string) string {
			lines := strings.Split(text, "\n")
			lines[1] = "admin: " + address
			return strings.Join(lines, "\n")
		}, spoil: nothing, want: "admin: listen tcp " + address},
		"health":              {change: add("health: " + address + "\n"), spoil: nothing, want: "health: listen tcp " + address},
		"control.listen":      {change: add("control: {listen: '" + address + "'" + pair), spoil: nothing, want: "control.listen: listen tcp " + address},
		"control.nodes":       {change: add("control: {nodes: '" + address + "'}\n"), spoil: nothing, want: "control.nodes: listen tcp " + address},
		"control.certificate": {change: add("control: {listen: '" + free + "'" + pair), spoil: halveKey, want: "control: "},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(keyFile, key, 0o600); err != nil { // another case may have halved it
				t.Fatal(err)
			}
			r := restart(t, "", c.change, func(ctx context.Context, g *Gateway) (*successor, error) {
				return startChanged(ctx, g, c.spoil)
			})
			eventually(t, "the restart has failed", func() bool { failed, _ := r.succession.failure.last(); return failed != "" })
			if failed, _ := r.succession.failure.last(); !strings.HasPrefix(failed, c.want) {
				t.Errorf("the reason is %q, want %q", failed, c.want)
			}
			if r.managing.ctx.Err() != nil || r.decisions.Retired() || !alive(r.replica) || r.dir.Holder() != os.Getpid() {
				t.Error("the gateway has not gone on as before")
			}
			r.stop()
			r.checkStop(t)
		})
	}
}

// A gateway that could not count earlier processes any more restarts all the same.
func TestX20_AFaultOfWhatCountsEarlierProcessesKeepsNoSuccessorAway(t *testing.T) {
	r := restart(t, "", strings.Clone, func(ctx context.Context, g *Gateway) (*successor, error) {
		g.predecessors.Go(func() error { return errors.New("no file descriptor is left") })
		return startChanged(ctx, g, func() error { return nil })
	})
	eventually(t, "the next Gateway has taken over", func() bool { return r.decisions.Retired() })
	if failed, _ := r.succession.failure.last(); failed != "" {
		t.Errorf("a restart has failed: %s", failed)
	}
	r.stop()
	r.checkStop(t)
}

// A Gateway that takes the place of a failed process has the listeners of before, whatever the file
// says now. What else the file has changed stays in force.
func TestX20_TheListenersOfBeforeStay(t *testing.T) {
	taken := takenAddress(t)
	var before string
	r := restart(t, "", func(text string) string {
		lines := strings.Split(text, "\n")
		before, lines[1] = strings.TrimPrefix(lines[1], "admin: "), "admin: "+taken
		return strings.Join(lines, "\n") + "replica_header: false\n"
	}, failsLate)
	eventually(t, "a Gateway of this process has taken over", func() bool { return r.decisions.Retired() })
	var status struct {
		Upgrade struct{ Failed string }
		Config  struct {
			NeedsRestart []string `json:"needs_restart"`
		}
	}
	eventually(t, "the listener answers", func() bool {
		client := adminclient.Client{Address: before}
		return client.Call(t.Context(), http.MethodGet, "/api/v1/status", nil, &status) == nil
	})
	if !strings.Contains(status.Upgrade.Failed, "out of memory") || strings.Join(status.Config.NeedsRestart, " ") != "admin" {
		t.Errorf("the status is %+v", status)
	}
	if !alive(r.replica) || r.dir.Holder() != os.Getpid() {
		t.Error("the gateway has not gone on")
	}
	r.stop()
	r.checkStop(t)
}

// A gateway that cannot go on after a failed restart, because its certificate has gone, tries again
// until it is told to stop. It then ends everything.
func TestX20_AGatewayWithoutASuccessorStops(t *testing.T) {
	for name, tell := range map[string]func(*restarted) error{
		"by its supervisor":      func(r *restarted) error { r.stop(); return nil },
		"by its first process":   func(*restarted) error { return syscall.Kill(os.Getpid(), process.StopSignal) },
		"after it has recovered": nil,
	} {
		t.Run(name, func(t *testing.T) {
			dir, aside := t.TempDir(), t.TempDir()
			testutil.NewAuthority(t, "authority").Issue(t, dir, "server", "gateway.example")
			key := filepath.Join(dir, "server.key")
			fields := "tls: {cert: " + filepath.Join(dir, "server.crt") + ", key: " + key + "}\n"
			r := restart(t, fields, strings.Clone, func(ctx context.Context, g *Gateway) (*successor, error) {
				if err := os.Rename(key, filepath.Join(aside, "key")); err != nil {
					return nil, err
				}
				return failsLate(ctx, g)
			})
			eventually(t, "a try has failed", func() bool { failed, _ := r.succession.failure.last(); return strings.Contains(failed, "server.key") })
			if !alive(r.replica) || r.decisions.Retired() {
				t.Error("the gateway does not serve")
			}
			if tell == nil {
				if err := os.Rename(filepath.Join(aside, "key"), key); err != nil {
					t.Fatal(err)
				}
				eventually(t, "a Gateway of this process has taken over", func() bool { return r.decisions.Retired() })
				r.stop()
			} else if err := tell(r); err != nil {
				t.Fatal(err)
			}
			r.checkStop(t)
		})
	}
}

// What keeps a Gateway from taking over may last, such as a certificate that has gone. Each try
// makes a whole Gateway, so tries become rarer.
func TestX20_TriesToTakeOverBecomeRarer(t *testing.T) {
	t.Parallel()
	for failed, want := range map[int]time.Duration{
		1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 5: 16 * time.Second, 6: maxRetakePause, 1e6: maxRetakePause,
	} {
		if got := pauseAfter(failed); got != want {
			t.Errorf("after %d tries the pause is %v, want %v", failed, got, want)
		}
	}
}
