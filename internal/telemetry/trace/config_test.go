package trace

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/internal/request"
)

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	nan := 0.0
	nan /= nan
	for _, c := range []Config{
		{Endpoint: "127.0.0.1:4318"}, {Endpoint: "grpc://127.0.0.1:4317"}, {Endpoint: "http://"}, {Endpoint: "http://\x7f"},
		{Endpoint: "http://user:secret@127.0.0.1:4318"},
		{Endpoint: "http://127.0.0.1:4318", Sample: 1.1}, {Endpoint: "http://127.0.0.1:4318", Sample: -0.1}, {Endpoint: "http://127.0.0.1:4318", Sample: nan},
	} {
		if tracer, err := New(c); err == nil || tracer != nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v, %v", c, tracer, err)
		}
	}
}

// TestPathOfTheCollector: an endpoint with a path is asked there, and one without at OTLP's own.
func TestPathOfTheCollector(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]int{"": 1, "/": 1, "/v1/traces": 1, "/elsewhere": 0} {
		s := newSink(t)
		tracer, err := New(Config{Endpoint: s.URL + path, Sample: 1})
		if err != nil {
			t.Fatal(err)
		}
		running(t, tracer, func(tracer *Tracer) { tracer.Start(request.Arrival{}, "", began).End(request.Outcome{}) })
		if got := len(s.spans) / 2; got != want { // with its queue
			t.Errorf("%q: %d spans came", path, len(s.spans))
		}
	}
}

// TestCollectorIsDown: nobody waits for a collector, what waits for it is bounded, and the log has
// one line.
func TestCollectorIsDown(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*sink) string{
		"refuses connections": func(s *sink) string { s.Close(); return s.URL },
		"answers 400":         func(s *sink) string { s.refuse = http.StatusBadRequest; return s.URL },
		"asks to come again":  func(s *sink) string { s.refuse = http.StatusServiceUnavailable; return s.URL },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			core, logs := observer.New(zapcore.DebugLevel)
			tracer, err := New(Config{Endpoint: spoil(newSink(t)), Sample: 1, Log: zap.New(core)})
			if err != nil {
				t.Fatal(err)
			}
			tracer.queue, tracer.flush = 600, 100*time.Millisecond
			running(t, tracer, func(tracer *Tracer) {
				began := time.Now()
				for range 3 * tracer.queue {
					tracer.Start(request.Arrival{}, "", began).End(request.Outcome{})
				}
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("it was waited for: %v", took)
				}
			})
			if logs.Len() != 1 || logs.All()[0].Level != zapcore.WarnLevel {
				t.Errorf("the log has %v", logs.All())
			}
		})
	}
}

// TestCollectorReturns: spans are sent again, and the log says so.
func TestCollectorReturns(t *testing.T) {
	t.Parallel()
	s := newSink(t)
	core, logs := observer.New(zapcore.DebugLevel)
	tracer, err := New(Config{Endpoint: s.URL, Sample: 1, Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	running(t, tracer, func(tracer *Tracer) {
		for _, refuse := range []int{http.StatusBadRequest, http.StatusBadRequest, 0, 0} {
			s.mu.Lock()
			s.refuse = refuse
			s.mu.Unlock()
			tracer.Start(request.Arrival{}, "", began).End(request.Outcome{})
			if err := tracer.provider.ForceFlush(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	var lines []string
	for _, line := range logs.All() {
		lines = append(lines, line.Level.String()+" "+line.Message)
	}
	if got := strings.Join(lines, "; "); got != "warn spans lost, collector not reachable; info spans sent again, collector reachable" || len(s.spans) != 4 {
		t.Errorf("the log has %s, %d spans came", got, len(s.spans))
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]bool{
		clients: true,
		"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more": true,
		"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more":  false,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more": false,
		"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":      false,
		"0g-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":      false,
		"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":      false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01":      false,
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01":      false,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x":      false,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0":       false,
		"00-0af7651916cd43dd8448eb211c80319c+b7ad6b7169203331-01":      false,
		"": false,
	} {
		s, ok := parse(header)
		if ok != want {
			t.Errorf("%q: %v", header, ok)
		}
		if ok && header[:2] == "00" && render(s) != header {
			t.Errorf("%q became %q", header, render(s))
		}
	}
}

// FuzzParse holds what OpenTelemetry's own reader of the header makes of it against ours.
func FuzzParse(f *testing.F) {
	f.Add(clients)
	f.Add("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more")
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03")
	f.Fuzz(func(t *testing.T, header string) {
		got, ok := parse(header)
		theirs := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(t.Context(), propagation.MapCarrier{"traceparent": header}))
		if theirs.IsValid() && (!ok || got.TraceID() != theirs.TraceID() || got.SpanID() != theirs.SpanID() || got.IsSampled() != theirs.IsSampled()) {
			t.Errorf("%q: %v %v, want %v", header, ok, got, theirs)
		}
		if ok && !got.IsValid() {
			t.Errorf("%q is invalid", header)
		}
	})
}
