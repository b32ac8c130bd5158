package telemetry

import (
	"math"
	"testing"

	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	aiv3 "github.com/envoyproxy/go-control-plane/envoy/data/ai/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
)

func tokens(n uint64) *wrapperspb.UInt64Value { return wrapperspb.UInt64(n) }

// told is a record in which Envoy tells of a response's usage.
func told(t *testing.T, m proto.Message) *datav3.HTTPAccessLogEntry {
	t.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	e := served()
	e.CommonProperties.Metadata.TypedFilterMetadata = map[string]*anypb.Any{headers.MetadataUsage: packed}
	return e
}

func TestUsage(t *testing.T) {
	t.Parallel()
	whole := &aiv3.TokenUsage{InputTokens: tokens(7), OutputTokens: tokens(11), ExtractionStatus: aiv3.TokenUsage_COMPLETE}
	details := func(cached uint64) *aiv3.TokenUsage {
		u := proto.Clone(whole).(*aiv3.TokenUsage)
		u.InputTokenDetails = &aiv3.InputTokenDetails{CachedTokens: tokens(cached)}
		return u
	}
	partial := proto.Clone(whole).(*aiv3.TokenUsage)
	partial.ExtractionStatus = aiv3.TokenUsage_PARTIAL
	for name, c := range map[string]struct {
		in   proto.Message
		want request.Usage
	}{
		"whole":              {whole, request.Usage{Prompt: 7, Completion: 11, Known: true}},
		"no completion":      {&aiv3.TokenUsage{InputTokens: tokens(7), ExtractionStatus: aiv3.TokenUsage_COMPLETE}, request.Usage{Prompt: 7, Completion: 0, Known: true}},
		"some cached":        {details(5), request.Usage{Prompt: 7, Completion: 11, Known: true, Cached: 5, CachedKnown: true}},
		"none cached":        {details(0), request.Usage{Prompt: 7, Completion: 11, Known: true, CachedKnown: true}},
		"absurdly cached":    {details(8), request.Usage{Prompt: 7, Completion: 11, Known: true}},
		"nothing":            {&aiv3.TokenUsage{InputTokens: tokens(0), ExtractionStatus: aiv3.TokenUsage_COMPLETE}, request.Usage{Prompt: 0, Completion: 0, Known: true}},
		"a part was lost":    {partial, request.Usage{}},
		"failed":             {&aiv3.TokenUsage{ExtractionStatus: aiv3.TokenUsage_FAILED}, request.Usage{}},
		"only the sum":       {&aiv3.TokenUsage{ProviderTotalTokens: tokens(7), ExtractionStatus: aiv3.TokenUsage_COMPLETE}, request.Usage{Prompt: 7, Known: true, OnlyTotal: true}},
		"an absurd sum":      {&aiv3.TokenUsage{ProviderTotalTokens: tokens(1 << 41), ExtractionStatus: aiv3.TokenUsage_COMPLETE}, request.Usage{}},
		"sum and completion": {&aiv3.TokenUsage{ProviderTotalTokens: tokens(7), OutputTokens: tokens(7), ExtractionStatus: aiv3.TokenUsage_COMPLETE}, request.Usage{}},
		"only a completion":  {&aiv3.TokenUsage{OutputTokens: tokens(7), ExtractionStatus: aiv3.TokenUsage_COMPLETE}, request.Usage{}},
		"absurd":             {&aiv3.TokenUsage{InputTokens: tokens(math.MaxUint64), ExtractionStatus: aiv3.TokenUsage_COMPLETE}, request.Usage{}},
		"something else":     {wrapperspb.String("x"), request.Usage{}},
		"absurd in one only": {&aiv3.TokenUsage{InputTokens: tokens(1), OutputTokens: tokens(1 << 41), ExtractionStatus: aiv3.TokenUsage_COMPLETE}, request.Usage{}},
	} {
		record := told(t, c.in)
		e := entryOf(t, headers.LogRequests, record)
		if diff := cmp.Diff(c.want, e.Usage); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		if e.Metadata[headers.MetadataTenant] != "acme" {
			t.Errorf("%s: the notes became %v", name, e.Metadata)
		}
		// What is not over has no usage, whatever the record has.
		record.CommonProperties.AccessLogType = datav3.AccessLogType_DownstreamPeriodic
		if soFar := entryOf(t, headers.LogRequests, record); soFar.Usage != (request.Usage{}) || soFar.Metadata[headers.MetadataTenant] != "acme" {
			t.Errorf("%s: so far %+v", name, soFar)
		}
		record.CommonProperties.AccessLogType = datav3.AccessLogType_UpstreamEnd
		if attempt := entryOf(t, headers.LogAttempts, record); attempt.Usage != (request.Usage{}) {
			t.Errorf("%s: an attempt has %+v", name, attempt.Usage)
		}
	}
}

