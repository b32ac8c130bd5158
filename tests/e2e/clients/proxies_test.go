package clients

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket/wsjson"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// behindProxy returns a copy of the gateway that clients reach through the proxy on that port.
func behindProxy(g *harness.Gateway, port int) *harness.Gateway {
	behind := *g
	behind.URL = fmt.Sprint("http://127.0.0.1:", port)
	return &behind
}

// inSubtest returns a copy of the gateway whose errors fail the subtest t.
func inSubtest(g *harness.Gateway, t *testing.T) *harness.Gateway {
	own := *g
	own.T = t
	return &own
}

// startProxy runs a proxy in the foreground, in a directory of its own, until the test ends. The
// last argument of the command is the path of the configuration. In the configuration, PORT stands
// for the address of the proxy, ENVOY for the address of Envoy and DIR for the directory.
func startProxy(g *harness.Gateway, config string, command ...string) *harness.Gateway {
	g.T.Helper()
	dir, err := os.MkdirTemp("", "sl-proxy-") // a master of nginx as root has workers of another user
	if err != nil {
		g.T.Fatal(err)
	}
	g.T.Cleanup(func() { os.RemoveAll(dir) })
	port := testutil.FreePort(g.T)
	config = strings.NewReplacer("PORT", fmt.Sprint("127.0.0.1:", port), "ENVOY", strings.TrimPrefix(g.URL, "http://"), "DIR", dir).Replace(config)
	file := filepath.Join(dir, "proxy.conf")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(file, []byte(config), 0o644)); err != nil {
		g.T.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		g.T.Fatal(err)
	}
	cmd := exec.Command(debianProgram(g.T, command[0]), append(command[1:], file)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		g.T.Fatal(err)
	}
	g.T.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM) // nginx's master ends its workers
		cmd.Wait()
		log.Close()
		if b, _ := os.ReadFile(log.Name()); g.T.Failed() {
			g.T.Logf("--- %s\n%s", command[0], b)
		}
	})
	harness.Eventually(g.T, command[0]+" listens", func() error {
		conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			conn.Close()
		}
		return err
	})
	return behindProxy(g, port)
}

// debianProgram returns the path of a program. Debian installs some programs in /usr/sbin, which is
// not in the PATH of every account.
func debianProgram(t *testing.T, name string) string {
	t.Helper()
	for _, path := range []string{name, filepath.Join("/usr/sbin", name)} {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	testutil.Missing(t, name)
	return ""
}

// startNginx starts nginx with little more than a proxy_pass, so nginx buffers as it does by
// default. The configuration asks for HTTP/1.1 and passes the headers that open a WebSocket. Envoy
// refuses HTTP/1.0, in which a client cannot tell the end of a stream from a cut.
func startNginx(g *harness.Gateway) *harness.Gateway {
	g.T.Helper()
	return startProxy(g, `
daemon off;
pid DIR/pid;
worker_processes 1;
events {}
http {
  access_log off;
  client_body_temp_path DIR/body;
  proxy_temp_path DIR/proxy;
  fastcgi_temp_path DIR/fastcgi;
  uwsgi_temp_path DIR/uwsgi;
  scgi_temp_path DIR/scgi;
  server {
    listen PORT;
    proxy_http_version 1.1;
    location / { proxy_pass http://ENVOY; }
    location = /v1/realtime {
      proxy_pass http://ENVOY;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection upgrade;
    }
  }
}
`, "nginx", "-e", "stderr", "-c")
}

// startHAProxy starts an HAProxy that closes a connection when one side sends nothing for the idle
// time. Without an option against it, the kernel collects small writes of HAProxy for up to 200 ms.
func startHAProxy(g *harness.Gateway, idle time.Duration, options ...string) *harness.Gateway {
	g.T.Helper()
	return startProxy(g, fmt.Sprintf(`defaults
  mode http
  %[2]s
  timeout connect 5s
  timeout client %[1]dms
  timeout server %[1]dms
frontend clients
  bind PORT
  default_backend envoy
backend envoy
  server envoy ENVOY
`, idle.Milliseconds(), strings.Join(options, "\n  ")), "haproxy", "-db", "-f")
}

// checkOneByOne fails the test if the pieces of a stream arrived in bursts, because a proxy held
// them back. The engine waits 100 ms between tokens. At least so many pauses must lie between the
// pieces. A busy machine has fewer pauses than the engine made.
func checkOneByOne(t *testing.T, came []time.Time, pauses int) {
	t.Helper()
	if len(came) < 10 {
		t.Fatalf("only %d pieces came", len(came))
	}
	apart := 0
	for i := range came[1:] {
		if came[i+1].Sub(came[i]) > 20*time.Millisecond {
			apart++
		}
	}
	if whole := came[len(came)-1].Sub(came[0]); apart < pauses || whole < time.Second {
		t.Errorf("of %d pieces within %v only %d came after a pause, want %d", len(came), whole, apart, pauses)
	}
}

// eventTimes returns the times at which the events of the engine arrived.
func eventTimes(all []harness.Event) (came []time.Time) {
	for _, e := range all {
		if e.Data != "" {
			came = append(came, e.At)
		}
	}
	return came
}

// steadySims has a native and a managed model whose engines wait 100 ms between tokens.
const steadySims = `
models:
  - name: native
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 100ms}
    stream: {mode: native}
  - name: auto
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 100ms}
  - name: managed
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 100ms}
    stream: {mode: managed, heartbeat: 300ms}
`

// No proxy that people put in front holds a stream back, nor does a client that reads as it comes.
func TestE2E_S1_S9_ProxiesPassEventsOneByOne(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, steadySims)
	for name, p := range map[string]struct {
		way    *harness.Gateway
		pauses int
	}{
		"nginx":            {startNginx(g), 10},
		"HAProxy":          {startHAProxy(g, 30*time.Second), 4}, // there are six or seven
		"HAProxy no-delay": {startHAProxy(g, 30*time.Second, "option http-no-delay"), 10},
	} {
		way := p.way
		for _, model := range []string{"native", "auto", "managed"} {
			t.Run(name+" "+model, func(t *testing.T) {
				t.Parallel()
				_, all := inSubtest(way, t).Stream(harness.ChatPath, harness.ChatBody(model, true, 20, name))
				if _, finish := harness.StreamedText(t, all); finish != "length" || all[len(all)-1].Data != "[DONE]" {
					t.Errorf("finished with %q, last %q", finish, all[len(all)-1].Data)
				}
				checkOneByOne(t, eventTimes(all), p.pauses)
			})
		}
		t.Run(name+" WebSocket", func(t *testing.T) {
			t.Parallel()
			socketBehind(t, way)
		})
		t.Run(name+" error", func(t *testing.T) {
			t.Parallel()
			if a := inSubtest(way, t).Post(harness.ChatPath, harness.ChatBody("nobody", true, 1, "x")); a.StatusCode != 404 || a.Code() != "model_not_found" {
				t.Errorf("%s", a)
			}
		})
	}
	for _, model := range []string{"native", "managed"} {
		t.Run("curl "+model, func(t *testing.T) {
			t.Parallel()
			checkOneByOne(t, curlTimes(t, g.URL+harness.ChatPath, harness.ChatBody(model, true, 20, "curl")), 10)
		})
	}
}

