package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// slowModel is a model that loads for a moment and whose streams outlast every test.
const slowModel = `
drain_timeout: 10m
models:
  - name: chat
    engine: sim
    replicas: {min: 2, max: 2}
    variables: {load_time: 500ms, token_interval: 1s}
`

// TestE2E_O3_ConsoleOnATerminal: a person at a terminal sees where the gateway listens once it
// answers there, that it is ready, and what a stop waits for. A second Ctrl-C ends everything.
func TestE2E_O3_ConsoleOnATerminal(t *testing.T) {
	t.Parallel()
	g := harness.Prepare(t, slowModel)
	t.Cleanup(g.Stop)
	terminal := g.LaunchInTerminal()
	shows := func(want string) {
		t.Helper()
		harness.Eventually(t, "the terminal shows "+want, func() error {
			if text := terminal.Text(); !regexp.MustCompile(want).MatchString(text) {
				return fmt.Errorf("it shows %q", text)
			}
			return nil
		})
	}
	shows(regexp.QuoteMeta("API   " + g.URL + "/v1"))
	r, err := http.Get(g.URL + "/v1/models") // no second try: it says that it answers
	if err != nil {
		t.Fatalf("the API is shown before it answers: %v", err)
	}
	r.Body.Close()
	shows(`chat  \S*ready\S*, 2 replicas, [0-9.]+ s`)
	shows(`ready\S* in [0-9.]+ s`)
	text := terminal.Text()
	if api, ready := strings.Index(text, "API "), strings.Index(text, " in "); api < 0 || api > ready || !strings.Contains(text, "page  "+g.Admin+"/") {
		t.Errorf("URLs: %q", text)
	}
	if strings.Contains(text, `{"`) || strings.Contains(text, "serving") {
		t.Errorf("lines for machines: %q", text)
	}

	if a := g.Post(harness.ChatPath, harness.ChatBody("other", false, 1, "hello")); a.StatusCode != http.StatusNotFound {
		t.Fatalf("%s", a)
	}
	shows(`warning\S*  request failed  status=404  code=model_not_found  model=other`)

	var streams sync.WaitGroup
	for range 2 {
		begun := make(chan error)
		streams.Go(func() {
			r, err := http.Post(g.URL+harness.ChatPath, "application/json", strings.NewReader(harness.ChatBody("chat", true, 5000, "hello")))
			if err == nil {
				_, err = io.ReadFull(r.Body, make([]byte, 1))
			}
			if begun <- err; err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}
		})
		if err := harness.Receive(t, begun, "a stream begins"); err != nil {
			t.Fatal(err)
		}
	}
	terminal.Press(t, "\x03")
	shows(`2 streams run, 9m\d+s left, Ctrl-C again ends them`) // half a second is over, so that the next one is a second stop
	terminal.Press(t, "\x03")
	g.AwaitExit() // in far less than drain_timeout
	streams.Wait()
	shows("stopped")
	if text := terminal.Text(); strings.Contains(text, "panic") {
		t.Error(text)
	}
}

// TestE2E_O3_AccessLogAndReasons: lines of requests go to a file of their own, and the log says at
// debug why each request went where.
func TestE2E_O3_AccessLogAndReasons(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := harness.Prepare(t, "access_log: {to: file, path: "+dir+"/access.log}\n"+slowModel)
	g.Command = append(g.Command, "--log-level=debug")
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	for _, stream := range []bool{false, true} { // one is native, the other managed
		if a := g.Post(harness.ChatPath, harness.ChatBody("chat", stream, 1, "hello")); a.StatusCode != http.StatusOK {
			t.Fatalf("%s", a)
		}
	}
	harness.Eventually(t, "both have a line in the file and a reason in the log", func() error {
		file, err := os.ReadFile(dir + "/access.log")
		if n := strings.Count(string(file), `"msg":"finished"`); err != nil || n != 2 {
			return fmt.Errorf("%v, %d lines: %s", err, n, file)
		}
		reasons := regexp.MustCompile(`"msg":"replica picked","request_id":"[^"]+","tenant":"\w+","model":"chat","replica":"chat-[01]","strategy":"prefix","why":"\w+",.*"candidates":\["chat-0: .*ms.*","chat-1: .*"\]`)
		if n := len(reasons.FindAllString(g.LogText(), -1)); n != 2 || strings.Contains(g.LogText(), `"msg":"finished"`) {
			return fmt.Errorf("%d reasons: %s", n, g.LogText())
		}
		return nil
	})
}

// TestE2E_O3_JSONElsewhere: without a terminal each line is a JSON object, and the gateway calls
// itself serving only when Envoy accepts.
func TestE2E_O3_JSONElsewhere(t *testing.T) {
	t.Parallel()
	g := harness.Prepare(t, slowModel)
	t.Cleanup(g.Stop)
	g.Launch()
	logged := func(message string) func() error {
		return func() error {
			if !strings.Contains(g.LogText(), `"msg":"`+message+`"`) {
				return errors.New(g.LogText())
			}
			return nil
		}
	}
	harness.Eventually(t, "it serves", logged("serving"))
	r, err := http.Get(g.URL + "/v1/models")
	if err != nil {
		t.Fatalf("it calls itself serving before it answers: %v", err)
	}
	r.Body.Close()
	harness.Eventually(t, "its models are ready", logged("all models ready"))
	if live := strings.Index(g.LogText(), `"state":"live"`); live < 0 || live > strings.Index(g.LogText(), `"msg":"serving"`) {
		t.Errorf("serving comes before Envoy is live: %s", g.LogText())
	}
	if err := g.Process.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	g.AwaitExit()
	for line := range strings.Lines(g.LogText()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
}
