package local

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/supervise"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// patience is how long a test waits for something that happens soon on a busy machine.
const patience = testutil.Patience

func TestMain(m *testing.M) {
	if os.Getenv("LOCAL_TEST_ENGINE") == "" {
		goleak.VerifyTestMain(m)
		return
	}
	playEngine(net.JoinHostPort(os.Args[1], os.Args[2]), os.Args[3])
}

// playEngine is an engine that is controlled by files in a directory. A file "x-<pid>" controls
// only this process.
//
//	exit     prints two lines and ends at once
//	collide  says that its port is in use and ends at once
//	mute     never listens
//	loading  answers 503
//	broken   answers 500
//	hang     does not answer
//	deaf     stops listening, but lives on
//	chatty   logs a line ten times a second
//	reads    reads a file for four seconds, then writes "has read"
func playEngine(address, folder string) {
	told := func(what string) bool {
		_, all := os.Stat(filepath.Join(folder, what))
		_, one := os.Stat(filepath.Join(folder, fmt.Sprintf("%s-%d", what, os.Getpid())))
		return all == nil || one == nil
	}
	switch {
	case told("exit"):
		fmt.Println("loading the model")
		fmt.Fprintln(os.Stderr, "boom: no such model")
		os.Exit(7)
	case told("collide"):
		fmt.Println("OSError: [Errno 98] Address already in use")
		os.Exit(1)
	case told("mute"):
		stay()
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if told("chatty") {
		go chat()
	}
	if told("reads") {
		go read(folder)
	}
	go func() {
		for !told("deaf") {
			time.Sleep(5 * time.Millisecond)
		}
		listener.Close()
	}()
	_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == neverReadyPath:
			w.WriteHeader(http.StatusNotFound)
		case told("loading"):
			w.WriteHeader(http.StatusServiceUnavailable)
		case told("broken"):
			w.WriteHeader(http.StatusInternalServerError)
		case told("hang"):
			<-r.Context().Done()
		}
	}))
	stay()
}

// neverReadyPath is a path that no engine of these tests answers. The kernel may give the port of a
// replica that does not listen yet to an engine of another test. That engine would answer a probe
// of another path in its place.
const neverReadyPath = "/never"

// chat logs a line ten times a second.
func chat() {
	for n := 0; ; n++ {
		fmt.Printf("loaded %d %%\n", n)
		time.Sleep(100 * time.Millisecond)
	}
}

// read reads a file again and again for four seconds, then writes the file "has read".
func read(folder string) {
	file := filepath.Join(folder, "weights")
	_ = os.WriteFile(file, make([]byte, 1<<20), 0o600)
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		_, _ = os.ReadFile(file)
	}
	_ = os.WriteFile(filepath.Join(folder, "has read"), nil, 0o600)
	for {
		_, _ = os.ReadFile(file)
		time.Sleep(100 * time.Millisecond)
	}
}

// stay blocks for ever. It does not use select{}, which Go reports as a deadlock in a program
// without cgo.
func stay() {
	for {
		time.Sleep(time.Hour)
	}
}

// fixture is what a launcher under test works with.
type fixture struct {
	t      *testing.T
	path   string // the state directory
	dir    *process.Dir
	fleet  *engines.Fleet
	folder string // tells the engines what to do

	mu sync.Mutex
	// inFlight counts requests by replica id; guarded by mu
	inFlight map[string]int
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{t: t, path: t.TempDir(), folder: t.TempDir(), inFlight: map[string]int{}}
	w.open()
	t.Cleanup(func() {
		if err := w.dir.EndAll(context.Background(), 0); err != nil {
			t.Error(err)
		}
		w.dir.Release()
	})
	return w
}

