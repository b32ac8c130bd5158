package envoy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
)

func TestRunBecomesLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, leave := w.live(t)
	s := e.Status()
	if s.PID == 0 || s.Version != "1.40.0" || s.Adopted || s.Restarts != 0 {
		t.Errorf("status %+v", s)
	}
	if node := <-w.control.connected; node != "sluice" {
		t.Errorf("node %q", node)
	}
	res, err := fetch(address(t, e.Admin()) + "/quick")
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", res, err)
	}
	_ = res.Body.Close()
	if err := leave(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if !e.Admin().Ready(t.Context()) {
		t.Error("Envoy did not outlive Run")
	}
	log, err := os.ReadFile(w.dir.Records()[0].LogFile)
	if err != nil || len(log) > 0 {
		t.Errorf("Envoy warns of its bootstrap: %v\n%s", err, log)
	}
}

func TestNotLiveBeforeTheControlPlaneAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hangUp()
	e, _ := w.run(t)
	eventually(t, func() error {
		if err := inState(e, StateStarting); err != nil {
			return err
		}
		if _, err := e.Admin().ServerState(t.Context()); err != nil {
			return err
		}
		return nil
	})
	if e.Admin().Ready(t.Context()) {
		t.Error("ready without a listener")
	}
	w.control.serve(t, w.config.Bootstrap.ControlSocket)
	eventually(t, func() error { return inState(e, StateLive) })
}

// A restarted Sluice must not wait for its Envoy: Envoy tries again at least every 500 ms, however long Sluice was away. With
// Envoy's own back-off ten attempts take about a minute.
func TestReconnectsQuickly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.live(t)
	<-w.control.connected
	w.hangUp()
	door, err := net.Listen("unix", w.config.Bootstrap.ControlSocket)
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
	w.control.serve(t, w.config.Bootstrap.ControlSocket)
	select {
	case <-w.control.connected:
	case <-time.After(patience):
		t.Fatal("Envoy did not come back")
	}
}

func TestAdoptedAfterADeath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, leave := w.live(t)
	running := stream(t, address(t, first.Admin()))
	w.die(t, leave)

	second, _ := w.live(t)
	before, after := first.Status(), second.Status()
	if after.PID != before.PID || !after.Adopted {
		t.Errorf("adopted as %+v, was %+v", after, before)
	}
	close(w.backend.finish)
	body, err := io.ReadAll(running)
	if err != nil || !strings.HasSuffix(string(body), "end\n") {
		t.Errorf("the stream was cut: %v after %d bytes", err, len(body))
	}
}

func TestKilledIsRestarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, _ := w.live(t)
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
	if s.Restarts != 1 || s.Reason == "" {
		t.Errorf("status %+v: want one restart and why", s)
	}
	if n := w.logs.FilterMessage("envoy ended").Len(); n != 1 {
		t.Errorf("its end was logged %d times", n)
	}
}

func TestAdoptedAndKilledIsRestarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leave := w.live(t)
	w.die(t, leave)
	e, _ := w.live(t)
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

func TestAnotherBootstrapReplaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, leave := w.live(t)
	running := stream(t, address(t, first.Admin()))
	w.die(t, leave)

	w.config.Bootstrap.NodeID = "other"
	second, _ := w.run(t)
	eventually(t, func() error { return inState(second, StateDraining) })
	close(w.backend.finish)
	body, err := io.ReadAll(running)
	if err != nil || !strings.HasSuffix(string(body), "end\n") {
		t.Errorf("the stream was cut: %v after %d bytes", err, len(body))
	}
	eventually(t, func() error { return inState(second, StateLive) })
	old, now := first.Status().PID, second.Status()
	if now.PID == old || now.Adopted {
		t.Errorf("status %+v, old pid %d", now, old)
	}
	if runs(old) {
		t.Error("the old Envoy still runs")
	}
	if n := w.logs.FilterMessage("the running envoy is replaced").Len(); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
}

func TestLeavingWhileItReplacesCutsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, leave := w.live(t)
	running := stream(t, address(t, first.Admin()))
	w.die(t, leave)
	w.config.Bootstrap.NodeID = "other"
	second, leave := w.run(t)
	eventually(t, func() error { return inState(second, StateDraining) })
	if err := leave(); err != nil {
		t.Errorf("Run: %v", err)
	}
	close(w.backend.finish)
	body, err := io.ReadAll(running)
	if err != nil || !strings.HasSuffix(string(body), "end\n") {
		t.Errorf("the stream was cut: %v after %d bytes", err, len(body))
	}
	if !runs(first.Status().PID) {
		t.Error("the old Envoy was ended")
	}
}

func TestDrainingIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, leave := w.live(t)
	w.die(t, leave)
	if _, err := first.Admin().Post(t.Context(), "/healthcheck/fail"); err != nil {
		t.Fatal(err)
	}
	second, _ := w.live(t)
	if first.Status().PID == second.Status().PID {
		t.Error("an Envoy that refuses work was adopted")
	}
}

func TestAnotherVersionDiffers(t *testing.T) {
	t.Parallel()
	l := launch{version: "1.40.0", digest: "d"}
	if why := l.differs(l.meta()); why != "" {
		t.Errorf("differs from itself: %s", why)
	}
	old := launch{version: "1.39.0", digest: "d"}.meta()
	if why := l.differs(old); !strings.Contains(why, "1.39.0") {
		t.Errorf("says %q", why)
	}
	if why := l.differs(nil); why == "" {
		t.Error("a record without a version fits")
	}
}

func TestRefusedBootstrapInEnvoysWords(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(file, []byte(`{"static_resources":{"clusters":[{"name":"x","lb_policy":"WISHFUL"}]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	err := launch{command: []string{binary(t)}, file: file, version: "1.40.0"}.validate(context.Background())
	if err == nil || !strings.Contains(err.Error(), "WISHFUL") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v: want one line that names WISHFUL", err)
	}
}

func TestRunFailsWithoutAnEnvoyOrABootstrap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for want, change := range map[string]func(*Config){
		"no Envoy's answer": func(c *Config) { c.Binary = "/bin/echo" },
		"no-such-program":   func(c *Config) { c.Binary = "/no-such-program" },
		"the admin socket":  func(c *Config) { c.Bootstrap.AdminSocket = "" },
	} {
		c := w.config
		c.Dir = w.dir
		change(&c)
		if err := New(c).Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestActiveRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, _ := w.live(t)
	host := w.backend.server.Listener.Addr().String()
	running := stream(t, address(t, e.Admin()))

	active, err := e.Admin().ActiveRequests(t.Context())
	if err != nil || active["backend"][host] != 1 {
		t.Errorf("active requests %v, %v: want 1 at %s", active, err, host)
	}
	if n, ok := active[headers.APICluster][w.config.Bootstrap.APISocket]; !ok || n != 0 {
		t.Errorf("active requests %v: want 0 at the api socket", active)
	}
	if n, err := e.Admin().InFlight(t.Context()); err != nil || n != 1 {
		t.Errorf("in flight %d, %v: want 1", n, err)
	}
	close(w.backend.finish)
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
