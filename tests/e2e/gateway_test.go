package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

var (
	root   string // of the module
	binary string // sluice, built once
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	lastPort.Store(int64(11000 + os.Getpid()%1000*20))
	_, file, _, _ := runtime.Caller(0)
	root = filepath.Join(filepath.Dir(file), "..", "..")
	dir, err := os.MkdirTemp("", "sluice-e2e-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "sluice")
	args := []string{"build", "-o", binary}
	if os.Getenv("SLUICE_E2E_RACE") != "" {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "./cmd/sluice")...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s\n%v\n", out, err)
		return 1
	}
	return m.Run()
}

// tool is the path of something that `make tools` puts under .tools.
func tool(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(root, ".tools", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is missing: run `make tools`", path)
	}
	return path
}

// lastPort counts up from a base of this process, below the range that the kernel takes ports for outgoing connections from.
var lastPort atomic.Int64

// freePort finds a port that nothing listens on. Envoy and Sluice take it a moment later, so the kernel's own choice, which it may
// hand out again at once, would not do.
func freePort(t *testing.T) int {
	t.Helper()
	for range 1000 {
		port := int(lastPort.Add(1))
		if l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

// gateway is a running `sluice up` (or serve) with its Envoy.
type gateway struct {
	t           *testing.T
	URL, Admin  string // http://127.0.0.1:port
	Dir, Config string
	command     []string
	cmd         *exec.Cmd
	exited      chan struct{}
	log         *os.File
}

// prepare writes the configuration, to which listeners and state directory are added, and starts nothing.
func prepare(t *testing.T, config string) *gateway {
	t.Helper()
	dir, err := os.MkdirTemp("", "sl-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	g := &gateway{t: t, Dir: filepath.Join(dir, "state"), Config: filepath.Join(dir, "sluice.yaml")}
	g.URL = fmt.Sprint("http://127.0.0.1:", freePort(t))
	g.Admin = fmt.Sprint("http://127.0.0.1:", freePort(t))
	g.configure(config)
	g.command = []string{"up", "-c", g.Config}
	if g.log, err = os.Create(filepath.Join(dir, "sluice.log")); err != nil {
		t.Fatal(err)
	}
	return g
}

// start runs `sluice up` with the configuration and waits until it is ready.
func start(t *testing.T, config string) *gateway {
	t.Helper()
	g := prepare(t, config)
	t.Cleanup(g.stop)
	g.launch()
	g.awaitReady()
	return g
}

// configure writes the file anew.
func (g *gateway) configure(config string) {
	g.t.Helper()
	text := fmt.Sprintf("listen: %s\nadmin: %s\nstate_dir: %s\n", strings.TrimPrefix(g.URL, "http://"), strings.TrimPrefix(g.Admin, "http://"), g.Dir)
	if !strings.Contains(config, "\nauth:") {
		text += "auth: {mode: none}\n"
	}
	// Written aside and renamed, as editors and ConfigMaps do: the watcher must never read half a file.
	if err := os.WriteFile(g.Config+".new", []byte(text+config), 0o600); err != nil {
		g.t.Fatal(err)
	}
	if err := os.Rename(g.Config+".new", g.Config); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) launch() {
	g.t.Helper()
	g.cmd = exec.Command(binary, g.command...)
	g.cmd.Stdout, g.cmd.Stderr = g.log, g.log
	g.cmd.Env = append(os.Environ(), mark+g.Dir, "SLUICE_ENVOY="+tool(g.t, "envoy"), "PATH="+filepath.Join(root, ".tools")+":"+os.Getenv("PATH"))
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := g.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	g.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		cmd.Wait()
		close(exited)
	}(g.cmd, g.exited)
}

func (g *gateway) signal(s syscall.Signal) {
	g.t.Helper()
	if err := g.cmd.Process.Signal(s); err != nil {
		g.t.Fatal(err)
	}
}

// kill is kill -9 and waits for the death of that one process.
func (g *gateway) kill() {
	g.t.Helper()
	g.signal(syscall.SIGKILL)
	<-g.exited
}

// stop ends everything and fails the test when anything is left.
func (g *gateway) stop() {
	if g.t.Failed() || os.Getenv("SLUICE_E2E_DUMP") != "" {
		g.dump()
	}
	g.cmd.Process.Signal(syscall.SIGCONT)
	g.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-g.exited:
	case <-time.After(60 * time.Second):
		g.t.Error("Sluice did not stop within 60 s")
		g.cmd.Process.Kill()
		<-g.exited
	}
	g.log.Close()
	eventually(g.t, "nothing of the gateway is left", func() error {
		if left := g.processes(); len(left) > 0 {
			return fmt.Errorf("still running: %v", left)
		}
		return nil
	})
}

// mark is an environment variable that a gateway hands down to everything it starts.
const mark = "SLUICE_E2E_DIR="

// processes lists the processes that come from this gateway: itself, Envoy, the guard, the replicas.
func (g *gateway) processes() map[int]string {
	found := map[int]string{}
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		var pid int
		fmt.Sscan(filepath.Base(name), &pid)
		cmdline, _ := os.ReadFile(name + "/cmdline")
		environ, _ := os.ReadFile(name + "/environ")
		if len(cmdline) > 0 && bytes.Contains(environ, []byte(mark+g.Dir+"\x00")) {
			found[pid] = strings.ReplaceAll(string(cmdline), "\x00", " ")
		}
	}
	return found
}

