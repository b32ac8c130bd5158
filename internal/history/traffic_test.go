package history

import (
	"math"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/request"
)

func TestB8_TrafficBetweenTwoSamples(t *testing.T) {
	traffic := NewTraffic(func(model string) bool { return model == "chat" || model == "idle" })
	finished := func(model string, status int, ttft, decode time.Duration, tokens int64) {
		traffic.Finished(request.Summary{Model: model, Status: status, Stream: ttft > 0, Source: "engine", Route: request.RouteManaged,
			FirstByte: ttft, Decode: decode, CompletionTokens: tokens})
	}
	for range 90 {
		finished("chat", 200, 100*time.Millisecond, time.Second, 101)
	}
	for range 10 {
		finished("chat", 200, 2*time.Second, 4*time.Second, 101)
	}
	finished("chat", 429, 0, 0, 0)
	finished("chat", 503, 0, 0, 0)
	finished("chat", 404, 0, 0, 0)
	finished("nobody's", 500, 0, 0, 0)
	traffic.taken = time.Now().Add(-10 * time.Second)
	s := Sample{Total: None(), Models: map[string]Values{"chat": None(), "idle": None()}}
	traffic.Take(&s)
	for _, c := range []struct {
		model  string
		series Series
		want   float64
	}{
		{"chat", RequestsPerSecond, 10.3}, {"chat", ErrorsPerSecond, 0.2}, {"chat", TokensPerSecond, 1010},
		{"chat", TTFTp50, 100}, {"chat", TTFTp95, 2000}, {"chat", InterTokenP50, 10}, {"chat", InterTokenP95, 40},
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
	if _, ok := s.Models["nobody's"]; ok {
		t.Error("a name that a client has made up is a model")
	}
	traffic.Take(&s)
	if got := s.Models["chat"][RequestsPerSecond]; got != 0 {
		t.Errorf("requests are counted twice: %v", got)
	}
}
