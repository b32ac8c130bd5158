package streams

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// figuresConfig is a model that takes 200 ms for a prompt of 200 tokens and 15 ms for a token. Its
// limit of tokens makes Envoy read the usage of every response.
const figuresConfig = `
models:
  - name: m
    task: text-generation
    engine: sim
    replicas: {min: 1, max: 1}
    variables: {prefill_rate: 1000, token_interval: 15ms, batch_slowdown: 0}
    admission: {max_tokens_per_minute: 100000000}
    stream: {mode: %s}
`

// stalls makes one of the 19 gaps of a stream 60 ms longer, which is the 95th percentile.
const stalls = "stall=5:60ms"

// The ways of carrying that figures are compared for.
const (
	native  = "native"
	managed = "managed, sample: 1" // every gap counts
)

// startFigured runs such a model behind a gateway.
func startFigured(t *testing.T, mode string) *harness.Gateway {
	t.Helper()
	return harness.Start(t, fmt.Sprintf(figuresConfig, mode))
}

// confidential is in every prompt.
const confidential = "wherefore"

// chatBody is the body of a request for a stream that says what it cost. Each n is a prompt that no
// cache knows.
func chatBody(n, tokens int) string {
	prompt := fmt.Sprint("prompt ", n, strings.Repeat(" "+confidential, 95))
	return fmt.Sprintf(`{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,"ignore_eos":true,
		"messages":[{"role":"user","content":%q}]}`, tokens, prompt)
}

// requestLine is a line of the log of requests.
type requestLine struct {
	Logger, Tenant, Model, Replica, Route, Code, Cause string
	RequestID                                          string `json:"request_id"`
	Status, Retries                                    int
	Stream                                             bool
	Queued                                             *float64 `json:"queued_ms"`
	TTFT                                               *float64 `json:"ttft_ms"`
	PerToken                                           *float64 `json:"tpot_ms"`
	Duration                                           float64  `json:"duration_ms"`
	TokensIn                                           *int     `json:"tokens_in"`
	TokensOut                                          *int     `json:"tokens_out"`
	CachedTokens                                       *int     `json:"cached_tokens"`
	FinishReason                                       *string  `json:"finish_reason"`
	Estimated                                          bool
	FinishEstimated                                    bool `json:"finish_estimated"`
	Bytes                                              int64
}

// requestLines returns the lines of the request log by request id. The test fails if a request has
// two lines.
func requestLines(g *harness.Gateway) map[string]requestLine {
	g.T.Helper()
	all := map[string]requestLine{}
	for text := range strings.Lines(g.LogText()) {
		var line requestLine
		if json.Unmarshal([]byte(text), &line) != nil || line.Logger != "request" { // what Envoy says stands in a log of its own
			continue
		}
		if _, twice := all[line.RequestID]; twice {
			g.T.Errorf("request %s has two lines", line.RequestID)
		}
		all[line.RequestID] = line
	}
	return all
}

// awaitLine waits for the log line of a request. Envoy reports the end of a request within about
// 100 ms.
func awaitLine(g *harness.Gateway, id string) (line requestLine) {
	g.T.Helper()
	harness.Eventually(g.T, "a line for request "+id, func() error {
		var ok bool
		if line, ok = requestLines(g)[id]; !ok {
			return fmt.Errorf("%s", g.LogText())
		}
		return nil
	})
	return line
}

// watchStream asks for a stream, reads it to its end, and returns the id of the request.
func watchStream(g *harness.Gateway, body string, headers ...string) (id string) {
	g.T.Helper()
	a := g.Post(harness.ChatPath, body, headers...)
	if a.StatusCode != http.StatusOK {
		g.T.Fatal(a)
	}
	return a.Header.Get("x-request-id")
}

// TestE2E_S12_EndsAreCountedOnceByTheirCause counts streams that end early, and one attempt that is
// repeated.
func TestE2E_S12_EndsAreCountedOnceByTheirCause(t *testing.T) {
	t.Parallel()
	g := startFigured(t, native)
	watchStream(g, chatBody(0, 2)) // whole
	cutStreams(g)
	want := map[string]float64{
		`stream_disconnects_total{cause="client"}`: 1, `stream_disconnects_total{cause="engine"}`: 1, `stream_disconnects_total{cause="timeout"}`: 1,
		`stream_disconnects_total{cause="gateway"}`: 0, `stream_disconnects_total{cause="slow_client"}`: 0,
		`stream_disconnects_total{cause="cancelled"}`: 0, `stream_disconnects_total{cause="moderation"}`: 0,
		`stream_retries_total{reason="connect"}`: 0, `stream_retries_total{reason="reset"}`: 1,
		`stream_retries_total{reason="5xx"}`: 0, `stream_retries_total{reason="ttft_timeout"}`: 0,
	}
	g.AwaitIdle("m")
	harness.Eventually(t, "all five are logged", func() error {
		if lines := requestLines(g); len(lines) != 5 {
			return fmt.Errorf("%d lines", len(lines))
		}
		return nil
	})
	for name, n := range want {
		if got := g.Metric(name); got != n {
			t.Errorf("%s is %v, want %v", name, got, n)
		}
	}
}

