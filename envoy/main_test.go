package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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
)

// TestMain is also the guard that ends the Envoys of a test run that was killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "guard" {
		if err := process.RunGuard(context.Background(), os.Args[2], patience, zap.NewNop()); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// patience is for a busy machine; nothing that works takes as long.
const patience = 30 * time.Second

// binary is the real Envoy that the tests run: $SLUICE_ENVOY, else the one that "make envoy" fetched.
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

// world is a state directory, a control plane and a backend for the Envoys of one test.
type world struct {
	path    string
	dir     *process.Dir
	config  Config
	control *control
	hangUp  func() // ends the control plane
	backend *slowBackend
	logs    *observer.ObservedLogs
}

func newWorld(t *testing.T) *world {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	w := &world{path: t.TempDir(), backend: newSlowBackend(t), logs: logs}
	w.open(t)
	if err := w.dir.StartGuard([]string{os.Args[0], "guard", w.path}); err != nil {
		t.Fatal(err)
	}
	w.config = Config{
		Binary: binary(t),
		Bootstrap: BootstrapConfig{
			ControlSocket: w.dir.Socket("control"), APISocket: w.dir.Socket("api"), AdminSocket: w.dir.Socket("envoy"),
		},
		Concurrency: 1,
		Log:         zap.New(core),
	}
	w.control = newControl(t, w.backend.server.Listener.Addr())
	w.hangUp = w.control.serve(t, w.config.Bootstrap.ControlSocket)
	t.Cleanup(func() {
		if err := w.dir.EndAll(context.Background(), time.Second); err != nil {
			t.Error(err)
		}
		_ = w.dir.Release()
	})
	return w
}

// open claims the state directory, as a new life of Sluice does.
func (w *world) open(t *testing.T) {
	t.Helper()
	dir, err := process.Open(w.path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := dir.Claim(ctx); err != nil {
		t.Fatal(err)
	}
	w.dir = dir
}

// run runs an Envoy until the test ends or leave is called, which returns what Run did.
func (w *world) run(t *testing.T) (e *Envoy, leave func() error) {
	t.Helper()
	c := w.config
	c.Dir = w.dir
	e = New(c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = e.Run(ctx)
	}()
	leave = func() error {
		cancel()
		<-done
		return err
	}
	t.Cleanup(func() { _ = leave() })
	return e, leave
}

// live runs an Envoy and waits until it is live.
func (w *world) live(t *testing.T) (e *Envoy, leave func() error) {
	t.Helper()
	e, leave = w.run(t)
	eventually(t, func() error { return inState(e, StateLive) })
	return e, leave
}

// die drops everything that holds the state directory, as the death of Sluice does, and claims it anew.
func (w *world) die(t *testing.T, leave func() error) {
	t.Helper()
	if err := leave(); err != nil {
		t.Fatal(err)
	}
	if err := w.dir.Release(); err != nil {
		t.Fatal(err)
	}
	w.open(t)
}

func inState(e *Envoy, want State) error {
	if s := e.Status(); s.State != want {
		return fmt.Errorf("status %+v, want %s", s, want)
	}
	return nil
}

// runs tells whether the process is there and no zombie: Envoys of an earlier life are still children of this test.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}

// eventually tries until there is no error.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	err := try()
	for err != nil && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
		err = try()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// address is where Envoy's one listener listens.
func address(t *testing.T, a Admin) string {
	t.Helper()
	body, err := a.Get(t.Context(), "/listeners?format=json")
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Statuses []struct {
			Local struct {
				Socket struct {
					Port int `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || len(answer.Statuses) != 1 {
		t.Fatalf("no listener: %v %s", err, body)
	}
	return fmt.Sprintf("http://127.0.0.1:%d", answer.Statuses[0].Local.Socket.Port)
}

// fetch makes a request on a connection of its own. The answer has begun when it returns.
func fetch(url string) (*http.Response, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return client.Get(url)
}

// stream begins a response that goes on until the backend is told to finish.
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
