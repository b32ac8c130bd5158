package envoy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestMain runs the tests, or the guard that ends the Envoys of a test run that was killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "guard" {
		if err := process.RunGuard(context.Background(), os.Args[2], testTimeout, zap.NewNop()); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// testTimeout bounds every wait. It is long enough for a busy machine.
const testTimeout = testutil.Patience

// binary returns the path of the real Envoy that the tests run: $SLUICE_ENVOY, else the one that
// "make envoy" installed.
func binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(EnvVar); path != "" {
		return path
	}
	dir, err := os.Getwd()
	for err == nil && !isFile(filepath.Join(dir, "go.mod")) && dir != "/" {
		dir = filepath.Dir(dir)
	}
	path := filepath.Join(dir, ".tools", "envoy")
	if !isProgram(path) {
		t.Fatal(`no Envoy to test with: run "make envoy"`)
	}
	return path
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// testbed is a state directory, a control plane and a backend for the Envoys of one test.
type testbed struct {
	path    string
	dir     *process.Dir
	config  Config
	control *control
	// stopControl ends the control plane.
	stopControl func()
	backend     *slowBackend
	logs        *observer.ObservedLogs
}

func newTestbed(t *testing.T) *testbed {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	b := &testbed{path: t.TempDir(), backend: newSlowBackend(t), logs: logs}
	b.open(t)
	if err := b.dir.StartGuard([]string{os.Args[0], "guard", b.path}); err != nil {
		t.Fatal(err)
	}
	b.config = Config{
		Binary: binary(t),
		Bootstrap: BootstrapConfig{
			ControlSocket: b.dir.Socket("control"), APISocket: b.dir.Socket("api"), AdminSocket: b.dir.Socket("envoy"),
		},
		Concurrency: 2,
		Log:         zap.New(core),
	}
	b.config.Listen = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(testutil.FreePort(t)))
	b.control = newControl(t, b.backend.server.Listener.Addr(), b.config.Listen)
	b.stopControl = b.control.serve(t, b.config.Bootstrap.ControlSocket)
	t.Cleanup(func() {
		if err := b.dir.EndAll(context.Background(), time.Second); err != nil {
			t.Error(err)
		}
		b.dir.Release()
	})
	return b
}

// open claims the state directory, as a new Sluice does.
func (b *testbed) open(t *testing.T) {
	t.Helper()
	dir, err := process.Open(b.path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := dir.Claim(ctx); err != nil {
		t.Fatal(err)
	}
	b.dir = dir
}

// run runs an Envoy until the test ends or stop is called. stop returns the result of Run.
func (b *testbed) run(t *testing.T) (e *Envoy, stop func() error) {
	t.Helper()
	c := b.config
	c.Dir = b.dir
	e = New(c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = e.Run(ctx)
	}()
	stop = func() error {
		cancel()
		<-done
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return e, stop
}

// live runs an Envoy and waits until it is live.
func (b *testbed) live(t *testing.T) (e *Envoy, stop func() error) {
	t.Helper()
	e, stop = b.run(t)
	eventually(t, func() error { return inState(e, StateLive) })
	return e, stop
}

// restart ends Run and releases the state directory, as the death of Sluice does, and claims the
// directory anew.
func (b *testbed) restart(t *testing.T, stop func() error) {
	t.Helper()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.dir.Release()
	b.open(t)
}

func inState(e *Envoy, want State) error {
	if s := e.Status(); s.State != want {
		return fmt.Errorf("status %+v, want %s", s, want)
	}
	return nil
}

// runs reports whether the process exists and is no zombie. Envoys that an earlier testbed started
// are still children of this test.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}

// eventually calls try until it returns no error.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	testutil.EventuallyNil(t, "what is tried", try)
}

// address returns the URL of Envoy's one listener.
func address(t *testing.T, a Admin) string {
	t.Helper()
	all, err := a.listeners(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("no listener: %v %v", err, all)
	}
	return "http://" + all[0].String()
}

// fetch makes a request on a connection of its own. It returns when the response has begun.
func fetch(url string) (*http.Response, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return client.Get(url)
}

// stream starts a response that continues until the backend is told to finish.
func stream(t *testing.T, url string) io.ReadCloser {
	t.Helper()
	res, err := fetch(url + "/slow")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	return res.Body
}

// isReady reports whether Envoy has its configuration, accepts requests, and is not draining.
func isReady(t *testing.T, a Admin) bool {
	t.Helper()
	_, err := a.Get(t.Context(), "/ready")
	return err == nil
}