// cutStreams asks for four streams that do not come whole and returns the ids of the requests.
// Their client leaves, their engine cuts them off, their time is over, and their engine never
// answers.
func cutStreams(g *harness.Gateway) (left, cut, late, dropped string) {
	g.T.Helper()
	open := func(body string, headers ...string) (id string, begun io.ReadCloser, leave func()) {
		ctx, cancel := context.WithCancel(context.Background())
		r, err := g.Open(ctx, "/v1/chat/completions", body, headers...)
		if err != nil {
			g.T.Fatal(err)
		}
		if _, err := io.ReadFull(r.Body, make([]byte, 10)); err != nil {
			g.T.Fatal(err)
		}
		return r.Header.Get("x-request-id"), r.Body, func() { cancel(); r.Body.Close() }
	}
	id, _, leave := open(chatBody(1, 1000))
	leave()
	left = id
	broken := func(body string, headers ...string) string {
		id, rest, leave := open(body, headers...)
		defer leave()
		if _, err := io.Copy(io.Discard, rest); err == nil {
			g.T.Errorf("a stream that was cut ended well")
		}
		return id
	}
	cut = broken(chatBody(2, 1000), "x-sim-fault: cut=3")
	late = broken(strings.Replace(chatBody(3, 1000), "{", `{"max_duration_ms":5000,`, 1)) // the first token comes before
	a := g.Post("/v1/chat/completions", chatBody(4, 5), "x-sim-fault: reset-before-headers")
	if a.StatusCode < 500 {
		g.T.Error(a)
	}
	return left, cut, late, a.Header.Get("x-request-id")
}

// openAndClose opens a WebSocket and closes it. It returns the id of the request.
func openAndClose(g *harness.Gateway) (id string) {
	g.T.Helper()
	ws, r, err := websocket.Dial(g.T.Context(), g.URL+"/v1/realtime", nil)
	if err != nil {
		g.T.Fatal(err)
	}
	_ = ws.Close(websocket.StatusNormalClosure, "") // the line is awaited
	return r.Header.Get("x-request-id")
}

func TestE2E_S13_EveryRequestHasOneLine(t *testing.T) {
	t.Parallel()
	const tokens = 7
	g := startFigured(t, native)
	whole := watchStream(g, chatBody(0, tokens))
	again := watchStream(g, chatBody(0, tokens))
	left, cut, late, dropped := cutStreams(g)
	plain := g.Post("/v1/chat/completions", harness.ChatBody("m", false, tokens, "Hello "+confidential)).Header.Get("x-request-id")
	refused := g.Post("/v1/chat/completions", harness.ChatBody("absent", true, tokens, "Hello "+confidential)).Header.Get("x-request-id")

	line := awaitLine(g, whole)
	if line.TokensIn == nil || *line.TokensIn < 95 || line.TokensOut == nil || *line.TokensOut != tokens || line.CachedTokens == nil ||
		line.Model != "m" || line.Replica != "m-0" || line.Route != "native" || line.Status != 200 || !line.Stream || line.Code != "" ||
		line.Tenant == "" || line.Queued == nil || line.TTFT == nil || line.Duration < *line.TTFT || line.FinishReason == nil || line.Bytes < 1000 {
		t.Errorf("a whole stream: %+v", line)
	}
	if c := awaitLine(g, again).CachedTokens; c == nil || *c < 100 {
		t.Errorf("the same once more: %+v", awaitLine(g, again))
	}
	for _, id := range []string{left, cut, late} {
		if l := awaitLine(g, id); l.Status != 200 || l.TTFT == nil || !l.Estimated || *l.FinishReason != "" || l.Route != "native" || l.Retries != 0 {
			t.Errorf("a stream that was cut: %+v", l)
		}
	}
	if l := awaitLine(g, dropped); l.Status < 500 || l.Retries != 1 || l.TTFT != nil || l.Route != "" {
		t.Errorf("one that was never answered: %+v", l)
	}
	if l := awaitLine(g, plain); l.Stream || l.TTFT != nil || l.TokensOut == nil || *l.TokensOut != tokens {
		t.Errorf("one without a stream: %+v", l)
	}
	if l := awaitLine(g, refused); l.Status != 404 || l.Code != "model_not_found" || l.Route != "" || l.Replica != "" {
		t.Errorf("one that was refused: %+v", l)
	}
	if l := awaitLine(g, openAndClose(g)); l.Status != http.StatusSwitchingProtocols || l.Tenant != line.Tenant {
		t.Errorf("a socket without a turn: %+v", l)
	}
	if n := len(requestLines(g)); n != 9 {
		t.Errorf("%d lines of 9 requests", n)
	}
	if strings.Contains(g.LogText(), confidential) {
		t.Error("a prompt is in the log")
	}
}