// dump shows the logs of a failed test.
func (g *gateway) dump() {
	files, _ := filepath.Glob(filepath.Join(g.Dir, "*", "*.log"))
	more, _ := filepath.Glob(filepath.Join(g.Dir, "*.log"))
	for _, file := range append([]string{g.log.Name()}, append(files, more...)...) {
		b, _ := os.ReadFile(file)
		if len(b) > 6000 {
			b = b[len(b)-6000:]
		}
		g.t.Logf("--- %s\n%s", filepath.Base(file), b)
	}
}

func (g *gateway) logText() string {
	b, err := os.ReadFile(g.log.Name())
	if err != nil {
		g.t.Fatal(err)
	}
	return string(b)
}

func (g *gateway) awaitReady() {
	g.t.Helper()
	eventually(g.t, "ready", func() error {
		select {
		case <-g.exited:
			g.dump()
			g.t.Fatal("Sluice has ended")
		default:
		}
		r, err := http.Get(g.Admin + "/readyz")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		if r.StatusCode != 200 {
			return fmt.Errorf("%d: %s", r.StatusCode, b)
		}
		return nil
	})
}

// eventually waits for a condition; the bound is only there so that a failure ends.
func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// get reads JSON from the admin API.
func (g *gateway) get(path string, into any) {
	g.t.Helper()
	if err := g.tryGet(path, into); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) tryGet(path string, into any) error {
	r, err := http.Get(g.Admin + path)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != 200 {
		return fmt.Errorf("%s: %s", path, r.Status)
	}
	return json.NewDecoder(r.Body).Decode(into)
}

type replica struct {
	ID, Model, State, Address, Reason, Node string
	PID                                     int
	InFlight                                int `json:"in_flight"`
}

func (g *gateway) replicas() map[string]replica {
	g.t.Helper()
	var list struct{ Replicas []replica }
	g.get("/api/v1/replicas", &list)
	all := map[string]replica{}
	for _, r := range list.Replicas {
		all[r.ID] = r
	}
	return all
}

type model struct {
	Name, State             string
	Replicas, Ready, Queued int
	InFlight                int `json:"in_flight"`
}

func (g *gateway) model(name string) model {
	g.t.Helper()
	var list struct{ Models []model }
	g.get("/api/v1/models", &list)
	for _, m := range list.Models {
		if m.Name == name {
			return m
		}
	}
	return model{}
}

// awaitIdle waits until nothing is in flight or queued.
func (g *gateway) awaitIdle(name string) {
	g.t.Helper()
	eventually(g.t, "idle", func() error {
		if m := g.model(name); m.InFlight != 0 || m.Queued != 0 {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
}

// clients of the tests never wait for a connection behind one another and never retry.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}

// post sends JSON and returns the response with its whole body.
func (g *gateway) post(path, body string, headers ...string) *answer {
	g.t.Helper()
	a, err := g.tryPost(context.Background(), path, body, headers...)
	if err != nil {
		g.t.Fatal(err)
	}
	return a
}

type answer struct {
	*http.Response
	body []byte
}

func (a *answer) String() string { return fmt.Sprintf("%s: %s", a.Status, a.body) }

// code is error.code.
func (a *answer) code() string {
	var e struct{ Error struct{ Code string } }
	json.Unmarshal(a.body, &e)
	return e.Error.Code
}

func (g *gateway) tryPost(ctx context.Context, path, body string, headers ...string) (*answer, error) {
	r, err := g.open(ctx, path, body, headers...)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return &answer{r, b}, err
}

// open sends JSON and returns the response as soon as its headers are there. Headers are "Name: value".
func (g *gateway) open(ctx context.Context, path, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	return client.Do(req)
}

// chat is the body of a chat request.
func chat(model string, stream bool, tokens int, messages ...string) string {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	list := make([]message, len(messages))
	for i, m := range messages {
		list[i] = message{[]string{"user", "assistant"}[i%2], m}
	}
	b, err := json.Marshal(map[string]any{"model": model, "stream": stream, "max_tokens": tokens, "ignore_eos": true, "messages": list})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// wholeStream says what is wrong with the body of a streamed response, nil when it is whole.
func wholeStream(body []byte) error {
	switch {
	case !bytes.HasSuffix(body, []byte("data: [DONE]\n\n")):
		return errors.New("it does not end with [DONE]")
	case !bytes.Contains(body, []byte(`"finish_reason":"`)):
		return errors.New("it has no finish_reason")
	}
	return nil
}

// backend is a server of a test's own, as an engine that someone else runs.
func backend(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handler}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return "http://" + l.Addr().String()
}

// lists answers the request for a list of models, if it is one.
func lists(w http.ResponseWriter, r *http.Request, models ...string) bool {
	if r.Method != http.MethodGet || r.URL.Path != "/v1/models" {
		return false
	}
	type card struct {
		ID string `json:"id"`
	}
	var data []card
	for _, m := range models {
		data = append(data, card{m})
	}
	json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": data})
	return true
}

// fetch is a GET on Envoy's listener.
func (g *gateway) fetch(path string, headers ...string) *answer {
	g.t.Helper()
	req, err := http.NewRequest(http.MethodGet, g.URL+path, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	return g.do(client, req)
}

// adminText is a GET on the admin listener.
func (g *gateway) adminText(path string) string {
	g.t.Helper()
	req, err := http.NewRequest(http.MethodGet, g.Admin+path, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	return string(g.do(client, req).body)
}

// do makes a request that must be answered, whatever the status.
func (g *gateway) do(c *http.Client, req *http.Request) *answer {
	g.t.Helper()
	r, err := c.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return &answer{r, b}
}

// dialUnix makes every connection of a client one to the socket.
func dialUnix(path string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
}
