package history

import (
	"math"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/request"
)

func TestB8_TrafficBetweenTwoSamples(t *testing.T) {
	traffic := NewTraffic(func(model string) bool { return model == "chat" || model == "idle" })
	finished := func(model string, status int, ttft time.Duration, tokens int64) {
		traffic.Finished(request.Summary{Model: model, Status: status, Stream: ttft > 0, Source: "engine", Route: request.RouteManaged,
			FirstByte: ttft, CompletionTokens: tokens})
	}
	for range 90 {
		finished("chat", 200, 100*time.Millisecond, 101)
	}
	for range 10 {
		finished("chat", 200, 2*time.Second, 101)
	}
	finished("chat", 429, 0, 0)
	finished("chat", 503, 0, 0)
	finished("chat", 404, 0, 0)
	finished("nobody's", 500, 0, 0)
	traffic.taken = time.Now().Add(-10 * time.Second)
	s := Sample{Total: None(), Models: map[string]Values{"chat": None(), "idle": None()}}
	traffic.Take(&s)
	for _, c := range []struct {
		model  string
		series Series
		want   float64
	}{
		{"chat", RequestsPerSecond, 10.3}, {"chat", ErrorsPerSecond, 0.2}, {"chat", TokensPerSecond, 1010},
		{"chat", TTFTp50, 100}, {"chat", TTFTp95, 2000},
		{"idle", RequestsPerSecond, 0}, {"", RequestsPerSecond, 10.4}, {"", ErrorsPerSecond, 0.3}, {"", TTFTp95, 2000},
	} {
		v := s.Models[c.model]
		if c.model == "" {
			v = s.Total
		}
		if got := v[c.series]; math.Abs(got-c.want) > 0.011*c.want {
			t.Errorf("%s of %q is %v, want %v", c.series, c.model, got, c.want)
		}
	}
	if got := s.Models["idle"][TTFTp50]; !math.IsNaN(got) {
		t.Errorf("an idle model has a time to the first token of %v", got)
	}
	if got := s.Models["chat"][InterTokenP50]; !math.IsNaN(got) {
		t.Errorf("nobody has measured a gap between two tokens, it is %v", got)
	}
	if _, ok := s.Models["nobody's"]; ok {
		t.Error("a name that a client has made up is a model")
	}
	traffic.Take(&s)
	if got := s.Models["chat"][RequestsPerSecond]; got != 0 {
		t.Errorf("requests are counted twice: %v", got)
	}
}

// Tokens that are told apart from the end of their request are counted once.
func TestB3_TokensToldApart(t *testing.T) {
	traffic := NewTraffic(func(string) bool { return true })
	q := request.Summary{Model: "chat", CompletionTokens: 100, UsedApart: true}
	traffic.Finished(q)
	traffic.Used(&q)
	traffic.taken = time.Now().Add(-10 * time.Second)
	s := Sample{Total: None(), Models: map[string]Values{"chat": None()}}
	traffic.Take(&s)
	if got := s.Models["chat"][TokensPerSecond]; math.Abs(got-10) > 0.1 {
		t.Errorf("%v tokens a second, want 10", got)
	}
}

// The times between tokens are those that were measured, stalls included, and no means. Where a
// share of the streams is measured, each measured gap stands for its share of all gaps.
func TestR3_HistoryHasMeasuredGaps(t *testing.T) {
	traffic := NewTraffic(func(string) bool { return true })
	stream := func(model, route string, tokens int64, gaps map[int]int64) {
		q := request.Summary{Model: model, Status: 200, Stream: true, Source: "engine", Route: route, FirstByte: time.Second, LastByte: time.Minute,
			Decode: time.Minute, CompletionTokens: tokens}
		if gaps != nil {
			q.Reading = &request.Reading{Tokens: tokens, Gaps: gaps}
		}
		traffic.Finished(q)
	}
	const native, managed = request.RouteNative, request.RouteManaged
	class := func(ms float64) int { return request.GapClass(time.Duration(ms * float64(time.Millisecond))) }
	stream("stalls", native, 101, map[int]int64{class(10): 90, class(2000): 10}) // its mean is 209 ms
	stream("stalls", native, 1001, nil)
	for range 10 {
		traffic.Gaps("both", 50*time.Millisecond)
	}
	stream("both", managed, 901, nil)                            // all of its gaps are like those ten
	stream("both", native, 101, map[int]int64{class(5): 100})    // a tenth of all
	stream("unread", native, 1001, nil)                          // nobody has read it
	stream("few", native, 11, map[int]int64{class(100_000): 10}) // weighs little in the total
	s := Sample{Total: None(), Models: map[string]Values{"stalls": None(), "both": None(), "unread": None(), "few": None()}}
	traffic.Take(&s)
	for _, c := range []struct {
		model    string
		p50, p95 float64
	}{{"stalls", 10, 2000}, {"both", 50, 50}, {"unread", math.NaN(), math.NaN()}, {"few", 100_000, 100_000}, {"", 10, 2000}} {
		v := s.Models[c.model]
		if c.model == "" {
			v = s.Total
		}
		for series, want := range map[Series]float64{InterTokenP50: c.p50, InterTokenP95: c.p95} {
			if got := v[series]; math.IsNaN(got) != math.IsNaN(want) || math.Abs(got-want) > 0.011*want {
				t.Errorf("%s of %q is %v, want %v", series, c.model, got, want)
			}
		}
	}
	traffic.Take(&s)
	if got := s.Total[InterTokenP95]; !math.IsNaN(got) {
		t.Errorf("gaps are counted twice: %v", got)
	}
}
