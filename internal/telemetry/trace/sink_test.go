package trace

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// sink is a collector: it speaks OTLP over HTTP and keeps what it is sent.
type sink struct {
	*httptest.Server
	mu sync.Mutex
	// what follows is guarded by mu
	spans    []*otlp.Span
	resource map[string]any
	header   http.Header
	raw      []byte
	// refuse is the status that it answers with instead, if any
	refuse int
}

func newSink(t *testing.T) *sink {
	t.Helper()
	s := &sink{}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != 0 {
		w.WriteHeader(s.refuse)
		return
	}
	body, err := read(r)
	var in collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &in) != nil {
		http.Error(w, "bad", http.StatusBadRequest)
		return
	}
	s.header, s.raw = r.Header, append(s.raw, body...)
	for _, of := range in.GetResourceSpans() {
		s.resource = values(of.GetResource().GetAttributes())
		for _, scope := range of.GetScopeSpans() {
			s.spans = append(s.spans, scope.GetSpans()...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	out, _ := proto.Marshal(&collector.ExportTraceServiceResponse{})
	w.Write(out) //nolint:errcheck // the exporter may have left
}

func read(r *http.Request) ([]byte, error) {
	if r.Header.Get("Content-Encoding") != "gzip" {
		return io.ReadAll(r.Body)
	}
	plain, err := gzip.NewReader(r.Body)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(plain)
}

// traced runs a tracer that sends to the sink, lets do use it, and returns when everything was
// sent.
func (s *sink) traced(t *testing.T, c Config, do func(*Tracer)) {
	t.Helper()
	c.Endpoint = s.URL
	tracer, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	running(t, tracer, do)
}

// running runs a tracer while do uses it, and waits until it has ended.
func running(t *testing.T, tracer *Tracer, do func(*Tracer)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tracer.Run(ctx) }()
	if tracer != nil {
		<-tracer.started
	}
	do(tracer)
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testutil.Patience):
		t.Fatal("it does not end")
	}
}

// tree renders the spans below a parent, each with its times since began and what is asked of its
// attributes, sorted by when they began.
func (s *sink) tree(began time.Time, parent []byte, attributes ...string) string {
	var out strings.Builder
	s.mu.Lock()
	defer s.mu.Unlock()
	s.branch(&out, began, parent, "", attributes)
	return out.String()
}

func (s *sink) branch(out *strings.Builder, began time.Time, parent []byte, indent string, attributes []string) {
	var below []*otlp.Span
	for _, span := range s.spans {
		if bytes.Equal(span.GetParentSpanId(), parent) {
			below = append(below, span)
		}
	}
	sort.SliceStable(below, func(i, j int) bool { return below[i].GetStartTimeUnixNano() < below[j].GetStartTimeUnixNano() })
	for _, span := range below {
		at := func(nano uint64) time.Duration { return time.Unix(0, int64(nano)).Sub(began).Round(time.Millisecond) }
		fmt.Fprintf(out, "%s%s %v-%v", indent, span.GetName(), at(span.GetStartTimeUnixNano()), at(span.GetEndTimeUnixNano()))
		has := values(span.GetAttributes())
		for _, name := range attributes {
			if v, ok := has[name]; ok {
				fmt.Fprintf(out, " %s=%v", name, v)
			}
		}
		if span.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR {
			fmt.Fprintf(out, " error=%s", span.GetStatus().GetMessage())
		}
		out.WriteString("\n")
		s.branch(out, began, span.GetSpanId(), indent+"  ", attributes)
	}
}

func values(attributes []*common.KeyValue) map[string]any {
	all := map[string]any{}
	for _, a := range attributes {
		switch v := a.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			all[a.GetKey()] = v.StringValue
		case *common.AnyValue_BoolValue:
			all[a.GetKey()] = v.BoolValue
		case *common.AnyValue_IntValue:
			all[a.GetKey()] = v.IntValue
		case *common.AnyValue_DoubleValue:
			all[a.GetKey()] = v.DoubleValue
		case *common.AnyValue_ArrayValue:
			list := []string{}
			for _, one := range v.ArrayValue.GetValues() {
				list = append(list, one.GetStringValue())
			}
			all[a.GetKey()] = list
		}
	}
	return all
}