// socketBehind checks that the tokens of a response on a WebSocket arrive one by one.
func socketBehind(t *testing.T, way *harness.Gateway) {
	ws := inSubtest(way, t).Realtime("")
	harness.SendMessage(t, ws, harness.Message{"type": "start", "model": "auto", "messages": []harness.Message{{"role": "user", "content": "hello"}},
		"params": harness.Message{"max_tokens": 20, "ignore_eos": true}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var came []time.Time
	for {
		var m harness.Message
		if err := wsjson.Read(ctx, ws, &m); err != nil {
			t.Fatal(err)
		}
		switch m["type"] {
		case "token":
			came = append(came, time.Now())
		case "final":
			if m["finish_reason"] != "length" {
				t.Errorf("%v", m)
			}
			checkOneByOne(t, came, 10)
			return
		case "error":
			t.Fatalf("%v", m)
		}
	}
}

// curlTimes returns the times at which `curl -N` printed the events of a stream.
func curlTimes(t *testing.T, url, body string) (came []time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "curl", "-sSN", "--fail", "-H", "content-type: application/json", "-d", body, url)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			last, came = lines.Text(), append(came, time.Now())
		}
	}
	if err := cmd.Wait(); err != nil || last != "data: [DONE]" {
		t.Fatalf("%v, last %q", err, last)
	}
	return came
}

// A load balancer that cuts what is silent cuts a long prefill, unless heartbeats come in between.
// The figures stand for ones ten times as large: 20 s of patience, a prefill of 80 s, a heartbeat
// every 5 s.
func TestE2E_S2_P4_HeartbeatsKeepAStreamThroughAProxy(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - name: native
    engine: sim
    launcher: local
    variables: {prefill_rate: 50, token_interval: 1ms}
    stream: {mode: native}
  - name: managed
    engine: sim
    launcher: local
    variables: {prefill_rate: 50, token_interval: 1ms}
    stream: {mode: managed, heartbeat: 500ms}
`)
	way := startHAProxy(g, 2*time.Second)
	body := func(model string) string { return harness.ChatBody(model, true, 5, strings.Repeat("word ", 400)) }
	t.Run("with heartbeats", func(t *testing.T) {
		t.Parallel()
		began := time.Now()
		_, all := inSubtest(way, t).Stream(harness.ChatPath, body("managed"))
		if _, finish := harness.StreamedText(t, all); finish != "length" || all[len(all)-1].Data != "[DONE]" {
			t.Errorf("finished with %q, last %q", finish, all[len(all)-1].Data)
		}
		if first := eventTimes(all)[0].Sub(began); first < 4*time.Second || len(harness.Comments(all)) < 6 {
			t.Errorf("%d heartbeats in %v of prefill are no test", len(harness.Comments(all)), first)
		}
	})
	t.Run("without", func(t *testing.T) {
		t.Parallel()
		r, err := way.Open(t.Context(), harness.ChatPath, body("native"))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		all, err := harness.ReadEvents(r.Body)
		if r.StatusCode == 200 && err == nil {
			t.Errorf("the stream of %d events was not cut", len(all))
		}
	})
	t.Cleanup(func() { g.AwaitIdle("managed"); g.AwaitIdle("native") })
}
