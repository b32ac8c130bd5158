package telemetry

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/request"
)

// streamed is Envoy's record of a whole stream: 0.4 s to the first byte, of which the request was
// held 0.1 s, then a token each 20 ms.
func streamed(id string, u request.Usage) request.Entry {
	e := final(id)
	e.FirstByte, e.LastByte, e.Duration, e.Usage = 400*time.Millisecond, 2400*time.Millisecond, 2401*time.Millisecond, u
	return e
}

func TestStreamFigures(t *testing.T) {
	t.Parallel()
	r, m := request.NewStore(0), NewMetrics(MetricsConfig{KnownModel: func(name string) bool { return name == "chat" }})
	record := observed(r, m)
	usage := request.Usage{Prompt: 300, Completion: 101, Known: true}
	cold, half, warm := usage, usage, usage
	cold.Cached, cold.CachedKnown = 0, true
	half.Cached, half.CachedKnown = 150, true
	warm.Cached, warm.CachedKnown = 300, true
	buffered := streamed("buffered", usage) // all of it in one piece
	buffered.LastByte = buffered.FirstByte
	cut := streamed("cut", request.Usage{})
	cut.LastByte, cut.Flags = 0, "UPE"
	whole := streamed("whole", usage)
	whole.Streamed = false
	refused := streamed("refused", usage)
	refused.Status, refused.Flags = 400, ""
	silent := streamed("silent", request.Usage{})
	silent.FirstByte = 0
	foreign := streamed("foreign", request.Usage{})
	foreign.Model = "made-up"
	for _, e := range []request.Entry{
		streamed("unread", request.Usage{}), streamed("unsaid", usage), streamed("cold", cold), streamed("half", half), streamed("warm", warm),
		streamed("short", request.Usage{Prompt: 300, Completion: 1, Known: true}), buffered, cut, whole, refused, silent, foreign,
	} {
		r.Begin(request.Arrival{ID: e.RequestID, Model: "chat"}).SetDispatched("chat", "chat-0", 100*time.Millisecond)
		record(e)
	}
	want := []string{
		`sluice_ttft_seconds_sum{cached="false",model="chat"} 0.4`,
		`sluice_ttft_seconds_count{cached="false",model="chat"} 1`,
		`sluice_ttft_seconds_sum{cached="true",model="chat"} 0.8`,
		`sluice_ttft_seconds_count{cached="true",model="chat"} 2`,
		`stream_tokens_per_second_sum{model="chat",phase="decode"} 200`, // 100 tokens in 2 s: unsaid, cold, half, warm
		`stream_tokens_per_second_count{model="chat",phase="decode"} 4`,
		`stream_tokens_per_second_sum{model="chat",phase="prefill"} 4500`, // 1000 a second: unsaid, cold, short, buffered; 500: half
		`stream_tokens_per_second_count{model="chat",phase="prefill"} 5`,
		`stream_ttft_seconds_count{model="chat",route="native"} 8`,
		`stream_ttft_seconds_count{model="other",route="native"} 1`,
	}
	got := scrape(t, m, "sluice_ttft_seconds_sum", "sluice_ttft_seconds_count", "stream_tokens_per_second_sum", "stream_tokens_per_second_count",
		"stream_ttft_seconds_count")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := scrape(t, m, "stream_inter_token_p95_seconds", "sluice_inter_token_seconds"); len(got) != 0 {
		t.Errorf("nobody has measured a gap: %q", got)
	}
}

