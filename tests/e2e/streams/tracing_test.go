package streams

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// traceCollector is an OpenTelemetry collector that keeps the spans that it receives.
type traceCollector struct {
	mu    sync.Mutex
	spans []*tracev1.Span
}

func startTraceCollector(t *testing.T) (*traceCollector, string) {
	c := new(traceCollector)
	return c, harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			body, _ = gzip.NewReader(r.Body)
		}
		b, err := io.ReadAll(body)
		var in collector.ExportTraceServiceRequest
		if err != nil || proto.Unmarshal(b, &in) != nil {
			w.WriteHeader(400)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, r := range in.GetResourceSpans() {
			for _, s := range r.GetScopeSpans() {
				c.spans = append(c.spans, s.GetSpans()...)
			}
		}
	})
}

// spanNames waits until the root span of a trace has arrived, and returns the names of its spans.
func (c *traceCollector) spanNames(t *testing.T, trace string) (names []string) {
	t.Helper()
	harness.Eventually(t, "the spans of "+trace, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		names = nil
		for _, s := range c.spans {
			if fmt.Sprintf("%x", s.GetTraceId()) == trace {
				names = append(names, s.GetName())
			}
		}
		if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "chat ") }) {
			return fmt.Errorf("only %v", names)
		}
		return nil
	})
	return names
}

// attributes returns the attributes of a span of a trace.
func (c *traceCollector) attributes(trace, name string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]string{}
	for _, s := range c.spans {
		if fmt.Sprintf("%x", s.GetTraceId()) != trace || s.GetName() != name {
			continue
		}
		for _, a := range s.GetAttributes() {
			value := a.GetValue()
			all[a.GetKey()] = value.GetStringValue()
			if n := value.GetIntValue(); n != 0 {
				all[a.GetKey()] = fmt.Sprint(n)
			}
		}
	}
	return all
}

// A client's trace goes on through queue, prefill and decode to the engine, for native and managed
// streams. The spans have the attributes that the gateway knows.
func TestE2E_S13_SpansFromClientToEngine(t *testing.T) {
	t.Parallel()
	sink, url := startTraceCollector(t)
	var mu sync.Mutex
	seen := map[string]string{} // what the engine was told, by model
	engine := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "native", "managed") {
			return
		}
		var asked struct{ Model string }
		json.NewDecoder(r.Body).Decode(&asked)
		mu.Lock()
		seen[asked.Model] = r.Header.Get("traceparent")
		mu.Unlock()
		w.Header().Set("content-type", "text/event-stream")
		for i := range 10 {
			fmt.Fprintf(w, "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"t%d\"},\"finish_reason\":null}]}\n\n", i)
			w.(http.Flusher).Flush()
		}
		io.WriteString(w, "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"+
			"data: {\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":10,\"total_tokens\":17}}\n\ndata: [DONE]\n\n")
	})
	g := harness.Start(t, `
tracing: {endpoint: "`+url+`", sample: 0}
models:
  - {name: native, launcher: upstream, upstreams: ["`+engine+`"], stream: {mode: native}, admission: {max_tokens_per_minute: 1000000}} # so that Envoy reads the usage
  - {name: managed, launcher: upstream, upstreams: ["`+engine+`"], stream: {mode: managed}}
`)
	for i, model := range []string{"native", "managed"} {
		trace := fmt.Sprintf("%032x", 0xabc0+i)
		body := withFields(harness.ChatBody(model, true, 10, "secret words"), `"stream_options":{"include_usage":true}`)
		g.Stream(harness.ChatPath, body, "traceparent: 00-"+trace+"-00000000000000aa-01")
		names := sink.spanNames(t, trace)
		for _, want := range []string{"chat " + model, "queue", "prefill", "decode"} {
			if !slices.Contains(names, want) {
				t.Errorf("%s: no span %s among %v", model, want, names)
			}
		}
		if model == "managed" && (!slices.Contains(names, "decode_step[1]") || !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "emit_chunk[") })) {
			t.Errorf("no steps among %v", names)
		}
		for phase, want := range map[string]map[string]string{
			"prefill": {"batch_size": map[string]string{"managed": "1"}[model], "seq_len": "7", "sluice.replica": strings.TrimPrefix(engine, "http://")},
			"decode":  {"seq_len": "17", "sluice.replica": strings.TrimPrefix(engine, "http://")},
		} {
			got := sink.attributes(trace, phase)
			for name, value := range want {
				if got[name] != value {
					t.Errorf("%s: %s of the span %s is %q, want %q", model, name, phase, got[name], value)
				}
			}
			if _, told := got["sluice.time_per_output_token"]; told != (phase == "decode") {
				t.Errorf("%s: the span %s has %v", model, phase, got)
			}
		}
		mu.Lock()
		if told := seen[model]; !strings.HasPrefix(told, "00-"+trace+"-") || strings.Contains(told, "00000000000000aa") {
			t.Errorf("%s: the engine was told %q", model, told)
		}
		mu.Unlock()
	}
	g.Stream(harness.ChatPath, harness.ChatBody("managed", true, 10, "x"), "traceparent: 00-"+strings.Repeat("d", 32)+"-00000000000000aa-00")
	mu.Lock()
	if told := seen["managed"]; told != "00-"+strings.Repeat("d", 32)+"-00000000000000aa-00" {
		t.Errorf("a trace that is not sampled became %q", told)
	}
	mu.Unlock()
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for _, s := range sink.spans {
		if strings.Contains(s.String(), "secret") {
			t.Errorf("a prompt is in %v", s)
		}
	}
}
