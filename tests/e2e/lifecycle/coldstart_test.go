package lifecycle

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// coldSim is a simulated model that needs this long to load, with these fields.
const coldSim = `
models:
  - name: m
    task: text-generation
    engine: sim
    replicas: {min: 0, max: 1}
    cold_start: %s
    variables: {load_time: %s, prefill_rate: 0, token_interval: 0s}
`

// TestE2E_U8_TheLoadOutlivesTheWait: a client waits as long as cold_start.wait, and the engine goes
// on loading. The next client is served by the same start.
func TestE2E_U8_TheLoadOutlivesTheWait(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, fmt.Sprintf(coldSim, "{wait: 500ms}", "4s"))
	a := g.Post("/v1/chat/completions", harness.ChatBody("m", false, 1, "Hello"))
	if seconds, _ := strconv.Atoi(a.Header.Get("Retry-After")); a.StatusCode != 503 || a.Code() != "cold_start_timeout" || seconds < 1 {
		t.Errorf("%s", a)
	}
	harness.Eventually(t, "it is ready", func() error {
		if r := g.Replicas()["m-0"]; r.State != "ready" {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	if a = g.Post("/v1/chat/completions", harness.ChatBody("m", false, 1, "Hello")); a.StatusCode != 200 {
		t.Errorf("%s", a)
	}
	if n := strings.Count(g.LogText(), `"replica":"m-0","state":"starting"`); n != 1 {
		t.Errorf("the replica was started %d times", n)
	}
}

// TestE2E_U8_AnswersAtOnce: with wait 0s a request for a cold model is answered at once, streamed
// or not, and starts the replica.
func TestE2E_U8_AnswersAtOnce(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, fmt.Sprintf(coldSim, "{wait: 0s}", "5s"))
	for _, stream := range []bool{false, true} {
		a := g.Post("/v1/chat/completions", harness.ChatBody("m", stream, 1, "Hello"))
		if a.StatusCode != 503 || a.Code() != "cold_start_timeout" || a.Header.Get("Retry-After") == "" {
			t.Errorf("stream %v: %s", stream, a)
		}
	}
	harness.Eventually(t, "a request is served", func() error {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("m", false, 1, "Hello")); a.StatusCode != 200 {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
}

// TestE2E_U9_ACrashLoopIsSaidAtOnce: after two failed starts a client hears what the fault is, long
// before the end of its wait, and no line of the engine's log.
func TestE2E_U9_ACrashLoopIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
engines:
  - name: broken
    versions:
      - version: "1"
        tasks: [text-generation]
        command: [sh, -c, "echo 10.9.8.7 says: CUDA out of memory.; exit 1"]
        ready: {path: /health}
models:
  - name: m
    task: text-generation
    engine: broken
    replicas: {min: 0, max: 1}
`)
	began := time.Now()
	for _, stream := range []bool{false, true} {
		a := g.Post("/v1/chat/completions", harness.ChatBody("m", stream, 1, "Hello"))
		if a.StatusCode != 503 || a.Code() != "replica_failed" || a.Header.Get("Retry-After") == "" ||
			!strings.Contains(string(a.Content), "too little GPU memory") || strings.Contains(string(a.Content), "10.9.8.7") {
			t.Errorf("stream %v after %v: %s", stream, time.Since(began), a)
		}
	}
	var list struct {
		Replicas []struct {
			Failure      string
			FailedStarts int `json:"failed_starts"`
		}
	}
	if g.Get("/api/v1/replicas", &list); len(list.Replicas) != 1 || list.Replicas[0].Failure != "gpu_out_of_memory" || list.Replicas[0].FailedStarts < 2 {
		t.Errorf("%+v", list)
	}
}
