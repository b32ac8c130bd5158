package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/authz"
)

// sluice runs one of the program's commands to its end.
func (g *gateway) sluice(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, args...).CombinedOutput()
	return string(out), err
}

// envoyAdmin reads from Envoy's own admin socket.
func (g *gateway) envoyAdmin(path string) string {
	g.t.Helper()
	sockets, _ := filepath.Glob(filepath.Join(g.Dir, "*", "envoy.sock"))
	if direct := filepath.Join(g.Dir, "envoy.sock"); len(sockets) == 0 {
		sockets = []string{direct}
	}
	unix := &http.Client{Transport: &http.Transport{DialContext: dialUnix(sockets[0]), DisableKeepAlives: true}}
	req, err := http.NewRequest(http.MethodGet, "http://envoy"+path, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	return string(g.do(unix, req).body)
}

// script runs a client script with the settings as environment and shows what it printed.
func script(t *testing.T, command []string, settings map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = os.Environ()
	for k, v := range settings {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s\n%s", strings.Join(command, " "), out)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "ok ") {
		t.Fatal("the script checked nothing")
	}
}

func TestE2E_N1_P1_S16_OfficialClients(t *testing.T) {
	t.Parallel()
	key := authz.NewKey()
	g := start(t, `
auth: {mode: keys}
tenants:
  - {name: acme, keys: ["`+key.Hash+`"]}
models:
  - name: chat
    task: text-generation
    engine: sim
    launcher: local
    replicas: {min: 2, max: 2}
    variables: {prefill_rate: 0, token_interval: 1ms}
  - name: embed
    task: embedding
    engine: sim
    launcher: local
  - name: busy
    launcher: upstream
    upstreams: [`+newGate(t).url+`]
    admission: {max_concurrent_requests: 1, max_queue: 1, queue_timeout: 60s}
`)
	// The model busy stays as full as can be, so that the clients meet a RateLimitError.
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	for range 2 {
		go g.tryPost(ctx, "/v1/chat/completions", chat("busy", true, 1, "x"), "Authorization: Bearer "+key.Secret)
	}
	eventually(t, "busy", func() error {
		if m := g.model("busy"); m.InFlight != 1 || m.Queued != 1 {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
	settings := map[string]string{
		"BASE_URL": g.URL + "/v1", "MODEL": "chat", "EMBED_MODEL": "embed", "BUSY_MODEL": "busy", "API_KEY": key.Secret,
		"NODE_MODULES": filepath.Join(root, ".tools", "node", "node_modules"),
	}
	t.Run("python", func(t *testing.T) {
		script(t, []string{tool(t, "venv/bin/python"), filepath.Join(root, "tests/clients/chat.py")}, settings)
	})
	t.Run("node", func(t *testing.T) {
		tool(t, "node/node_modules/openai")
		script(t, []string{"node", filepath.Join(root, "tests/clients/chat.mjs")}, settings)
	})
	leave()
	g.awaitIdle("busy")
	g.awaitIdle("chat")
}

func TestE2E_E4_AdminPageInChromium(t *testing.T) {
	t.Parallel()
	g := start(t, slowSims)
	tool(t, "node/node_modules/playwright-core")
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				g.tryPost(context.Background(), "/v1/chat/completions", chat("chat", false, 5, "hello"))
			}
		}
	}()
	script(t, []string{"node", filepath.Join(root, "tests/clients/page.mjs")}, map[string]string{
		"ADMIN_URL": g.Admin, "EXPECT_MODEL": "chat", "EXPECT_REPLICA": "chat-2", "EDIT_MODEL": "chat",
		"NODE_MODULES": filepath.Join(root, ".tools", "node", "node_modules"),
	})
}

func TestE2E_E4_ServeBesideAnEnvoyOfSomeoneElse(t *testing.T) {
	t.Parallel()
	g := prepare(t, oneSim)
	bootstrap, err := g.sluice("bootstrap", "-c", g.Config)
	if err != nil {
		t.Fatalf("%v\n%s", err, bootstrap)
	}
	file := filepath.Join(filepath.Dir(g.Config), "envoy.json")
	if err := os.WriteFile(file, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	envoy := exec.Command(tool(t, "envoy"), "-c", file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error")
	envoy.Stdout, envoy.Stderr = g.log, g.log
	if err := envoy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		envoy.Process.Kill()
		envoy.Wait()
		g.stop()
	})
	g.command = []string{"serve", "-c", g.Config}
	g.launch()
	g.awaitReady()
	a := g.post("/v1/chat/completions", chat("chat", true, 5, "hello"))
	if err := wholeStream(a.body); err != nil {
		t.Errorf("%v: %s", err, a)
	}
}

func TestE2E_T1_UpWithNothingButUpstreams(t *testing.T) {
	t.Parallel()
	up := backend(t, func(w http.ResponseWriter, r *http.Request) {
		if !lists(w, r, "a", "b/c") {
			io.WriteString(w, "fine")
		}
	})
	// This command has its ports by default, so it runs with a file that says the same.
	g := start(t, "upstreams: ["+up+"]\n")
	for _, name := range []string{"a", "b/c"} {
		if a := g.post("/v1/completions", `{"model":"`+name+`","prompt":"x"}`); a.StatusCode != 200 || string(a.body) != "fine" {
			t.Errorf("%s: %s", name, a)
		}
		if a := g.fetch("/v1/models/" + name); a.StatusCode != 200 {
			t.Errorf("%s: %s", name, a)
		}
	}
}

func TestE2E_LeasesNeverLeak(t *testing.T) {
	t.Parallel()
	g := start(t, `
models:
  - name: chat
    task: text-generation
    engine: sim
    launcher: local
    replicas: {min: 2, max: 2}
    variables: {prefill_rate: 0, token_interval: 1ms, max_num_seqs: 16}
    admission: {max_concurrent_requests: 24, max_queue: 50, queue_timeout: 200ms}
`)
	const workers, each = 40, 250
	kinds := []func(i int) error{
		func(i int) error { return g.mixed(i, chat("chat", true, 3, fmt.Sprint(i)), 0, "") },
		func(i int) error { return g.mixed(i, chat("chat", false, 3, fmt.Sprint(i)), 0, "") },
		func(i int) error { return g.mixed(i, chat("chat", true, 500, fmt.Sprint(i)), 5*time.Millisecond, "") }, // leaves
		func(i int) error { return g.mixed(i, chat("chat", true, 500, fmt.Sprint(i)), time.Millisecond, "") },
		func(i int) error { return g.mixed(i, chat("chat", true, 9, fmt.Sprint(i)), 0, "X-Sim-Fault: cut=2") },
		func(i int) error {
			return g.mixed(i, chat("chat", false, 9, fmt.Sprint(i)), 0, "X-Sim-Fault: status=500")
		},
		func(i int) error {
			return g.mixed(i, chat("chat", true, 9, fmt.Sprint(i)), 0, "X-Sim-Fault: reset-before-headers")
		},
		func(i int) error { return g.mixed(i, chat("nope", true, 9, fmt.Sprint(i)), 0, "") },
		func(i int) error { return g.mixed(i, `{"model":`, 0, "") },
	}
	ended := make(chan struct{})
	for w := range workers {
		go func() {
			for i := range each {
				kinds[(w+i)%len(kinds)](w*each + i) // how it ends does not matter here
			}
			ended <- struct{}{}
		}()
	}
	for range workers {
		<-ended
	}
	g.awaitIdle("chat")
	for id, r := range g.replicas() {
		if r.InFlight != 0 {
			t.Errorf("%s still has %d", id, r.InFlight)
		}
	}
	if a := g.post("/v1/chat/completions", chat("chat", false, 2, "after all")); a.StatusCode != 200 {
		t.Errorf("%s", a)
	}
}

// mixed sends a request and leaves after a while, if one is given.
func (g *gateway) mixed(i int, body string, leaveAfter time.Duration, header string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if leaveAfter > 0 {
		timer := time.AfterFunc(leaveAfter*time.Duration(1+i%3), cancel)
		defer timer.Stop()
	}
	var headers []string
	if header != "" {
		headers = append(headers, header)
	}
	_, err := g.tryPost(ctx, "/v1/chat/completions", body, headers...)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
