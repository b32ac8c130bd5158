package trace

import (
	"context"
	"encoding/hex"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// clients is a traceparent of a client's, with its parts in hexadecimal.
const (
	clients     = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	clientTrace = "0af7651916cd43dd8448eb211c80319c"
	clientSpan  = "b7ad6b7169203331"
)

var began = time.Date(2030, 5, 4, 12, 0, 0, 0, time.UTC)

func after(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }

func bin(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// streamed is the joined record of a native stream.
func streamed() request.Summary {
	return request.Summary{
		ID: "r-1", ClientID: "mine", Path: "/v1/chat/completions", Tenant: "acme", Model: "chat", Replica: "chat-0", Status: 200, Route: request.RouteNative,
		Source: "engine", Stream: true, Attempts: 1, Started: began, Waited: 100 * time.Millisecond, FirstByte: 300 * time.Millisecond,
		LastByte: 1300 * time.Millisecond, Duration: 1400 * time.Millisecond,
		PromptTokens: 10, CompletionTokens: 11, UsageKnown: true, CachedTokens: 4, CachedKnown: true,
	}
}

func TestNative(t *testing.T) {
	t.Parallel()
	s := newSink(t)
	var own trace.SpanContext
	s.traced(t, Config{Version: "1.2.3", Headers: map[string]string{"authorization": "Bearer x"}}, func(tracer *Tracer) {
		header, sampled := tracer.Inject(clients)
		var ok bool
		own, ok = parse(header)
		if !sampled || !ok || !own.IsSampled() || own.TraceID().String() != clientTrace || own.SpanID().String() == clientSpan {
			t.Fatalf("the engine is given %q, sampled %v", header, sampled)
		}
		q := streamed()
		q.Trace, q.TraceParent = header, clients
		tracer.Native(q)
		q.Route = request.RouteManaged // the relay's own
		tracer.Native(q)
		q.Route, q.Trace = request.RouteNative, ""
		tracer.Native(q)
	})
	want := "chat chat 0s-1.4s gen_ai.usage.input_tokens=10 gen_ai.usage.output_tokens=11 sluice.replica=chat-0\n" +
		"  queue 0s-100ms\n" +
		"  prefill 100ms-300ms seq_len=10 sluice.replica=chat-0\n" +
		"  decode 300ms-1.3s seq_len=21 sluice.replica=chat-0 sluice.time_per_output_token=0.1\n"
	got := s.tree(began, bin(t, clientSpan), "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "seq_len", "sluice.replica",
		"sluice.time_per_output_token")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if below := s.tree(began, bin(t, own.SpanID().String())); !strings.HasPrefix(below, "queue") {
		t.Errorf("below the span that the engine was given is %q", below)
	}
	for _, span := range s.spans {
		if hex.EncodeToString(span.GetTraceId()) != clientTrace {
			t.Errorf("%s is of another trace", span.GetName())
		}
	}
	about := map[string]any{"service.name": "sluice", "service.version": "1.2.3"}
	if diff := cmp.Diff(about, s.resource); diff != "" || s.header.Get("Authorization") != "Bearer x" || s.header.Get("Content-Encoding") != "gzip" {
		t.Errorf("headers %v, resource (-want +got)\n%s", s.header, diff)
	}
}

// TestR4_RootAttributes: all that the request's own span says, and nothing else.
func TestR4_RootAttributes(t *testing.T) {
	t.Parallel()
	s := newSink(t)
	s.traced(t, Config{Sample: 1}, func(tracer *Tracer) {
		q := streamed()
		q.FinishReason = "stop"
		q.Trace, _ = tracer.Inject("")
		tracer.Native(q)
	})
	var root map[string]any
	for _, span := range s.spans {
		if len(span.GetParentSpanId()) == 0 {
			root = values(span.GetAttributes())
		}
	}
	want := map[string]any{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "sluice", "gen_ai.request.model": "chat", "gen_ai.request.stream": true,
		"gen_ai.response.finish_reasons": []string{"stop"}, "gen_ai.response.time_to_first_chunk": 0.3,
		"gen_ai.usage.input_tokens": int64(10), "gen_ai.usage.output_tokens": int64(11), "gen_ai.usage.cache_read.input_tokens": int64(4),
		"http.response.status_code": int64(200), "sluice.attempts": int64(1), "sluice.replica": "chat-0", "sluice.request_id": "r-1", "sluice.client_request_id": "mine",
		"sluice.route": "native", "sluice.tenant": "acme",
	}
	if diff := cmp.Diff(want, root); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if s.resource["service.name"] != "sluice" {
		t.Errorf("it is called %v", s.resource)
	}
}

// TestNativeEnds: requests that were no streams, or did not end well.
func TestNativeEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*request.Summary)
		want   string
	}{
		"no stream": {func(q *request.Summary) { q.Stream, q.Path = false, "/v1/embeddings?x=y" },
			"embeddings chat 0s-1.4s\n  queue 0s-100ms\n  generate 100ms-1.4s\n"},
		"refused": {func(q *request.Summary) {
			q.Replica, q.Source, q.Route, q.Status, q.Code = "", "gateway", "", 429, "queue_full"
		}, "chat chat 0s-1.4s\n  queue 0s-1.4s\n"},
		"no replica": {func(q *request.Summary) {
			q.Replica, q.Source, q.Route, q.Status, q.Code = "", "gateway", "", 503, "no_replica"
		},
			"chat chat 0s-1.4s error.type=no_replica error=no_replica\n  queue 0s-1.4s\n"},
		"failed": {func(q *request.Summary) { q.Status, q.Path = 500, "/v1/completions" },
			"text_completion chat 0s-1.4s error.type=500 error=500\n  queue 0s-100ms\n  prefill 100ms-300ms\n  decode 300ms-1.3s\n"},
		"cut": {func(q *request.Summary) { q.Cause, q.LastByte = request.CauseEngine, 0 },
			"chat chat 0s-1.4s error.type=engine sluice.disconnect_cause=engine error=engine\n" +
				"  queue 0s-100ms\n  prefill 100ms-300ms\n  decode 300ms-1.4s\n"},
		"left": {func(q *request.Summary) {
			q.Cause, q.LastByte, q.FirstByte, q.Status = request.CauseClient, 0, 0, 0
		},
			"chat chat 0s-1.4s sluice.disconnect_cause=client\n  queue 0s-100ms\n  prefill 100ms-1.4s\n"},
		"two clocks": {func(q *request.Summary) {
			q.Waited, q.Duration, q.LastByte = 400*time.Millisecond, time.Second, 2*time.Second
		},
			"chat chat 0s-1s\n  queue 0s-400ms\n  prefill 400ms-400ms\n  decode 400ms-1s\n"},
		"no name": {func(q *request.Summary) { q.Model, q.Path = "", "/v1/rerank" },
			"rerank 0s-1.4s\n  queue 0s-100ms\n  prefill 100ms-300ms\n  decode 300ms-1.3s\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSink(t)
			s.traced(t, Config{Sample: 1}, func(tracer *Tracer) {
				q := streamed()
				c.change(&q)
				q.Trace, _ = tracer.Inject("junk")
				q.TraceParent = "junk"
				tracer.Native(q)
			})
			if diff := cmp.Diff(c.want, s.tree(began, nil, "error.type", "sluice.disconnect_cause")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestManaged(t *testing.T) {
	t.Parallel()
	s := newSink(t)
	var given trace.SpanContext
	s.traced(t, Config{}, func(tracer *Tracer) {
		c := tracer.Start(request.Arrival{ID: "r-1/2", Path: "/v1/chat/completions", Tenant: "acme", Model: "alias", Stream: true}, clients, began)
		if own, ok := parse(c.Traceparent()); !ok || own.TraceID().String() != clientTrace || !own.IsSampled() {
			t.Errorf("the engine is given %q", c.Traceparent())
		}
		given, _ = parse(c.Traceparent())
		at := func(ms int) *Call {
			tracer.now = func() time.Time { return after(ms) }
			return c
		}
		at(100).Admitted("chat", "chat-0", 3)
		at(200).Queued() // it made way
		at(300).Admitted("chat", "chat-1", 5)
		at(490).Token(0) // the role
		at(500).FirstToken()
		at(500).Token(1)
		at(510).Emitted(0)
		at(600).Token(2)
		at(700).Token(3)
		at(750).Emitted(1) // both of them
		end := request.Outcome{Replica: "chat-1", TTFT: 500 * time.Millisecond, Held: 300 * time.Millisecond,
			Decode: 200 * time.Millisecond, Usage: request.Usage{Prompt: 10, Completion: 3, Known: true}, Finish: "length",
			Cause: request.CauseTimeout, Attempts: 2, Answered: true}
		at(1000).End(end)
		at(800).Token(4)
		at(900).FirstToken()
		c.End(end)
	})
	want := "chat alias 0s-1s gen_ai.request.model=alias gen_ai.response.model=chat sluice.route=managed error=timeout\n" +
		"  queue 0s-100ms\n" +
		"  prefill 100ms-200ms batch_size=3 seq_len=10 sluice.replica=chat-0\n" +
		"  queue 200ms-300ms\n" +
		"  prefill 300ms-500ms batch_size=5 seq_len=10 sluice.replica=chat-1\n" +
		"  decode 500ms-1s batch_size=5 seq_len=13 sluice.replica=chat-1\n" +
		"    emit_chunk[0] 490ms-510ms\n" +
		"    decode_step[1] 500ms-500ms\n" +
		"    decode_step[2] 500ms-600ms\n" +
		"    decode_step[3] 600ms-700ms\n" +
		"    emit_chunk[1] 600ms-750ms\n"
	got := s.tree(began, bin(t, clientSpan), "gen_ai.request.model", "gen_ai.response.model", "batch_size", "seq_len", "sluice.route", "sluice.replica")
	// The request's own span has the replica, too.
	if below := s.tree(began, bin(t, given.SpanID().String())); !strings.HasPrefix(below, "queue") {
		t.Errorf("below the span that the engine was given is %q", below)
	}
	got = strings.Replace(got, " sluice.replica=chat-1 error=timeout", " error=timeout", 1)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestLongStream: however long a stream is, there are few steps and chunks of it, evenly spread,
// and tries without end are no more phases.
func TestLongStream(t *testing.T) {
	t.Parallel()
	s := newSink(t)
	s.traced(t, Config{Sample: 1}, func(tracer *Tracer) {
		c := tracer.Start(request.Arrival{Path: "/v1/chat/completions", Stream: true}, "", time.Now())
		c.Admitted("chat", "chat-0", 1)
		c.FirstToken()
		for i := range int64(10_000) {
			c.Token(i)
			c.Emitted(i)
		}
		c.End(request.Outcome{})
		tired := tracer.Start(request.Arrival{Path: "/v1/chat/completions", Stream: true}, "", time.Now())
		for range 1000 {
			tired.Admitted("chat", "chat-0", 1)
			tired.Queued()
		}
		tired.End(request.Outcome{})
	})
	counts := map[string]int{}
	for _, span := range s.spans {
		name, _, _ := strings.Cut(span.GetName(), "[")
		counts[name]++
	}
	want := map[string]int{"chat": 2, "queue": 1 + maxPhases/2, "prefill": 1 + maxPhases/2, "decode": 1, "decode_step": 20, "emit_chunk": 20}
	if diff := cmp.Diff(want, counts); diff != "" { // every 512th
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestSampling: the client's flag decides, and where there is none, the share.
func TestSampling(t *testing.T) {
	t.Parallel()
	const n = 4000
	for _, c := range []struct {
		sample   float64
		header   string
		min, max int
	}{
		{0, "", 0, 0},
		{1, "", n, n},
		{0.25, "", n / 5, n * 3 / 10},
		{0, clients, n, n},
		{1, strings.TrimSuffix(clients, "1") + "0", 0, 0},
		{1, strings.TrimSuffix(clients, "01") + "02", 0, 0}, // another flag
		{0.25, "00-junk", n / 5, n * 3 / 10},
	} {
		tracer, err := New(Config{Endpoint: "http://127.0.0.1:1", Sample: c.sample})
		if err != nil {
			t.Fatal(err)
		}
		injected, started := 0, 0
		seen := map[string]bool{}
		for range n {
			if header, ok := tracer.Inject(c.header); ok {
				injected++
				seen[header] = true
			} else if header != "" {
				t.Fatalf("%q of what is not sampled", header)
			}
			if tracer.Start(request.Arrival{}, c.header, began) != nil {
				started++
			}
		}
		if injected < c.min || injected > c.max || started < c.min || started > c.max || len(seen) != injected {
			t.Errorf("%v of %q: %d and %d of %d, %d different", c.sample, c.header, injected, started, n, len(seen))
		}
	}
}

// TestOffCostsNothing: without a tracer, and for what is not sampled, nothing is allocated.
func TestOffCostsNothing(t *testing.T) {
	none, err := New(Config{Sample: 1})
	if none != nil || err != nil {
		t.Fatalf("%v, %v", none, err)
	}
	never, err := New(Config{Endpoint: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	q, b := streamed(), request.Arrival{ID: "a"}
	for name, tracer := range map[string]*Tracer{"off": none, "not sampled": never} {
		for _, header := range []string{"", strings.TrimSuffix(clients, "1") + "0"} {
			if n := testing.AllocsPerRun(100, func() {
				tracer.Inject(header)
				tracer.Native(q)
				c := tracer.Start(b, header, began)
				c.Admitted("chat", "chat-0", 1)
				c.FirstToken()
				c.Token(1)
				c.Emitted(1)
				c.Queued()
				c.End(request.Outcome{})
				if c.Traceparent() != "" {
					t.Error("there is a header")
				}
			}); n != 0 {
				t.Errorf("%s, %q: %v allocations", name, header, n)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := none.Run(ctx); err != nil {
		t.Error(err)
	}
}

// TestOddNames: what clients and engines choose cannot lose a batch, nor fill it.
func TestOddNames(t *testing.T) {
	t.Parallel()
	s := newSink(t)
	s.traced(t, Config{Sample: 1}, func(tracer *Tracer) {
		c := tracer.Start(request.Arrival{ID: "\xff", Path: "/v1/chat/completions", Tenant: "\xff", Model: strings.Repeat("\xffx", 1000)}, "", began)
		c.Admitted("\xff", "\xff", 1)
		c.End(request.Outcome{Model: "\xff", Replica: "\xff", Finish: strings.Repeat("é", 1000), Fault: &openai.Error{Code: "\xff", Status: 500}, Cause: "engine"})
	})
	if len(s.spans) != 3 {
		t.Fatalf("%d spans came", len(s.spans))
	}
	for _, span := range s.spans {
		if len(span.GetName()) > 300 {
			t.Errorf("a name of %d bytes", len(span.GetName()))
		}
		for name, v := range values(span.GetAttributes()) {
			if s, ok := v.(string); ok && len(s) > 300 {
				t.Errorf("%s has %d bytes", name, len(s))
			}
		}
	}
}

// TestCallConcurrently: the relay reads, writes and ends a call from several goroutines.
func TestCallConcurrently(t *testing.T) {
	t.Parallel()
	s := newSink(t)
	s.traced(t, Config{Sample: 1}, func(tracer *Tracer) {
		for range 20 {
			c := tracer.Start(request.Arrival{Stream: true}, "", time.Now())
			var all sync.WaitGroup
			all.Go(func() { c.Admitted("chat", "chat-0", 1); c.FirstToken() })
			all.Go(func() {
				for i := range int64(100) {
					c.Token(i)
				}
			})
			all.Go(func() {
				for i := range int64(100) {
					c.Emitted(i)
				}
			})
			all.Go(func() { c.End(request.Outcome{}) })
			all.Go(func() { c.End(request.Outcome{}) })
			all.Wait()
		}
	})
	roots := 0
	for _, span := range s.spans {
		if len(span.GetParentSpanId()) == 0 {
			roots++
		}
	}
	if roots != 20 {
		t.Errorf("%d calls have ended", roots)
	}
}
