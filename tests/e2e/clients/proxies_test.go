package clients

import (
	"bufio"
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
	"strings"
	"sync"
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

// lockstep is an engine that sends the next token of a stream when its client has the one before.
// So a stream stops if something holds its tokens back.
type lockstep struct {
	url string
	got sync.Map // the text of a request → a channel with a value for each token that its client has
}

// steps is the number of tokens of each stream.
const steps = 10

// startLockstep starts such an engine. It runs until the test ends.
func startLockstep(t *testing.T) *lockstep {
	t.Helper()
	l := new(lockstep)
	l.url = harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "native", "auto", "managed") {
			return
		}
		var asked struct{ Messages []struct{ Content string } }
		if body, err := io.ReadAll(r.Body); err != nil || json.Unmarshal(body, &asked) != nil || len(asked.Messages) != 1 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("content-type", "text/event-stream")
		for i := range steps {
			fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":{"content":"w%d "}}]}`+"\n\n", i)
			w.(http.Flusher).Flush()
			select {
			case <-l.of(asked.Messages[0].Content):
			case <-r.Context().Done():
				return
			}
		}
		io.WriteString(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	})
	return l
}

// of returns the channel of the request with that text.
func (l *lockstep) of(text string) chan struct{} {
	c, _ := l.got.LoadOrStore(text, make(chan struct{}, steps))
	return c.(chan struct{})
}

// read reads a stream to its end. It fails the test if the tokens do not come one by one, or if the
// stream is not whole.
func (l *lockstep) read(t *testing.T, text string, stream io.Reader) {
	t.Helper()
	n, last := 0, ""
	lines := bufio.NewScanner(stream)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data: ") {
			last = lines.Text()
		}
		if strings.Contains(last, `"content":"w`) && last == lines.Text() {
			n++
			l.of(text) <- struct{}{}
		}
	}
	if err := lines.Err(); err != nil || n != steps || last != "data: [DONE]" {
		t.Errorf("%d of %d tokens came, the last line is %q: %v", n, steps, last, err)
	}
}

// No proxy that people put in front holds a stream back, nor does a client that reads as it comes.
func TestE2E_S1_S9_ProxiesPassEventsOneByOne(t *testing.T) {
	t.Parallel()
	engine := startLockstep(t)
	g := harness.Start(t, fmt.Sprintf(`
models:
  - {name: native, launcher: upstream, task: text-generation, upstreams: [%[1]q], stream: {mode: native}}
  - {name: auto, launcher: upstream, task: text-generation, upstreams: [%[1]q]}
  - {name: managed, launcher: upstream, task: text-generation, upstreams: [%[1]q], stream: {mode: managed}}
`, engine.url))
	for name, way := range map[string]*harness.Gateway{
		"nginx":            startNginx(g),
		"HAProxy":          startHAProxy(g, testutil.Patience),
		"HAProxy no-delay": startHAProxy(g, testutil.Patience, "option http-no-delay"),
	} {
		for _, model := range []string{"native", "auto", "managed"} {
			t.Run(name+" "+model, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
				defer cancel()
				r, err := way.Open(ctx, harness.ChatPath, harness.ChatBody(model, true, 20, t.Name()))
				if err != nil || r.StatusCode != http.StatusOK {
					t.Fatal(r, err)
				}
				defer r.Body.Close()
				engine.read(t, t.Name(), r.Body)
			})
		}
		t.Run(name+" WebSocket", func(t *testing.T) {
			t.Parallel()
			socketBehind(t, way, engine)
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
			readByCurl(t, g.URL+harness.ChatPath, harness.ChatBody(model, true, 20, t.Name()), engine)
		})
	}
}

// socketBehind checks that the tokens of a response on a WebSocket arrive one by one.
func socketBehind(t *testing.T, way *harness.Gateway, engine *lockstep) {
	ws := inSubtest(way, t).Realtime("")
	harness.SendMessage(t, ws, harness.Message{"type": "start", "model": "auto", "messages": []harness.Message{{"role": "user", "content": t.Name()}}})
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	for n := 0; ; {
		var m harness.Message
		if err := wsjson.Read(ctx, ws, &m); err != nil {
			t.Fatalf("after %d of %d tokens: %v", n, steps, err)
		}
		switch m["type"] {
		case "token":
			n++
			engine.of(t.Name()) <- struct{}{}
		case "final":
			if n != steps || m["finish_reason"] != "stop" {
				t.Errorf("%d of %d tokens, then %v", n, steps, m)
			}
			return
		case "error":
			t.Fatalf("%v", m)
		}
	}
}

// readByCurl reads a stream that `curl -N` prints.
func readByCurl(t *testing.T, url, body string, engine *lockstep) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
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
	engine.read(t, t.Name(), out)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// A load balancer that cuts what is silent cuts a long prefill, unless heartbeats come in between.
// The engine is silent until the balancer has cut a stream without heartbeats that began later.
func TestE2E_S2_P4_HeartbeatsKeepAStreamThroughAProxy(t *testing.T) {
	t.Parallel()
	speak := make(chan struct{})
	engine := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "native", "managed") {
			return
		}
		io.Copy(io.Discard, r.Body)
		select {
		case <-speak:
			w.Header().Set("content-type", "text/event-stream")
			io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"length"}]}`+"\n\ndata: [DONE]\n\n")
		case <-r.Context().Done():
		}
	})
	g := harness.Start(t, fmt.Sprintf(`
models:
  - {name: native, launcher: upstream, task: text-generation, upstreams: [%[1]q], stream: {mode: native}}
  - {name: managed, launcher: upstream, task: text-generation, upstreams: [%[1]q], stream: {mode: managed, heartbeat: 500ms}}
`, engine))
	way := startHAProxy(g, 5*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	managed, err := way.Open(ctx, harness.ChatPath, harness.ChatBody("managed", true, 5, "x"))
	if err != nil || managed.StatusCode != http.StatusOK {
		t.Fatal(managed, err)
	}
	defer managed.Body.Close()
	native, err := way.Open(ctx, harness.ChatPath, harness.ChatBody("native", true, 5, "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer native.Body.Close()
	if all, err := harness.ReadEvents(native.Body); native.StatusCode == http.StatusOK && err == nil || ctx.Err() != nil {
		t.Fatalf("the stream of %d events without heartbeats was not cut", len(all))
	}
	close(speak)
	all, err := harness.ReadEvents(managed.Body)
	if err != nil || len(all) == 0 || all[len(all)-1].Data != "[DONE]" || len(harness.Comments(all)) == 0 {
		t.Errorf("a stream with heartbeats: %v, %v", all, err)
	}
	g.AwaitIdle("managed")
	g.AwaitIdle("native")
}
