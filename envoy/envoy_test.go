package envoy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestRunBecomesLive(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	e, stop := b.live(t)
	s := e.Status()
	if s.PID == 0 || s.Version != "1.40.0" || s.Adopted || s.Restarts != 0 || s.Reason != "" {
		t.Errorf("status %+v", s)
	}
	if node := <-b.control.connected; node != "sluice" {
		t.Errorf("node %q", node)
	}
	res, err := fetch(address(t, e.Admin()) + "/quick")
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", res, err)
	}
	_ = res.Body.Close()
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if !isReady(t, e.Admin()) {
		t.Error("Envoy did not outlive Run")
	}
	log, err := os.ReadFile(b.dir.Records()[0].LogFile)
	if err != nil || len(log) > 0 {
		t.Errorf("Envoy warns of its bootstrap: %v\n%s", err, log)
	}
}

func TestNotLiveBeforeTheControlPlaneAnswers(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	b.stopControl()
	e, _ := b.run(t)
	eventually(t, func() error {
		if err := inState(e, StateStarting); err != nil {
			return err
		}
		if _, err := e.Admin().ServerState(t.Context()); err != nil {
			return err
		}
		return nil
	})
	if isReady(t, e.Admin()) {
		t.Error("ready without a listener")
	}
	b.control.serve(t, b.config.Bootstrap.ControlSocket)
	eventually(t, func() error { return inState(e, StateLive) })
}

// A restarted Sluice must not wait for its Envoy: Envoy reconnects at least every 500 ms, however
// long Sluice was away. With Envoy's default back-off ten attempts would take about a minute.
func TestReconnectsQuickly(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	b.live(t)
	<-b.control.connected
	b.stopControl()
	door, err := net.Listen("unix", b.config.Bootstrap.ControlSocket)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 10 {
		c, err := door.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("ten attempts took %v", took)
	}
	if err := door.Close(); err != nil {
		t.Fatal(err)
	}
	b.control.serve(t, b.config.Bootstrap.ControlSocket)
	select {
	case <-b.control.connected:
	case <-time.After(testTimeout):
		t.Fatal("Envoy did not come back")
	}
}

func TestAdoptedAfterADeath(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	first, stop := b.live(t)
	running := stream(t, address(t, first.Admin()))
	b.restart(t, stop)

	second, _ := b.live(t)
	before, after := first.Status(), second.Status()
	if after.PID != before.PID || !after.Adopted {
		t.Errorf("adopted as %+v, was %+v", after, before)
	}
	b.finish(t, running)
}

func TestKilledIsRestarted(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	e, _ := b.live(t)
	pid := e.Status().PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if s := e.Status(); s.PID == pid || s.State != StateLive {
			return errors.New("no new Envoy")
		}
		return nil
	})
	s := e.Status()
	if s.Restarts != 1 || !strings.Contains(s.Reason, "killed") {
		t.Errorf("status %+v: want one restart, and that the Envoy before was killed", s)
	}
	if n := b.logs.FilterMessage("Envoy ended").Len(); n != 1 {
		t.Errorf("its end was logged %d times", n)
	}
}

// An end is logged and counted once, also if the program is not there for several attempts.
func TestX5_AnEndIsCountedOnce(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	program := filepath.Join(t.TempDir(), "envoy")
	if err := os.Symlink(b.config.Binary, program); err != nil {
		t.Fatal(err)
	}
	b.config.Binary, program = program, b.config.Binary
	e, _ := b.live(t)
	if err := errors.Join(os.Remove(b.config.Binary), syscall.Kill(e.Status().PID, syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if b.logs.FilterMessage("Envoy start failed").Len() < 3 {
			return errors.New("not three attempts")
		}
		return nil
	})
	if s := e.Status(); !strings.Contains(s.Reason, "--version") {
		t.Errorf("status %+v: want why no Envoy is started", s)
	}
	if err := os.Symlink(program, b.config.Binary); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return inState(e, StateLive) })
	if s, n := e.Status(), b.logs.FilterMessage("Envoy ended").Len(); s.Restarts != 1 || n != 1 {
		t.Errorf("%d restarts, and the end was logged %d times", s.Restarts, n)
	}
}

