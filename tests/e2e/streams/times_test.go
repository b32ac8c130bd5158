package streams

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// pacedEngine is an engine with the model m that sends a token when its client says so. It serves
// one stream at a time.
type pacedEngine struct {
	id string // its id as a replica

	// pauses has the time that the engine takes for the next token. A client that has read a token
	// says when the next one comes. The end of the stream follows the value end.
	pauses chan time.Duration

	arrived time.Time   // when the engine had the request that it serves
	sent    []time.Time // just before the engine sent each token
}

// end makes a pacedEngine end its stream.
const end = -1

// Each prompt of a pacedEngine has pacedPrompt tokens. Of the prompt "again" the engine has
// pacedCached in its cache.
const (
	pacedPrompt = 1000
	pacedCached = 900
)

func startPacedEngine(t *testing.T) *pacedEngine {
	e := &pacedEngine{pauses: make(chan time.Duration, 1)}
	url := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		body, _ := io.ReadAll(r.Body)
		e.arrived, e.sent = time.Now(), nil
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush() // headers are no token
		for pause := range e.pauses {
			if pause == end {
				break
			}
			time.Sleep(pause)
			e.sent = append(e.sent, time.Now())
			fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"content":"a"}}]}`+"\n\n")
			w.(http.Flusher).Flush()
		}
		cached := 0
		if strings.Contains(string(body), "again") {
			cached = pacedCached
		}
		fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\n"+
			`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`+
			"\n\ndata: [DONE]\n\n", pacedPrompt, len(e.sent), pacedPrompt+len(e.sent), cached)
	})
	e.id = strings.TrimPrefix(url, "http://")
	return e
}

// span is a value that is at least low and at most high. Times are in seconds.
type span struct{ low, high float64 }

// between is the span of a time that began between two moments and ended between two later ones.
func between(began, begun, ended, over time.Time) span {
	return span{ended.Sub(begun).Seconds(), over.Sub(began).Seconds()}
}

func (s span) plus(other span) span { return span{s.low + other.low, s.high + other.high} }

// per is the span of n divided by the value.
func (s span) per(n float64) span { return span{n / s.high, n / s.low} }

// check returns an error if a reported value is not within the span. A reported time may be 1 % and
// a tenth of a millisecond wrong by its rounding.
func (s span) check(what string, reported float64) error {
	if reported < 0.99*s.low-0.0001 || reported > 1.01*s.high+0.0001 {
		return fmt.Errorf("%s: %.6f is reported, it was at least %.6f and at most %.6f", what, reported, s.low, s.high)
	}
	return nil
}

// pacedStream is what the engine and the client have seen of a stream. What the gateway sees of it
// is after the engine has sent it, and before the client has it. So each time has its bounds.
type pacedStream struct {
	id       string // of the request
	ttft     span   // from the receipt of the request to the first token
	gaps     []span // from each token to the next one
	perToken span   // the mean of the gaps
}

// readPaced asks for a stream of the engine with these pauses before its tokens, and reads the
// stream to its end.
func readPaced(g *harness.Gateway, e *pacedEngine, prompt string, pauses ...time.Duration) (s pacedStream) {
	g.T.Helper()
	asked := time.Now()
	e.pauses <- pauses[0]
	r, err := g.Open(context.Background(), harness.ChatPath,
		withFields(harness.ChatBody("m", true, len(pauses), prompt), `"stream_options":{"include_usage":true}`))
	if err != nil {
		g.T.Fatal(err)
	}
	defer r.Body.Close()
	s.id = r.Header.Get("X-Request-Id")
	var got []time.Time
	for lines := bufio.NewReader(r.Body); ; {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			g.T.Fatal(err)
		}
		if !strings.Contains(line, `"content":"a"`) {
			continue
		}
		if got = append(got, time.Now()); len(got) < len(pauses) {
			e.pauses <- pauses[len(got)]
		} else {
			e.pauses <- end
		}
	}
	if len(got) != len(pauses) || len(e.sent) != len(pauses) {
		g.T.Fatalf("%s: %d of %d tokens came, %d were sent", r.Status, len(got), len(pauses), len(e.sent))
	}
	last := len(got) - 1
	s.ttft = between(asked, e.arrived, e.sent[0], got[0])
	for i := range last {
		s.gaps = append(s.gaps, between(e.sent[i], got[i], e.sent[i+1], got[i+1]))
	}
	// The time of a native stream that Envoy has not read ends with the last byte of its body.
	all := between(e.sent[0], got[0], e.sent[last], time.Now())
	s.perToken = span{all.low / float64(last), all.high / float64(last)}
	return s
}

// TestE2E_S12_S13_ReportedTimesAreThoseOfTheClient: each time that is reported of a stream lies
// between what the engine and what the client have seen. That holds in the log, in the metrics of
// the model and in those of the replica.
func TestE2E_S12_S13_ReportedTimesAreThoseOfTheClient(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{native, managed} {
		t.Run(routeOf(mode), func(t *testing.T) {
			t.Parallel()
			checkReportedTimes(t, mode)
		})
	}
}

// routeOf returns the value of the metric label route for a mode.
func routeOf(mode string) string { return strings.Split(mode, ",")[0] }

func checkReportedTimes(t *testing.T, mode string) {
	t.Helper()
	const streams, tokens = 8, 20
	e := startPacedEngine(t)
	g := harness.Start(t, fmt.Sprintf(`
