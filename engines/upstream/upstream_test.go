package upstream

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// testServer is an HTTP server whose list of models, status and path a test can change.
type testServer struct {
	*httptest.Server
	models atomic.Pointer[[]string]
	status atomic.Int64
	path   string
}

func newTestServer(t *testing.T, path string, models ...string) *testServer {
	e := &testServer{path: path}
	e.models.Store(&models)
	e.status.Store(http.StatusOK)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != e.path {
			http.NotFound(w, r)
			return
		}
		w.WriteHeader(int(e.status.Load()))
		type card struct {
			ID string `json:"id"`
		}
		list := []card{}
		for _, m := range *e.models.Load() {
			list = append(list, card{m})
		}
		json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": list})
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *testServer) id() string { return strings.TrimPrefix(e.URL, "http://") }

func newTestLauncher(t *testing.T, d Desired) (*Launcher, *engines.Fleet) {
	t.Helper()
	fleet := engines.NewFleet()
	l := New(Config{Fleet: fleet, Log: zap.NewNop(), Timeout: testutil.Patience})
	t.Cleanup(l.Client.CloseIdleConnections)
	l.Set(d)
	return l, fleet
}

// fleetStates returns the states of the fleet's replicas by model and id.
func fleetStates(f *engines.Fleet) map[string]map[string]engines.State {
	got := map[string]map[string]engines.State{}
	for name, m := range f.Snapshot().Models {
		got[name] = map[string]engines.State{}
		for _, r := range m.Replicas {
			got[name][r.ID] = r.State
		}
	}
	return got
}

func expectStates(t *testing.T, f *engines.Fleet, w map[string]map[string]engines.State) {
	t.Helper()
	if d := cmp.Diff(w, fleetStates(f)); d != "" {
		t.Fatalf("fleet (-want +got):\n%s", d)
	}
}

type states = map[string]engines.State

func TestModelsAppearAndGo(t *testing.T) {
	a := newTestServer(t, "/v1/models", "chat", "embed")
	b := newTestServer(t, "/models", "chat")
	l, fleet := newTestLauncher(t, Desired{Discover: discover(a.URL, b.URL+"/v1")})
	expectStates(t, fleet, map[string]states{}) // No model is known before the first check.
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{
		"chat":  {a.id(): engines.Ready, b.id(): engines.Ready},
		"embed": {a.id(): engines.Ready},
	})
	a.models.Store(&[]string{"embed"})
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{"chat": {b.id(): engines.Ready}, "embed": {a.id(): engines.Ready}})
	l.Set(Desired{Discover: discover(a.URL)})
	expectStates(t, fleet, map[string]states{"embed": {a.id(): engines.Ready}})
}

// discover returns entries of Desired.Discover for servers that may not join.
func discover(urls ...string) []Discovered {
	var all []Discovered
	for _, url := range urls {
		all = append(all, Discovered{URL: url})
	}
	return all
}

func TestNamedModels(t *testing.T) {
	a, b := newTestServer(t, "/v1/models", "x"), newTestServer(t, "/v1/models", "own")
	l, fleet := newTestLauncher(t, Desired{
		Models:   []Model{{Model: engines.Model{Name: "remote", Launcher: engines.Upstream}, URLs: []string{a.URL}}},
		Discover: discover(b.URL),
	})
	expectStates(t, fleet, map[string]states{"remote": {a.id(): engines.Starting}})
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{"remote": {a.id(): engines.Ready}, "own": {b.id(): engines.Ready}})
}

func TestHealth(t *testing.T) {
	a, b := newTestServer(t, "/v1/models", "chat"), newTestServer(t, "/v1/models", "chat", "only-b")
	l, fleet := newTestLauncher(t, Desired{Discover: discover(a.URL, b.URL)})
	l.CheckOnce(t.Context())

	a.status.Store(http.StatusServiceUnavailable)
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{
		"chat": {a.id(): engines.Failed, b.id(): engines.Ready}, "only-b": {b.id(): engines.Ready}})
	a.status.Store(http.StatusOK)
	l.CheckOnce(t.Context())

	l.RecordFailure(a.id(), "chat", "answered 500")
	expectStates(t, fleet, map[string]states{
		"chat": {a.id(): engines.Failed, b.id(): engines.Ready}, "only-b": {b.id(): engines.Ready}})
	l.CheckOnce(t.Context())
	l.RecordFailure(b.id(), "only-b", "answered 500") // It is the last server of only-b.
	expectStates(t, fleet, map[string]states{
		"chat": {a.id(): engines.Ready, b.id(): engines.Ready}, "only-b": {b.id(): engines.Ready}})

	b.Close()
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{
		"chat": {a.id(): engines.Ready, b.id(): engines.Failed}, "only-b": {b.id(): engines.Failed}})
	if r := fleet.Snapshot().Models["only-b"].Replicas[0]; !strings.Contains(r.Reason, "refused") {
		t.Errorf("reason %q does not tell what happened", r.Reason)
	}
}

