package lifecycle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// parrotEngine is an engine that no catalogue has. It answers each chat with its arguments and with
// the variable MOOD of its environment. It is ready when a file of its model's name is in the
// folder, and healthy until that file contains "sick". Each start adds a line to the file starts.
const parrotEngine = `
import http.server, json, os, sys
folder, port, name = sys.argv[1:4]
open(os.path.join(folder, "starts"), "a").write(name + "\n")
def state():
    try: return open(os.path.join(folder, name)).read()
    except OSError: return None
class Parrot(http.server.BaseHTTPRequestHandler):
    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def do_GET(self):
        good = state() is not None if self.path == "/can/serve" else state() != "sick"
        self.answer(200 if good else 503, "{}")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, json.dumps({"args": sys.argv[3:], "mood": os.environ.get("MOOD"), "pid": os.getpid()}))
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Parrot).serve_forever()
`

// parrotConfig is a file with the engine parrot in two versions that differ in command, schema and
// tasks, and with a model on each.
const parrotConfig = `
registries:
  - {name: local, kind: directory, path: %[1]s}
engines:
  - name: parrot
    versions:
      - version: "1"
        tasks: [text-generation]
        schema: {type: object, properties: {colour: {type: string, enum: [red, green]}, size: {type: integer, minimum: 1}}, additionalProperties: false}
        command: [python3, %[1]s/parrot.py, %[1]s, "{{.Port}}", "{{.Name}}", old, "{{.Flags}}"]
        ready: {path: /can/serve}
        health: {path: /well, every: 200ms}
      - version: "2"
        tasks: [text-generation, embedding]
        schema: {type: object, properties: {wings: {type: boolean}}, additionalProperties: false}
        command: [python3, %[1]s/parrot.py, %[1]s, "{{.Port}}", "{{.Name}}", new, "{{.Model}}", "{{.Flags}}"]
        ready: {path: /can/serve}
models:
  - {name: one, task: text-generation, engine: parrot, version: "1", variables: {colour: red, size: 3}, env: {MOOD: calm}}
  - {name: two, task: text-generation, engine: parrot, version: "2", variables: {wings: true}, source: {registry: local, name: weights.bin}}
`

// TestE2E_N2_N3_AnEngineIsData: an engine that only the file knows runs in two versions side by
// side, each with its command, its variables, its environment and its weights. Its probes say when
// it serves and when it has to be started again. A model whose variables have faults is launched
// nowhere, and each fault is named.
func TestE2E_N2_N3_AnEngineIsData(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("parrot.py", parrotEngine)
	write("weights.bin", "")
	config := fmt.Sprintf(parrotConfig, folder)
	g := harness.Prepare(t, config)
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitAdmin()
	harness.Eventually(t, "both run, and are not ready", func() error {
		starts, err := os.ReadFile(filepath.Join(folder, "starts"))
		if strings.Count(string(starts), "\n") < 2 || g.Model("one").Ready+g.Model("two").Ready != 0 {
			return fmt.Errorf("%s %+v %w", starts, g.Replicas(), err)
		}
		return nil
	})
	write("one", "well")
	g.AwaitReadyReplicas("one", 1)
	if n := g.Model("two").Ready; n != 0 {
		t.Error("two serves before its probe says so")
	}
	write("two", "well")
	g.AwaitReady()
	type parrot struct {
		Args []string
		Mood *string
		PID  int
	}
	ask := func(model string) (p parrot) {
		a := g.Post(harness.ChatPath, harness.ChatBody(model, false, 1, "hello"))
		if err := json.Unmarshal(a.Content, &p); err != nil || a.StatusCode != 200 {
			t.Fatal(a, err)
		}
		return p
	}
	one, two := ask("one"), ask("two")
	if got := strings.Join(one.Args, " "); got != "one old --colour red --size 3" || one.Mood == nil || *one.Mood != "calm" {
		t.Errorf("one runs with %q, %v", got, one.Mood)
	}
	if got := strings.Join(two.Args, " "); got != "two new "+folder+"/weights.bin --wings" || two.Mood != nil {
		t.Errorf("two runs with %q, %v", got, two.Mood)
	}

	g.Configure(config + `  - {name: bad, task: text-generation, engine: parrot, version: "1", variables: {colour: blue, size: 0, wings: true}}
  - {name: worse, task: embedding, engine: parrot, version: "1"}
`)
	refused := g.AwaitCondition(condition.ConfigRejected, "")
	out, err := g.RunCommand("check", "-c", g.Config)
	for _, fault := range []string{"colour", "size", "wings", "embedding"} {
		if err == nil || !strings.Contains(out, fault) || !strings.Contains(refused.Message, fault) {
			t.Errorf("the fault of %s is not named: %v %s, %s", fault, err, out, refused.Message)
		}
	}
	if starts, _ := os.ReadFile(filepath.Join(folder, "starts")); strings.Contains(string(starts), "bad") || strings.Contains(string(starts), "worse") {
		t.Errorf("launched with faults: %s", starts)
	}

	write("one", "sick")
	harness.Eventually(t, "the sick one is started again", func() error {
		if r := g.Replicas()["one-0"]; r.PID == one.PID || r.PID == 0 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	write("one", "well")
	g.AwaitReadyReplicas("one", 1)
	if again := ask("one"); again.PID == one.PID {
		t.Errorf("it is the process of before: %+v", again)
	}
}