// An Envoy that runs is kept when its binary was replaced by one that does not run. When the Envoy
// ends, the binary of then is started.
func TestX20_ABrokenBinaryKeepsTheRunningEnvoy(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	first, stop := b.live(t)
	pid, program := first.Status().PID, b.config.Binary
	b.restart(t, stop)
	b.config.Binary = filepath.Join(t.TempDir(), "envoy")
	testutil.WriteProgram(t, b.config.Binary, "#!/bin/sh\nexit 1\n")
	e, _ := b.live(t)
	if s, n := e.Status(), b.logs.FilterMessageSnippet("running Envoy kept").Len(); s.PID != pid || !s.Adopted || s.Version != "1.40.0" || n != 1 {
		t.Errorf("status %+v, logged %d times that the Envoy is kept", s, n)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return inState(e, StateDown) })
	if err := errors.Join(os.Remove(b.config.Binary), os.Symlink(program, b.config.Binary)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return inState(e, StateLive) })
}

func TestAdoptedAndKilledIsRestarted(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	_, stop := b.live(t)
	b.restart(t, stop)
	e, _ := b.live(t)
	pid := e.Status().PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if s := e.Status(); s.PID == pid || s.State != StateLive || s.Adopted {
			return errors.New("no new Envoy of our own")
		}
		return nil
	})
}

// TestX1_AnotherBudgetReplacesNoEnvoy checks that an adopted Envoy keeps its own budget, since the
// budget depends on the machine.
func TestX1_AnotherBudgetReplacesNoEnvoy(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	budget := Budget{Connections: 400, Requests: 300, Memory: 256 << 20}
	b.config.Bootstrap.Budget = budget
	first, stop := b.live(t)
	b.restart(t, stop)

	b.config.Bootstrap.Budget = Budget{Connections: 100, Requests: 100, Memory: 1 << 30}
	second, _ := b.live(t)
	before, after := first.Status(), second.Status()
	if after.PID != before.PID || !after.Adopted || before.Budget != budget || after.Budget != budget {
		t.Errorf("adopted as %+v, was %+v", after, before)
	}
}

// An Envoy with another number of workers is replaced. Where no number is wanted, it is kept.
func TestAnotherNumberOfWorkersReplacesEnvoy(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	b.config.Concurrency = 0
	before, stop := b.live(t)
	for _, step := range []struct {
		workers int
		kept    bool
	}{{0, true}, {2, false}, {2, true}, {0, true}, {1, false}} {
		b.restart(t, stop)
		b.config.Concurrency = step.workers
		var next *Envoy
		next, stop = b.live(t)
		if s := next.Status(); s.Adopted != step.kept || s.Adopted != (s.PID == before.Status().PID) {
			t.Errorf("%d workers are wanted: %+v, before %+v", step.workers, s, before.Status())
		}
		eventually(t, func() error { return predecessors(next) })
		before = next
	}
}

// An Envoy is replaced if it may not keep its filter. One without a filter is kept.
func TestAnotherFilterReplacesEnvoy(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	before, stop := b.live(t)
	var asked []string
	mayKeep := false
	b.config.Keeps = func(_ context.Context, version, path string) bool {
		asked = append(asked, version+" "+path)
		return mayKeep
	}
	b.restart(t, stop)
	next, stop := b.live(t)
	if s := next.Status(); !s.Adopted || s.PID != before.Status().PID || len(asked) > 0 {
		t.Errorf("without a filter: %+v, before %+v, asked for %q", s, before.Status(), asked)
	}
	p, ok := b.dir.Adopt(RecordName)
	if !ok {
		t.Fatal("no Envoy runs")
	}
	if err := p.SetMeta(metaFilter, "/filter.so"); err != nil {
		t.Fatal(err)
	}
	for _, mayKeep = range []bool{true, false} {
		b.restart(t, stop)
		next, stop = b.live(t)
		if s := next.Status(); s.Adopted != mayKeep || (s.PID == before.Status().PID) != mayKeep {
			t.Errorf("the filter is kept %v: %+v, before %+v", mayKeep, s, before.Status())
		}
	}
	if want := []string{next.Status().Version + " /filter.so", next.Status().Version + " /filter.so"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q", asked)
	}
}