// TestBrokenUsage: a usage with a fault in a part that is read is none, as for the protobuf
// library. A field of another type than expected counts for nothing.
func TestBrokenUsage(t *testing.T) {
	t.Parallel()
	whole := request.Usage{Prompt: 7, Completion: 11, Known: true}
	const counts = "\x1a\x02\x08\x07\x22\x02\x08\x0b\x48\x01" // input, output, status
	for name, c := range map[string]struct {
		serialised string
		want       request.Usage
	}{
		"whole":                  {counts, whole},
		"cut":                    {counts[:len(counts)-1], request.Usage{}},
		"broken input":           {"\x1a\x02\x08\x87\x22\x02\x08\x0b\x48\x01", request.Usage{}},
		"broken output":          {"\x1a\x02\x08\x07\x22\x02\x08\x8b\x48\x01", request.Usage{}},
		"broken details":         {counts + "\x32\x02\x0a\xe6", request.Usage{}},
		"broken number in them":  {counts + "\x32\x03\x0a\x01\x08", request.Usage{}},
		"a total":                {"\x42\x02\x08\x07\x48\x01", request.TotalUsage(7)},
		"a total and no output":  {"\x22\x00\x42\x02\x08\x07\x48\x01", request.TotalUsage(7)},
		"a total, broken output": {"\x22\x02\x08\x8b\x42\x02\x08\x07\x48\x01", request.Usage{}},
		"numbers in their place": {counts + "\x18\x01\x20\x01\x30\x01", whole},
	} {
		if got := usageOf([]byte(c.serialised)); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		var library aiv3.TokenUsage
		if err := proto.Unmarshal([]byte(c.serialised), &library); (err == nil) != c.want.Known {
			t.Errorf("%s: the library says %v", name, err)
		}
	}
}

func TestTokensAreCountedOnce(t *testing.T) {
	t.Parallel()
	r, m := request.NewStore(0), NewMetrics(MetricsConfig{KnownModel: func(name string) bool { return name == "chat" }})
	record := observed(r, m)
	for _, id := range []string{"a", "b", "c"} {
		r.Begin(request.Arrival{ID: id, Model: "chat"}).SetDispatched("chat", "chat-0", 0)
	}
	known := final("a")
	known.Usage = request.Usage{Prompt: 7, Completion: 11, Known: true}
	soFar := final("a")
	soFar.Interim = true
	attempt := known
	attempt.Log = headers.LogAttempts
	embedded := final("b")
	embedded.Usage = request.Usage{Prompt: 5, Known: true}
	foreign := known
	foreign.RequestID, foreign.Model = "d", "gone"
	for _, e := range []request.Entry{soFar, attempt, known, embedded, final("c"), foreign} {
		record(e)
	}
	want := []string{
		`sluice_tokens_total{kind="completion",model="chat",tenant=""} 11`,
		`sluice_tokens_total{kind="completion",model="other",tenant=""} 11`,
		`sluice_tokens_total{kind="prompt",model="chat",tenant=""} 12`,
		`sluice_tokens_total{kind="prompt",model="other",tenant=""} 7`,
	}
	if diff := cmp.Diff(want, scrape(t, m, "sluice_tokens_total")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	got := map[string][2]int64{}
	rows, _ := r.List(0)
	for _, row := range rows {
		got[row.ID] = [2]int64{row.PromptTokens, row.CompletionTokens}
	}
	if diff := cmp.Diff(map[string][2]int64{"a": {7, 11}, "b": {5, 0}, "c": {}, "d": {7, 11}}, got); diff != "" {
		t.Errorf("the list of requests (-want +got)\n%s", diff)
	}
}

func TestRejectedByReason(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsConfig{})
	for _, q := range []request.Summary{
		{Model: "chat", Status: 429, Code: "queue_full", Source: headers.SourceGateway},
		{Model: "chat", Status: 429, Code: "queue_full", Source: headers.SourceGateway},
		{Model: "chat", Status: 429, Code: "rate_limited", Source: headers.SourceGateway},
		{Status: 401, Code: "invalid_api_key", Source: headers.SourceGateway},
		{Model: "chat", Code: "queue_timeout", Source: headers.SourceGateway}, // its client had left
		{Model: "chat", Status: 429, Source: headers.SourceEngine},
		{Model: "chat", Status: 200, Source: headers.SourceEngine},
	} {
		m.Finished(q)
	}
	want := []string{
		`sluice_rejected_total{model="",reason="invalid_api_key"} 1`,
		`sluice_rejected_total{model="chat",reason="queue_full"} 2`,
		`sluice_rejected_total{model="chat",reason="rate_limited"} 1`,
	}
	if diff := cmp.Diff(want, scrape(t, m, "sluice_rejected_total")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
