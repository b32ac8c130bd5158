package local

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/weights"
	"github.com/sluice-gateway/sluice/internal/weights/hubtest"
)

// fetching returns a model whose weights are fetched from the hub. The fake engine gets their path
// as its last argument.
func (w *fixture) fetching(hub *hubtest.Hub, replicas int) Model {
	m := w.model("chat", replicas)
	m.Version.Command = []string{"{{.Sluice}}", "{{.Host}}", "{{.Port}}", w.folder, "{{.Registry}}={{.Model}}"}
	m.Launch.Registry, m.Launch.Model = "huggingface", "org/tiny"
	m.Weights = &weights.Source{Repository: "org/tiny", Endpoint: hub.URL, CacheDir: w.t.TempDir()}
	return m
}

// arguments returns the command lines of a model's processes.
func (w *fixture) arguments(model string) (lines [][]string) {
	w.t.Helper()
	for _, r := range w.replicas(model) {
		line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(r.PID), "cmdline"))
		if err != nil {
			w.t.Fatal(err)
		}
		lines = append(lines, strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00"))
	}
	return lines
}

// TestU19_WeightsAreFetchedBeforeTheStart: two replicas wait for one fetch and tell how far it is.
// Their processes start when it is complete, with its path.
func TestU19_WeightsAreFetchedBeforeTheStart(t *testing.T) {
	t.Parallel()
	hub := hubtest.New(t)
	hub.Put("org/tiny", hubtest.Repository{Files: map[string][]byte{"tiny-Q4_K_M.gguf": make([]byte, 1<<20)}})
	hold := make(chan struct{})
	hub.Fail("tiny-Q4_K_M.gguf", hubtest.Faults{Hold: hold})
	w := newFixture(t)
	l := New(w.config())
	m := w.fetching(hub, 2)
	l.Set([]Model{m})
	stop := run(t, l)
	for _, id := range []string{"chat-0", "chat-1"} {
		w.eventually(id+" tells that half of the weights are there", func() bool { return w.replica(id).Fetch.Done == 1<<19 })
		r := w.replica(id)
		if r.State != engines.Starting || r.PID != 0 || r.Fetch.Total != 1<<20 || !strings.HasPrefix(r.Reason, "fetching weights: 512.0 KiB of 1.0 MiB (50 %)") {
			t.Errorf("%+v", r)
		}
	}
	close(hold)
	for _, r := range w.awaitReady("chat", 2) {
		if r.Fetch != (engines.Fetch{}) || r.Reason != "" {
			t.Errorf("after the fetch: %+v", r)
		}
	}
	for _, line := range w.arguments("chat") {
		registry, path, _ := strings.Cut(line[len(line)-1], "=")
		if info, err := os.Stat(path); registry != "directory" || err != nil || info.Size() != 1<<20 {
			t.Errorf("the engine got %q: %v", line, err)
		}
	}
	if want := []string{"tiny-Q4_K_M.gguf 0"}; !slices.Equal(hub.Requests(), want) {
		t.Errorf("requests %q, want %q", hub.Requests(), want)
	}

	// The next run adopts the replicas. Another file means other replicas.
	w.crash(stop)
	l = New(w.config())
	l.Adopt([]Model{m})
	stop = run(t, l)
	before := w.awaitReady("chat", 2)
	hub.Put("org/tiny", hubtest.Repository{Files: map[string][]byte{"other.gguf": make([]byte, 1<<10)}})
	other := *m.Weights
	other.File = "other.gguf"
	m.Weights = &other
	l.Set([]Model{m})
	w.eventually("both replicas have the other file", func() bool {
		all := w.replicas("chat")
		return len(all) == 2 && all[0].State == engines.Ready && all[1].State == engines.Ready && all[0].PID != before[0].PID && all[1].PID != before[1].PID
	})
	for _, line := range w.arguments("chat") {
		if !strings.HasSuffix(line[len(line)-1], "/other.gguf") {
			t.Errorf("the engine got %q", line)
		}
	}
	stop()
}

// TestU19_AHubThatMakesAReplicaWait: the replica tells that it starts, and what the hub has said,
// and not why an earlier start failed.
func TestU19_AHubThatMakesAReplicaWait(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 1 {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Retry-After", "300")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(hub.Close)
	w := newFixture(t)
	l := New(w.config())
	l.Set([]Model{w.fetching(&hubtest.Hub{URL: hub.URL}, 1)})
	run(t, l)
	w.eventually("it tells that the hub wants a pause", func() bool {
		r := w.replica("chat-0")
		return r.State == engines.Starting && r.FailedStarts == 1 && r.NextStart.IsZero() &&
			strings.HasPrefix(r.Reason, "asking the hub what to fetch: next try in 5m0s: ") && strings.Contains(r.Reason, "answers 429")
	})
}

// TestU19_FetchThatFails: the replica tells why, and the class of the failure is for clients.
func TestU19_FetchThatFails(t *testing.T) {
	t.Parallel()
	hub := hubtest.New(t)
	w := newFixture(t)
	l := New(w.config())
	l.Set([]Model{w.fetching(hub, 1)})
	run(t, l)
	w.eventually("it has failed twice", func() bool { return w.replica("chat-0").FailedStarts >= 2 })
	w.eventually("it tells why", func() bool {
		r := w.replica("chat-0")
		return r.State == engines.Failed && r.Failure == engines.NoWeights && strings.Contains(r.Reason, "no such repository, or it is private")
	})
	hub.Put("org/tiny", hubtest.Repository{Files: map[string][]byte{"tiny.gguf": make([]byte, 1<<10)}})
	w.awaitReady("chat", 1)
}

// TestU19_ProgramBeforeTheWeights: a replica whose program is missing says so, and fetches nothing.
func TestU19_ProgramBeforeTheWeights(t *testing.T) {
	t.Parallel()
	hub := hubtest.New(t)
	hub.Put("org/tiny", hubtest.Repository{Files: map[string][]byte{"tiny.gguf": make([]byte, 1<<10)}})
	w := newFixture(t)
	l := New(w.config())
	m := w.fetching(hub, 1)
	m.Version.Command[0] = filepath.Join(t.TempDir(), "bin", "no-engine")
	l.Set([]Model{m})
	run(t, l)
	w.eventually("it has failed", func() bool { return w.replica("chat-0").FailedStarts >= 1 })
	if r := w.replica("chat-0"); r.Failure != engines.NoProgram || !strings.Contains(r.Reason, "bin/no-engine: no such file or directory") {
		t.Errorf("it is %s: %s", r.Failure, r.Reason)
	}
	if requests := hub.Requests(); len(requests) > 0 {
		t.Errorf("the hub was asked: %q", requests)
	}
}