func TestX1_FileBudget(t *testing.T) {
	t.Parallel()
	for files, want := range map[int]int{100: 1, 1024: 298, 1500: 437, 1 << 20: 305834} {
		if got := FileBudget(files); got.Connections != want || got.Requests != want {
			t.Errorf("budget of %d files: %+v, want %d", files, got, want)
		}
	}
}

func TestAnotherVersionDiffers(t *testing.T) {
	t.Parallel()
	l := launchSpec{version: "1.40.0", digest: "d"}
	record := func(l launchSpec) process.Record { return process.Record{Command: l.command, Meta: l.meta()} }
	if why := l.difference(record(l)); why != "" {
		t.Errorf("differs from itself: %s", why)
	}
	old := launchSpec{version: "1.39.0", digest: "d"}
	if why := l.difference(record(old)); !strings.Contains(why, "1.39.0") {
		t.Errorf("says %q", why)
	}
	if why := l.difference(process.Record{}); why == "" {
		t.Error("a record without a version fits")
	}
}

func TestRefusedBootstrapInEnvoysWords(t *testing.T) {
	t.Parallel()
	dir, err := process.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	e, l := New(Config{Dir: dir}), launchSpec{command: []string{binary(t)}, version: "1.40.0"}
	l.bootstrap = []byte(`{"static_resources":{"clusters":[{"name":"x","lb_policy":"WISHFUL"}]}}`)
	if err := e.writeBootstrap(l); err != nil {
		t.Fatal(err)
	}
	err = e.validate(t.Context(), l)
	if err == nil || !strings.Contains(err.Error(), "WISHFUL") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v: want one line that names WISHFUL", err)
	}
}

func TestRunFailsWithoutAnEnvoyOrABootstrap(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	for want, change := range map[string]func(*Config){
		"not that of an Envoy": func(c *Config) { c.Binary = "/bin/echo" },
		"no-such-program":      func(c *Config) { c.Binary = "/no-such-program" },
		"the admin socket":     func(c *Config) { c.Bootstrap.AdminSocket = "" },
	} {
		c := b.config
		c.Dir = b.dir
		change(&c)
		if err := New(c).Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestActiveRequests(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	e, _ := b.live(t)
	host := b.backend.server.Listener.Addr().String()
	running := stream(t, address(t, e.Admin()))

	active, err := e.Admin().ActiveRequests(t.Context())
	if err != nil || active["backend"][host] != 1 {
		t.Errorf("active requests %v, %v: want 1 at %s", active, err, host)
	}
	if n, ok := active[headers.APICluster][b.config.Bootstrap.APISocket]; !ok || n != 0 {
		t.Errorf("active requests %v: want 0 at the api socket", active)
	}
	if n, err := e.Admin().InFlight(t.Context()); err != nil || n != 1 {
		t.Errorf("in flight %d, %v: want 1", n, err)
	}
	close(b.backend.finish)
	if _, err := io.Copy(io.Discard, running); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		n, err := e.Admin().InFlight(t.Context())
		active, err2 := e.Admin().ActiveRequests(t.Context())
		if n += active["backend"][host]; n != 0 {
			return errors.New("still in flight")
		}
		return errors.Join(err, err2)
	})
	if _, err := e.Admin().Get(t.Context(), "/nowhere"); err == nil {
		t.Error("a 404 is no error")
	}
}
