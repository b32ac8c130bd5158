package envoy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// An Envoy is ended when neither admin interface nor listener has answered for the timeout, without
// a break.
func TestX13_WatchdogBitesOnlyADeafEnvoy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("no answer")
		dog := newWatchdog()
		for range 100 { // only the admin interface is silent
			time.Sleep(time.Second)
			dog.observe(failed, nil)
		}
		if dog.bites(30*time.Second) || dog.hung() || time.Since(dog.silentSince()) != 100*time.Second {
			t.Errorf("an Envoy whose listener answers: %+v", dog)
		}
		for range 30 { // almost long enough, again and again
			dog.observe(failed, failed)
			time.Sleep(29 * time.Second)
			dog.observe(failed, failed)
			if dog.bites(30 * time.Second) {
				t.Fatal("bitten after 29 s")
			}
			dog.observe(failed, nil)
		}
		dog.observe(failed, failed)
		time.Sleep(30 * time.Second)
		dog.observe(failed, failed)
		if !dog.bites(30*time.Second) || !dog.hung() || dog.bites(-1) {
			t.Errorf("an Envoy that answers nowhere: %+v", dog)
		}
		dog.observe(nil, nil)
		if dog.bites(0) || dog.hung() || !dog.silentSince().IsZero() {
			t.Errorf("an Envoy that answers again: %+v", dog)
		}
	})
}

func TestX13_ProbeListener(t *testing.T) {
	t.Parallel()
	probe := func(address string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		return ProbeListener(address)(ctx)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // as that of a stopped process
	if err != nil {
		t.Fatal(err)
	}
	if err := probe(silent.Addr().String()); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("a listener that accepts nothing: %v", err)
	}
	silent.Close()
	if err := probe(silent.Addr().String()); err == nil {
		t.Error("no listener, and no error")
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	if err := probe(server.Listener.Addr().String()); err != nil {
		t.Errorf("a listener that answers: %v", err)
	}
	closing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer closing.Close()
	go func() {
		for {
			c, err := closing.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	if err := probe(closing.Addr().String()); err != nil {
		t.Errorf("a listener that closes connections: %v", err)
	}
}

// A stopped Envoy is shown as hung and replaced. Before, it was starting for ever.
func TestX13_StoppedEnvoyIsReplaced(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	var listener atomic.Value
	listener.Store("127.0.0.1:0")
	b.config.HangTimeout = time.Second
	b.config.Probe = func(ctx context.Context) error { return ProbeListener(listener.Load().(string))(ctx) }
	e, _ := b.live(t)
	listener.Store(strings.TrimPrefix(address(t, e.Admin()), "http://"))
	pid := e.Status().PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if s := e.Status(); s.PID == pid || s.State != StateLive || s.Hung {
			return errors.New("no new Envoy")
		}
		return nil
	})
	if b.logs.FilterMessage("hung Envoy ended").Len() == 0 {
		t.Error("the end of the hung Envoy was not logged")
	}
	if runs(pid) {
		t.Error("the stopped Envoy is still there")
	}
}

// An Envoy whose admin interface cannot be reached goes on as long as its listener answers.
func TestX13_EnvoyWithoutAdminInterfaceIsKept(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	probed := make(chan struct{}, 100)
	serving := make(chan struct{})
	b.config.Probe = func(context.Context) error {
		select {
		case <-serving:
			probed <- struct{}{}
			return nil
		default:
			return errors.New("not yet")
		}
	}
	b.config.HangTimeout = time.Hour
	e, _ := b.live(t)
	close(serving)
	if err := os.Rename(e.Admin().Socket, e.Admin().Socket+".away"); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		<-probed
	}
	if s := e.Status(); s.State != StateLive || s.Restarts != 0 || s.Hung {
		t.Errorf("status %+v, want a live Envoy", s)
	}
	if err := os.Rename(e.Admin().Socket+".away", e.Admin().Socket); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if _, err := e.Admin().ServerState(t.Context()); err != nil {
			return err
		}
		return inState(e, StateLive)
	})
}

// An Envoy is adopted although nothing can be written. One that differs is kept while its successor
// cannot be started. Before, both were drained and ended.
func TestX5_EnvoyIsAdoptedWithoutWriting(t *testing.T) {
	b := newTestbed(t)
	first, stop := b.live(t)
	pid := first.Status().PID
	b.restart(t, stop)
	back := testutil.ReadOnly(t, b.path)
	second, stop := b.live(t)
	if s := second.Status(); s.PID != pid || !s.Adopted {
		t.Errorf("status %+v, want the adopted Envoy %d", s, pid)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	b.config.Bootstrap.Cluster = "another"
	third, stop := b.live(t)
	if s := third.Status(); s.PID != pid || !s.Adopted {
		t.Errorf("status %+v, want the Envoy %d although it differs", s, pid)
	}
	if b.logs.FilterMessageSnippet("running Envoy kept").Len() != 1 {
		t.Error("the log does not say why the Envoy was kept")
	}
	back()
	if err := stop(); err != nil {
		t.Error(err)
	}
	fourth, _ := b.live(t)
	eventually(t, func() error {
		if s := fourth.Status(); s.PID == pid || s.State != StateLive {
			return errors.New("the Envoy that differs was not replaced")
		}
		return nil
	})
}

// An Envoy that cannot be started because nothing can be written is tried again.
func TestX5_EnvoyIsStartedAsSoonAsItCanBe(t *testing.T) {
	b := newTestbed(t)
	back := testutil.ReadOnly(t, b.path)
	e, _ := b.run(t)
	eventually(t, func() error {
		if s := e.Status(); s.State != StateDown || !strings.Contains(s.Reason, "read-only") {
			return errors.New("the status does not say why no Envoy runs")
		}
		return nil
	})
	back()
	eventually(t, func() error { return inState(e, StateLive) })
	if _, err := os.Stat(filepath.Join(b.path, "envoy.json")); err != nil {
		t.Error(err)
	}
}