models:
  - name: m
    launcher: upstream
    upstreams: ["http://%s"]
    admission: {max_tokens_per_minute: 100000000}
    stream: {mode: %s}
`, e.id, mode))
	pauses := make([]time.Duration, tokens)
	for i := range pauses {
		pauses[i] = 4 * time.Millisecond
	}
	pauses[0] = 150 * time.Millisecond
	pauses[5] = 80 * time.Millisecond // one gap of 19, which is the 95th percentile
	var ttft, perToken, prefill, decode span
	stall := span{low: math.Inf(1)}
	for n := range streams {
		s := readPaced(g, e, fmt.Sprint("prompt ", n), pauses...)
		checkLine(g, s)
		ttft, perToken = ttft.plus(s.ttft), perToken.plus(s.perToken)
		prefill, decode = prefill.plus(s.ttft.per(pacedPrompt)), decode.plus(s.perToken.per(1))
		stall.low = min(stall.low, s.gaps[4].low)
		for _, gap := range s.gaps {
			stall.high = max(stall.high, gap.high)
		}
	}
	again := readPaced(g, e, "again", pauses[:2]...)
	checkLine(g, again)
	for name, want := range map[string]span{
		`stream_ttft_seconds_sum{model="m",route="` + routeOf(mode) + `"}`:            ttft.plus(again.ttft),
		`sluice_ttft_seconds_sum{cached="false",model="m"}`:                           ttft,
		`sluice_ttft_seconds_sum{cached="true",model="m"}`:                            again.ttft,
		`stream_tokens_per_second_sum{model="m",phase="prefill"}`:                     prefill.plus(again.ttft.per(pacedPrompt - pacedCached)),
		`stream_tokens_per_second_sum{model="m",phase="decode"}`:                      decode.plus(again.perToken.per(1)),
		`sluice_time_per_output_token_seconds_sum{model="m",upstream="` + e.id + `"}`: perToken.plus(again.perToken),
		`stream_inter_token_p95_seconds{model="m"}`:                                   stall,
	} {
		if err := want.check(name, g.Metric(name)); err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string]float64{
		`stream_ttft_seconds_count{model="m",route="` + routeOf(mode) + `"}`:            streams + 1,
		`sluice_ttft_seconds_count{cached="false",model="m"}`:                           streams,
		`sluice_ttft_seconds_count{cached="true",model="m"}`:                            1,
		`sluice_time_per_output_token_seconds_count{model="m",upstream="` + e.id + `"}`: streams + 1,
		`stream_tokens_per_second_count{model="m",phase="decode"}`:                      streams + 1,
		`stream_tokens_per_second_count{model="m",phase="prefill"}`:                     streams + 1,
		`scheduler_batch_size_count{phase="prefill"}`:                                   streams + 1,
		`scheduler_batch_size_sum{phase="prefill"}`:                                     streams + 1, // each alone
		`scheduler_batch_size_sum{phase="decode"}`:                                      0,
		`scheduler_wait_time_seconds_count{phase="prefill"}`:                            streams + 1,
		`stream_disconnects_total{cause="client"}`:                                      0,
	} {
		if got := g.Metric(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

// checkLine checks the times in the log line of a stream.
func checkLine(g *harness.Gateway, s pacedStream) {
	g.T.Helper()
	line := awaitLine(g, s.id)
	if line.TTFT == nil || line.PerToken == nil {
		g.T.Fatalf("%+v", line)
	}
	if err := errors.Join(s.ttft.check("ttft_ms", *line.TTFT/1000), s.perToken.check("tpot_ms", *line.PerToken/1000)); err != nil {
		g.T.Errorf("%s: %v", line.Route, err)
	}
}