// TestManagedStreamFigures: the relay tells the figures of a stream, and its gaps.
func TestManagedStreamFigures(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsConfig{})
	q := request.Summary{Model: "chat", Replica: "chat-0", Stream: true, Status: 200, Source: "engine", Route: request.RouteManaged, FirstByte: time.Second,
		Waited: 500 * time.Millisecond, Decode: time.Second, LastByte: 9 * time.Second, PromptTokens: 10, CompletionTokens: 11, UsageKnown: true}
	m.Finished(q)
	q.UsageKnown, q.PromptTokens, q.CompletionTokens = false, 0, 51 // as many events as that
	m.Finished(q)
	q.Source = "gateway" // heartbeats and an error
	m.Finished(q)
	if got := scrape(t, m, "stream_inter_token_p95_seconds"); len(got) != 0 {
		t.Errorf("a stream whose gaps are told was estimated: %q", got)
	}
	native := streamed("a", request.Usage{Prompt: 10, Completion: 1001, Known: true}) // gaps of 2 ms
	observed(request.NewStore(0), m)(native)
	m.Gaps("chat", 50*time.Millisecond)
	wantP95(t, m, "chat", 0.050)
	want := []string{
		`sluice_time_per_output_token_seconds_bucket{model="chat",upstream="chat-0",le="0.02"} 2`, // 0.02 and, native, 0.002; 0.1
		`sluice_time_per_output_token_seconds_count{model="chat",upstream="chat-0"} 3`,
		`sluice_tokens_total{kind="completion",model="chat",tenant=""} 1012`,
		`sluice_tokens_total{kind="prompt",model="chat",tenant=""} 20`,
		`stream_tokens_per_second_sum{model="chat",phase="decode"} 560`, // 10, 50, 500
		`stream_tokens_per_second_count{model="chat",phase="decode"} 3`,
		`stream_ttft_seconds_sum{model="chat",route="managed"} 2`,
		`stream_ttft_seconds_count{model="chat",route="managed"} 2`,
		`stream_ttft_seconds_sum{model="chat",route="native"} 0.4`,
		`stream_ttft_seconds_count{model="chat",route="native"} 1`,
	}
	got := scrape(t, m, "stream_ttft_seconds_sum", "stream_ttft_seconds_count", "sluice_tokens_total",
		`sluice_time_per_output_token_seconds_bucket{model="chat",upstream="chat-0",le="0.02"}`,
		"sluice_time_per_output_token_seconds_count", `stream_tokens_per_second_sum{model="chat",phase="decode"}`,
		`stream_tokens_per_second_count{model="chat",phase="decode"}`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Tokens that came together do not tell how fast their engine is. However fast an engine is, its
// other streams count.
func TestS12_TokensThatCameTogetherHaveNoRate(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsConfig{})
	for _, c := range []struct {
		tokens int64
		decode time.Duration
	}{{4, 21 * time.Microsecond}, {100, 999 * time.Microsecond}, {2, time.Millisecond}, {1001, 10 * time.Millisecond}} {
		m.Finished(request.Summary{Model: "chat", Replica: "chat-0", Stream: true, Status: 200, Source: "engine", Route: request.RouteManaged,
			FirstByte: time.Second, Decode: c.decode, CompletionTokens: c.tokens, UsageKnown: true})
	}
	want := []string{
		`sluice_time_per_output_token_seconds_sum{model="chat",upstream="chat-0"} 0.00101`,
		`sluice_time_per_output_token_seconds_count{model="chat",upstream="chat-0"} 2`,
		`stream_tokens_per_second_sum{model="chat",phase="decode"} 101000`,
		`stream_tokens_per_second_count{model="chat",phase="decode"} 2`,
	}
	got := scrape(t, m, "sluice_time_per_output_token_seconds_sum", "sluice_time_per_output_token_seconds_count",
		`stream_tokens_per_second_sum{model="chat",phase="decode"}`, `stream_tokens_per_second_count{model="chat",phase="decode"}`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Tokens that are told apart from the end of their request are counted once.
func TestB3_TokensToldApart(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsConfig{})
	q := request.Summary{Model: "chat", Tenant: "acme", PromptTokens: 10, CompletionTokens: 40, UsageKnown: true, UsedApart: true}
	m.Finished(q)
	m.Used(&q)
	want := []string{`sluice_tokens_total{kind="completion",model="chat",tenant="acme"} 40`, `sluice_tokens_total{kind="prompt",model="chat",tenant="acme"} 10`}
	if diff := cmp.Diff(want, scrape(t, m, "sluice_tokens_total")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestBatchSize(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsConfig{})
	m.Dispatched("chat", 1, 0)
	m.Dispatched("chat", 2, 30)
	want := []string{
		`scheduler_batch_size_bucket{phase="decode",le="0"} 1`,
		`scheduler_batch_size_bucket{phase="decode",le="32"} 2`,
		`scheduler_batch_size_sum{phase="decode"} 30`,
		`scheduler_batch_size_count{phase="decode"} 2`,
		`scheduler_batch_size_bucket{phase="prefill",le="0"} 0`,
		`scheduler_batch_size_bucket{phase="prefill",le="32"} 2`,
		`scheduler_batch_size_sum{phase="prefill"} 3`,
		`scheduler_batch_size_count{phase="prefill"} 2`,
	}
	var got []string
	for _, line := range scrape(t, m, "scheduler_batch_size") {
		if !strings.Contains(line, "le=") || strings.Contains(line, `le="0"`) || strings.Contains(line, `le="32"`) {
			got = append(got, line)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestP95 compares with the percentile of a sorted list, in which a stream of n tokens has n−1
// gaps, and sees gaps leave after a minute.
func TestP95(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := NewMetrics(MetricsConfig{})
		sample := func(gap time.Duration, gaps int64) {
			m.streams.gaps.finished("chat", true, gaps, map[int]int64{request.GapClass(gap): gaps})
		}
		for i := 1; i <= 100; i++ { // the longest streams have the shortest gaps: by streams it would be 95 ms
			sample(time.Duration(i)*time.Millisecond, int64(101-i))
		}
		wantP95(t, m, "chat", 0.079) // 4797 of 5050 gaps are shorter
		sample(10*time.Minute, 1_000_000)
		wantP95(t, m, "chat", 600)
		time.Sleep(45 * time.Second)
		sample(time.Second, 1)
		wantP95(t, m, "chat", 600)
		time.Sleep(gapSlots*gapSlot - 45*time.Second)
		wantP95(t, m, "chat", 1)
		sample(2*time.Second, 20) // takes the place of those that have left
		wantP95(t, m, "chat", 2)
		time.Sleep(gapSlots * gapSlot)
		if got := scrape(t, m, "stream_inter_token_p95_seconds"); len(got) != 0 || len(m.streams.gaps.windows) != 0 {
			t.Errorf("after a minute without a gap: %q, %d windows", got, len(m.streams.gaps.windows))
		}
		for i := range 10_000 { // however many gaps there are, and however odd
			m.Gaps("chat", time.Duration(i*i)*40*time.Microsecond-time.Second)
		}
		m.Gaps("odd", -time.Second)
		wantP95(t, m, "odd", 0.00001)
		weights := request.GapWeights{}
		m.streams.gaps.windows["chat"][m.streams.gaps.slotNumber()%gapSlots].counts.Weigh(weights)
		if n := len(weights); n > 1000 {
			t.Errorf("%d classes of gaps", n)
		}
	})
}

func wantP95(t *testing.T, m *Metrics, model string, want float64) {
	t.Helper()
	lines := scrape(t, m, fmt.Sprintf(`stream_inter_token_p95_seconds{model="%s"} `, model))
	if len(lines) != 1 {
		t.Fatalf("%d series of %s: %q", len(lines), model, lines)
	}
	_, value, _ := strings.Cut(lines[0], "} ")
	var got float64
	fmt.Sscan(value, &got)
	if math.Abs(got-want) > 0.0101*want {
		t.Errorf("%s: 95th percentile %v s, want %v s within 1 %%", model, got, want)
	}
}

// read is a native stream that Envoy has read: 0.5 s to the first token, then as many tokens with
// these gaps.
func read(id string, gaps ...time.Duration) request.Entry {
	e := streamed(id, request.Usage{})
	first := e.Start.Add(500 * time.Millisecond)
	r := &request.Reading{Tokens: int64(len(gaps)) + 1, Bytes: e.BytesOut, First: first, Last: first, Ended: true, Finish: "stop", Gaps: map[int]int64{}}
	for _, gap := range gaps {
		r.Last = r.Last.Add(gap)
		r.Gaps[request.GapClass(gap)]++
	}
	e.Reading = r
	return e
}

// All figures of a model are there after its first stream, without help of the client and of the
// engine.
func TestR3_FiguresOfTheFirstStream(t *testing.T) {
	t.Parallel()
	r, m := request.NewStore(0), NewMetrics(MetricsConfig{})
	r.Begin(request.Arrival{ID: "a", Stream: true}).SetNative(costing{request.Cost{Usage: request.Usage{Prompt: 100, Completion: 7}, Finish: "stop"}}, "chat", "chat-0", 0)
	observed(r, m)(read("a", 20*time.Millisecond, 20*time.Millisecond, time.Second))
	want := []string{
		`sluice_inter_token_seconds_bucket{model="chat",route="native",le="0.015"} 0`,
		`sluice_inter_token_seconds_bucket{model="chat",route="native",le="0.025"} 2`,
		`sluice_inter_token_seconds_bucket{model="chat",route="native",le="0.5"} 2`,
		`sluice_inter_token_seconds_bucket{model="chat",route="native",le="2"} 3`,
		`sluice_inter_token_seconds_count{model="chat",route="native"} 3`,
		`stream_tokens_per_second_count{model="chat",phase="decode"} 1`,
		`stream_tokens_per_second_sum{model="chat",phase="prefill"} 200`,
		`stream_tokens_per_second_count{model="chat",phase="prefill"} 1`,
		`stream_ttft_seconds_sum{model="chat",route="native"} 0.5`,
		`stream_ttft_seconds_count{model="chat",route="native"} 1`,
	}
	got := scrape(t, m, `sluice_inter_token_seconds_bucket{model="chat",route="native",le="0.015"}`, `sluice_inter_token_seconds_bucket{model="chat",route="native",le="0.025"}`,
		`sluice_inter_token_seconds_bucket{model="chat",route="native",le="0.5"}`, `sluice_inter_token_seconds_bucket{model="chat",route="native",le="2"}`,
		"sluice_inter_token_seconds_count", "stream_ttft_seconds_sum", "stream_ttft_seconds_count",
		"stream_tokens_per_second_count", `stream_tokens_per_second_sum{model="chat",phase="prefill"}`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	wantP95(t, m, "chat", 1)
}

// costing is a hold that tells what the response has cost.
type costing struct{ cost request.Cost }

func (costing) Moved(string)                            {}
func (costing) FirstToken() bool                        { return true }
func (costing) WantsResponseID() bool                   { return false }
func (costing) LearnResponse(string)                    {}
func (c costing) Correct(request.Response) request.Cost { return c.cost }
func (costing) Release()                                {}

// Native and managed streams count by the tokens of all their streams, whatever share of them was
// measured.
func TestR3_ManagedStreamsSilenceNoNativeOnes(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsConfig{})
	record := observed(request.NewStore(0), m)
	record(read("sampled", 40*time.Millisecond, 40*time.Millisecond)) // 2 of 1,002 native gaps are measured
	record(streamed("unread", request.Usage{Prompt: 1, Completion: 1001, Known: true}))
	for range 100 { // all gaps of managed streams are
		m.Gaps("chat", 10*time.Millisecond)
	}
	m.Finished(request.Summary{Model: "chat", Replica: "chat-0", Stream: true, Status: 200, Source: "engine", Route: request.RouteManaged, FirstByte: time.Second,
		CompletionTokens: 101, UsageKnown: true})
	wantP95(t, m, "chat", 0.040)
	m.Finished(request.Summary{Model: "chat", Replica: "chat-0", Stream: true, Status: 200, Source: "engine", Route: request.RouteManaged, FirstByte: time.Second,
		CompletionTokens: 100_001, UsageKnown: true})
	wantP95(t, m, "chat", 0.010)
}
