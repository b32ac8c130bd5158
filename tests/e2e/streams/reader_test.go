package streams

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// unread is a model that no limit makes Envoy read.
const unread = `
models:
  - name: m
    task: text-generation
    engine: sim
    replicas: {min: 1, max: 1}
    variables: {prefill_rate: 1000, token_interval: 15ms, batch_slowdown: 0}
`

// startUnread runs such a model behind a gateway that logs JSON.
func startUnread(t *testing.T) *harness.Gateway {
	t.Helper()
	g := harness.Prepare(t, unread)
	g.Command = append(g.Command, "--log-format=json")
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	return g
}

// plainBody is the body of a request for a stream that does not ask what it costs.
func plainBody(n, tokens int) string {
	return strings.Replace(chatBody(n, tokens), `"stream_options":{"include_usage":true},`, "", 1)
}

// After the first stream of a model all its figures are there, and a stall is in the histogram and
// in the percentile.
func TestE2E_R3_FiguresAfterTheFirstStream(t *testing.T) {
	t.Parallel()
	const tokens = 20
	g := startUnread(t)
	line := awaitLine(g, watchStream(g, plainBody(0, tokens), "x-sim-fault: stall=5:700ms"))
	if line.TokensOut == nil || *line.TokensOut != tokens || line.TokensIn == nil || !line.Estimated || *line.FinishReason != "length" || line.FinishEstimated {
		t.Errorf("the line of the first stream: %+v", line)
	}
	for name, want := range map[string]float64{
		`stream_ttft_seconds_count{model="m",route="native"}`:                  1,
		`stream_tokens_per_second_count{model="m",phase="prefill"}`:            1,
		`stream_tokens_per_second_count{model="m",phase="decode"}`:             1,
		`sluice_inter_token_seconds_count{model="m",route="native"}`:           tokens - 1,
		`stream_disconnects_total{cause="engine"}`:                             0,
		`stream_retries_total{reason="connect"}`:                               0,
		`scheduler_batch_size_sum{phase="prefill"}`:                            1,
		`scheduler_wait_time_seconds_count{phase="prefill"}`:                   1,
		`sluice_time_per_output_token_seconds_count{model="m",upstream="m-0"}`: 1,
	} {
		if got := g.Metric(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if short := g.Metric(`sluice_inter_token_seconds_bucket{model="m",route="native",le="0.5"}`); short > tokens-2 {
		t.Errorf("%v of %d gaps are at most half a second, although one was a stall", short, tokens-1)
	}
	if p95 := g.Metric(`stream_inter_token_p95_seconds{model="m"}`); p95 < 0.5 {
		t.Errorf("the 95th percentile is %v s, although 1 of 19 gaps was a stall", p95)
	}
}

// Every request has its tokens and its finish reason in the log and in the list. Those of streams
// that nobody has read are estimated and marked.
func TestE2E_R3_EveryRequestHasTokensAndFinishReason(t *testing.T) {
	t.Parallel()
	const tokens, streams = 60, 8
	g := startUnread(t)
	awaitLine(g, watchStream(g, plainBody(0, tokens))) // what it teaches is known now
	ids := make([]string, streams)
	var all sync.WaitGroup
	for n := range ids {
		all.Go(func() { ids[n] = watchStream(g, plainBody(1+n, tokens)) })
	}
	all.Wait()
	whole := g.Post(harness.ChatPath, harness.ChatBody("m", false, 7, "hello")).Header.Get("x-request-id")
	guessed := 0
	for _, id := range ids {
		l := awaitLine(g, id)
		if l.FinishEstimated {
			guessed++
		}
		if l.TokensOut == nil || *l.TokensOut < tokens/2 || *l.TokensOut > 2*tokens || !l.Estimated || *l.FinishReason == "" {
			t.Errorf("%+v", l)
		}
	}
	if guessed == 0 {
		t.Errorf("all of %d streams at once were read", streams)
	}
	if l := awaitLine(g, whole); l.TokensOut == nil || *l.FinishReason != "length" {
		t.Errorf("one without a stream: %+v", l)
	}
	var list struct {
		Requests []struct {
			ID              string `json:"request_id"`
			In              int    `json:"tokens_in"`
			Out             int    `json:"tokens_out"`
			Estimated       bool
			Finish          string `json:"finish_reason"`
			FinishEstimated bool   `json:"finish_estimated"`
		}
	}
	g.Get("/api/v1/requests", &list)
	if len(list.Requests) == 0 {
		t.Error("no request is listed")
	}
	for _, r := range list.Requests {
		l := awaitLine(g, r.ID)
		if r.Out != *l.TokensOut || r.In != *l.TokensIn || r.Estimated != l.Estimated || r.Finish != *l.FinishReason || r.FinishEstimated != l.FinishEstimated {
			t.Errorf("list %+v, log %+v", r, l)
		}
	}
}

// A stream that ends like a whole one and lacks its end is one that the engine broke off.
func TestE2E_R3_ACleanEndWithoutAnEnd(t *testing.T) {
	t.Parallel()
	g := startUnread(t)
	if l := awaitLine(g, watchStream(g, plainBody(0, 20), "x-sim-fault: eof=5")); l.Cause != "engine" || *l.FinishReason != "" {
		t.Errorf("%+v", l)
	}
	if n := g.Metric(`stream_disconnects_total{cause="engine"}`); n != 1 {
		t.Errorf("%v streams were broken off by an engine", n)
	}
}

// The requests of a batch without a token are counted although the model has no limit on prefill.
func TestE2E_R3_BatchInPrefill(t *testing.T) {
	t.Parallel()
	g := startUnread(t)
	const streams = 5
	prompt := strings.Repeat(" word", 30_000) // 30 s for the engine
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer leave()
	for n := range streams {
		all.Go(func() {
			body := fmt.Sprintf(`{"model":"m","stream":true,"max_tokens":1,"messages":[{"role":"user","content":"%d%s"}]}`, n, prompt)
			_, _ = g.TryPost(ctx, harness.ChatPath, body) // its client leaves
		})
	}
	// 1 + 2 + … + 5, for requests that come within the first of their prefills
	harness.Eventually(t, "the requests of each batch are counted", func() error {
		if sum := g.Metric(`scheduler_batch_size_sum{phase="prefill"}`); sum != streams*(streams+1)/2 {
			return fmt.Errorf("%v requests in prefill, summed over %d dispatches", sum, streams)
		}
		return nil
	})
}