func (w *fixture) open() {
	w.t.Helper()
	dir, err := process.Open(w.path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := dir.Claim(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.dir, w.fleet = dir, engines.NewFleet()
}

// crash drops everything but the state directory, as kill -9 does.
func (w *fixture) crash(stop func()) {
	w.t.Helper()
	stop()
	w.dir.Release()
	w.open()
}

func (w *fixture) config() Config {
	return Config{
		Dir: w.dir, Fleet: w.fleet, InFlight: w.load,
		BackOff:     supervise.BackOff{First: 20 * time.Millisecond, Max: 400 * time.Millisecond, Reset: time.Hour},
		DrainSettle: 10 * time.Millisecond,
	}
}

func (w *fixture) load(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.inFlight[id]
}

func (w *fixture) setLoad(id string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inFlight[id] = n
}

// tell writes a file that controls the engines from now on.
func (w *fixture) tell(what string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.folder, what), nil, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *fixture) untell(what string) {
	w.t.Helper()
	if err := os.Remove(filepath.Join(w.folder, what)); err != nil {
		w.t.Fatal(err)
	}
}

// say appends a text to the log of the only process.
func (w *fixture) say(text string) {
	w.t.Helper()
	file, err := os.OpenFile(w.dir.Records()[0].LogFile, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString(text); err != nil {
		w.t.Fatal(err)
	}
}

// model returns a model of the fake engine with short probe intervals.
func (w *fixture) model(name string, replicas int) Model {
	return Model{
		Model: engines.Model{Name: name, Desired: replicas, Task: engines.TextGeneration, Launcher: engines.Local},
		Version: engines.Version{
			Command: []string{"{{.Sluice}}", "{{.Host}}", "{{.Port}}", "{{.Model}}"},
			Ready:   engines.Probe{Path: "/health", Every: 10 * time.Millisecond},
			Health:  engines.Probe{Path: "/health", Every: 20 * time.Millisecond},
			Slots:   engines.Slots{Default: 4},
		},
		Launch:       engines.Launch{Name: name, Model: w.folder, Sluice: os.Args[0]},
		Env:          map[string]string{"LOCAL_TEST_ENGINE": "yes", "GORACE": "atexit_sleep_ms=0"},
		StartTimeout: patience,
	}
}

// run runs a launcher until the returned function is called. The processes then run on.
func run(t *testing.T, l *Launcher) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run = %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// replicas returns the replicas of a model in the fleet.
func (w *fixture) replicas(model string) []engines.Replica {
	m, ok := w.fleet.Snapshot().Models[model]
	if !ok {
		return nil
	}
	return m.Replicas
}

func (w *fixture) replica(id string) engines.Replica {
	for _, m := range w.fleet.Snapshot().Models {
		for _, r := range m.Replicas {
			if r.ID == id {
				return r
			}
		}
	}
	return engines.Replica{}
}

// states returns "id state" of every replica of a model, in the order of ids.
func (w *fixture) states(model string) string {
	var all []string
	for _, r := range w.replicas(model) {
		all = append(all, r.ID+" "+string(r.State))
	}
	return strings.Join(all, ", ")
}

func (w *fixture) eventually(what string, condition func() bool) {
	w.t.Helper()
	deadline := time.After(patience)
	for {
		_, changed := w.fleet.Watch()
		if condition() {
			return
		}
		select {
		case <-changed:
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			w.t.Fatalf("it did not come true: %s; the fleet: %+v", what, w.all())
		}
	}
}

func (w *fixture) all() (all []engines.Replica) {
	for _, m := range w.fleet.Snapshot().Models {
		all = append(all, m.Replicas...)
	}
	return all
}

func (w *fixture) awaitReady(model string, n int) []engines.Replica {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d replicas of %s are ready", n, model), func() bool {
		all := w.replicas(model)
		return len(all) == n && !slices.ContainsFunc(all, func(r engines.Replica) bool { return r.State != engines.Ready })
	})
	return w.replicas(model)
}

// history records every snapshot of a model as a string until the test ends.
func (w *fixture) history(model string) (read func() []string) {
	var mu sync.Mutex
	var lines []string
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_, changed := w.fleet.Watch()
			line := w.states(model)
			mu.Lock()
			if len(lines) == 0 || lines[len(lines)-1] != line {
				lines = append(lines, line)
			}
			mu.Unlock()
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}()
	w.t.Cleanup(func() { cancel(); <-ended })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		if now := w.states(model); len(lines) == 0 || lines[len(lines)-1] != now {
			lines = append(lines, now)
		}
		return slices.Clone(lines)
	}
}

func processRuns(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(data), ") Z ")
}