func TestRunChecksAgain(t *testing.T) {
	a := newTestServer(t, "/v1/models", "chat")
	fleet := engines.NewFleet()
	l := New(Config{Fleet: fleet, Log: zap.NewNop(), Interval: 5 * time.Millisecond})
	l.Set(Desired{Discover: discover(a.URL)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	await(t, fleet, func() bool { return len(fleetStates(fleet)["chat"]) == 1 })
	a.models.Store(&[]string{"other"})
	await(t, fleet, func() bool { return fleetStates(fleet)["other"] != nil && fleetStates(fleet)["chat"] == nil })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func await(t *testing.T, f *engines.Fleet, ok func() bool) {
	t.Helper()
	deadline := time.After(testutil.Patience)
	for {
		_, changed := f.Watch()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("the fleet stayed at %v", fleetStates(f))
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       []string // separated from the refused ones by "refused"
		bad        bool
	}{
		{"openai", `{"object":"list","data":[{"id":"b"},{"id":"a"},{"id":"a"}]}`, []string{"a", "b"}, false},
		{"bare array", `[{"id":"a"}]`, []string{"a"}, false},
		{"models by name", `{"models":[{"name":"a"}]}`, []string{"a"}, false},
		{"none", `{"data":[]}`, nil, false},
		{"nameless", `{"data":[{"id":""},{}]}`, nil, false},
		{"bad names", `{"data":[{"id":"/models/x"},{"id":"a"},{"id":"a b"}]}`, []string{"a", "refused", `"/models/x"`, `"a b"`}, false},
		{"name too long", `{"data":[{"id":"` + strings.Repeat("x", 201) + `"}]}`, []string{"refused", `"` + strings.Repeat("x", 60) + `…"`}, false},
		{"item of another form", `{"data":[{"id":7},{"id":"a"},null,"x",[],{"id":{},"name":"b"},{"id":"c","name":1}]}`, []string{"a", "b", "c"}, false},
		{"not JSON", `<html>`, nil, true},
		{"empty", ``, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, err := parseModels(strings.NewReader(c.body))
			got := list.names
			if list.refused.Count > 0 {
				got = append(append(got, "refused"), list.refused.Names...)
			}
			if (err != nil) != c.bad || !cmp.Equal(got, c.want) {
				t.Errorf("got %v, %v; want %v", got, err, c.want)
			}
		})
	}
}

func TestEndlessListIsRejected(t *testing.T) {
	endless := io.MultiReader(strings.NewReader(`{"data":[`), zeros{})
	if _, err := parseModels(io.LimitReader(endless, maxListBytes)); err == nil {
		t.Error("accepted")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestHostPort(t *testing.T) {
	for url, want := range map[string]string{
		"http://10.0.0.5:8000":     "10.0.0.5:8000",
		"http://gpu-7/v1":          "gpu-7:80",
		"http://[::1]:8000/":       "[::1]:8000",
		"http://gpu.internal:8080": "gpu.internal:8080",
	} {
		if got := hostPort(url); got != want {
			t.Errorf("%s: got %s, want %s", url, got, want)
		}
	}
}

// TestU17_ASlowServerDelaysNoOther: a server that comes while another one lets its check hang is
// known at once.
func TestU17_ASlowServerDelaysNoOther(t *testing.T) {
	hang := make(chan struct{})
	hung := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	t.Cleanup(hung.Close)
	t.Cleanup(func() { close(hang) })
	good := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"data":[{"id":"chat"}]}`) }))
	t.Cleanup(good.Close)
	fleet := engines.NewFleet()
	l := New(Config{Fleet: fleet, Log: zap.NewNop(), Interval: time.Hour, Timeout: time.Hour})
	t.Cleanup(l.Client.CloseIdleConnections)
	l.Set(Desired{Discover: discover(hung.URL)})
	go l.Run(t.Context())
	time.Sleep(50 * time.Millisecond) // in the middle of the check
	l.Set(Desired{Discover: discover(hung.URL, good.URL)})
	await(t, fleet, func() bool { return len(fleetStates(fleet)["chat"]) == 1 })
}
