package telemetry

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zapcore"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
)

// lines runs the entries through a log and returns what it has written.
func lines(t *testing.T, level string, on bool, entries ...request.Entry) []map[string]any {
	t.Helper()
	var out bytes.Buffer
	log, err := newLogger(LoggerConfig{Level: level}, zapcore.AddSync(&out))
	if err != nil {
		t.Fatal(err)
	}
	r := request.NewStore(0)
	record := observed(r, nil, requestLogOf(log, on).Finished)
	for _, e := range entries {
		if e.Log == headers.LogRequests && e.Model != "" && !e.Interim {
			r.Begin(request.Arrival{ID: e.RequestID, Tenant: "acme", Model: "alias"}).SetDispatched("chat", "chat-0", 1500*time.Microsecond)
		}
		record(e)
	}
	var all []map[string]any
	for line := range strings.Lines(out.String()) {
		var one map[string]any
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		delete(one, "time")
		all = append(all, one)
	}
	return all
}

func TestRequestLog(t *testing.T) {
	t.Parallel()
	soFar := final("whole")
	soFar.Interim, soFar.Duration = true, 0
	whole := final("whole")
	whole.Attempts, whole.Usage = 2, request.Usage{Prompt: 7, Completion: 11, Known: true, Cached: 5, CachedKnown: true}
	embedded := final("embedded")
	embedded.Streamed, embedded.Path, embedded.Usage = false, "/v1/embeddings", request.Usage{Prompt: 7, Known: true}
	refused := request.Entry{Log: headers.LogRequests, RequestID: "refused", Path: "/v1/chat/completions", Status: 401, Details: "sluice_invalid_api_key",
		Duration: 1250 * time.Microsecond, BytesOut: 90}
	probed := request.Entry{Log: headers.LogRequests, RequestID: "probed", Path: "/health", Status: 200}
	attempt := request.Entry{Log: headers.LogAttempts, RequestID: "whole", Status: 200}

	line := func(id string, more map[string]any) map[string]any {
		l := map[string]any{"level": "info", "logger": "request", "msg": "finished", "request_id": id, "tenant": "acme", "model": "chat",
			"replica": "chat-0", "route": "native", "status": 200.0, "code": "", "stream": true, "queued_ms": 1.5, "ttft_ms": 200.0,
			"duration_ms": 3000.0, "finish_reason": "", "retries": 0.0, "bytes": 2000.0}
		for k, v := range more {
			if l[k] = v; v == nil {
				delete(l, k)
			}
		}
		return l
	}
	want := []map[string]any{
		line("whole", map[string]any{"tokens_in": 7.0, "tokens_out": 11.0, "cached_tokens": 5.0, "retries": 1.0}),
		line("embedded", map[string]any{"stream": false, "ttft_ms": nil, "tokens_in": 7.0, "tokens_out": 0.0}),
		line("refused", map[string]any{"tenant": "", "model": "", "replica": "", "route": "", "status": 401.0, "code": "invalid_api_key",
			"stream": false, "queued_ms": 0.0, "ttft_ms": nil, "duration_ms": 1.25, "bytes": 90.0}),
		line("unread", nil),
	}
	entries := []request.Entry{soFar, whole, attempt, embedded, refused, probed, final("unread")}
	if diff := cmp.Diff(want, lines(t, "info", true, entries...)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := lines(t, "info", false, entries...); len(got) != 0 {
		t.Errorf("switched off it wrote %v", got)
	}
	if got := lines(t, "warn", true, entries...); len(got) != 0 {
		t.Errorf("at level warn it wrote %v", got)
	}
}

// TestRequestLogOfManaged: the relay's figures are in the line, an engine that did not count tokens
// included.
func TestRequestLogOfManaged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := newLogger(LoggerConfig{}, zapcore.AddSync(&out))
	if err != nil {
		t.Fatal(err)
	}
	r := request.NewStore(0)
	record := observed(r, nil, requestLogOf(log, true).Finished)
	c := whole()
	c.Usage, c.Cause = request.Usage{Completion: 41}, request.CauseSlowClient
	live := r.Begin(request.Arrival{ID: "a", Tenant: "acme", Model: "alias", Stream: true})
	live.SetTrace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "")
	live.SetOutcome(c)
	live.Close(nil)
	record(relayed("a"))
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "time")
	want := map[string]any{"level": "info", "logger": "request", "msg": "finished", "request_id": "a", "tenant": "acme", "model": "chat",
		"replica": "chat-1", "route": "managed", "status": 200.0, "code": "", "stream": true, "queued_ms": 400.0, "ttft_ms": 1000.0,
		"duration_ms": 3000.0, "tokens_out": 41.0, "estimated": true, "tpot_ms": 50.0, "cause": "slow_client", "trace_id": "0af7651916cd43dd8448eb211c80319c",
		"finish_reason": "stop", "retries": 1.0, "bytes": 2000.0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestRequestLogTellsNoSecret: what a client sends reaches the line as the names that it chose
// only, and a path not at all.
func TestRequestLogTellsNoSecret(t *testing.T) {
	t.Parallel()
	e := final("a")
	e.Path, e.Details = "/v1/secret", "secret"
	e.Metadata = map[string]string{headers.MetadataTenant: "acme", headers.MetadataLease: "secret"}
	for _, line := range lines(t, "info", true, e) {
		for field, value := range line {
			if s, ok := value.(string); ok && strings.Contains(s, "secret") {
				t.Errorf("%s: %s", field, s)
			}
		}
	}
}

func BenchmarkRequestLog(b *testing.B) {
	log, err := newLogger(LoggerConfig{}, zapcore.AddSync(io.Discard))
	if err != nil {
		b.Fatal(err)
	}
	l := requestLogOf(log, true)
	q := request.Summary{ID: "0f5b0d5e-7d1c-4b7a-9d5e-0123456789ab", Tenant: "acme", Model: "chat", Replica: "chat-0", Route: request.RouteNative, Status: 200,
		Stream: true, FirstByte: time.Second, Duration: 2 * time.Second, UsageKnown: true, CachedKnown: true}
	b.ReportAllocs()
	for b.Loop() {
		l.Finished(q)
	}
}

// TestALineIsWhatZapWrites: the lines of a file have the bytes that they have in the log of the
// gateway.
func TestALineIsWhatZapWrites(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 9, 30, 0, 120_000_000, time.FixedZone("", 3600))
	strange := request.Summary{ID: "a\"b\\c", ClientID: "line\nbreak", Tenant: "Zoë", Model: "m", Code: "no_replica", Cause: "client", Abandoned: true,
		Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", FinishReason: "length", FinishEstimated: true, PromptTokens: 3, Attempts: 3}
	stream := request.Summary{ID: "s", Stream: true, Status: 200, Source: headers.SourceEngine, Route: request.RouteManaged, FirstByte: 1234567,
		Decode: time.Second, Duration: 2 * time.Second, Waited: time.Microsecond, PromptTokens: 1 << 40, CompletionTokens: 8, UsageKnown: true,
		CachedTokens: 4, CachedKnown: true, BytesOut: 1 << 50}
	for _, q := range []request.Summary{{}, strange, stream} {
		var fields zapFields
		tellLine(&fields, &q)
		want, err := jsonEncoder().EncodeEntry(zapcore.Entry{Level: zapcore.InfoLevel, Time: at, LoggerName: "request", Message: "finished"}, fields)
		if err != nil {
			t.Fatal(err)
		}
		got := jsonLine("what was there before")
		got.begin(at)
		tellLine(&got, &q)
		got.end()
		if diff := cmp.Diff(want.String(), string(got)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

func BenchmarkRequestLine(b *testing.B) {
	q := queuedWriter{to: io.Discard, wake: make(chan struct{}, 1)}
	l := &RequestLog{sample: 1, lines: &q}
	s := request.Summary{ID: "0f5b0d5e-7d1c-4b7a-9d5e-0123456789ab", Tenant: "acme", Model: "chat", Replica: "chat-0", Route: request.RouteNative, Status: 200,
		Stream: true, FirstByte: time.Second, Duration: 2 * time.Second, UsageKnown: true, CachedKnown: true}
	b.ReportAllocs()
	for b.Loop() {
		if l.Finished(s); len(q.waiting) > sinkBatch {
			<-q.wake
			q.write(q.take())
		}
	}
}

func BenchmarkStreamFigures(b *testing.B) {
	m := NewMetrics(MetricsConfig{})
	q := request.Summary{Model: "chat", Route: request.RouteNative, Source: headers.SourceEngine, Status: 200, Stream: true, FirstByte: time.Second, LastByte: 3 * time.Second,
		PromptTokens: 100, CompletionTokens: 101, UsageKnown: true, CachedKnown: true}
	b.ReportAllocs()
	for b.Loop() {
		m.streams.observe("chat", m.seriesOf("chat", &q), streamOf(&q))
	}
}

// TestR4_RequestLogHasTheClientsID: the id that the client knows its request by is in the line,
// also of the requests that resume and cancel a stream by that id.
func TestR4_RequestLogHasTheClientsID(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := newLogger(LoggerConfig{}, zapcore.AddSync(&out))
	if err != nil {
		t.Fatal(err)
	}
	store := request.NewStore(0)
	record := observed(store, nil, requestLogOf(log, true).Finished)
	read := store.Begin(request.Arrival{ID: "a"})
	read.SetBody("chat", "mine", true, 10)
	record(final("a"))
	read.Close(nil)
	store.Begin(request.Arrival{ID: "b", ClientID: "on a socket", OnConnection: true}).Close(nil)
	resumed := final("c")
	resumed.ClientID = "resumed"
	record(resumed)
	record(final("d"))
	var got []any
	for line := range bytes.Lines(out.Bytes()) {
		var l map[string]any
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatal(err)
		}
		got = append(got, l["client_request_id"])
	}
	if diff := cmp.Diff([]any{"mine", "on a socket", "resumed", nil}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
