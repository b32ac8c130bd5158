package telemetry

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
)

// predictedStream is a stream that waited 100 ms, and whose first token came 200 ms after the pick.
func predictedStream(p request.Prediction) request.Summary {
	return request.Summary{Model: "chat", Replica: "chat-0", Stream: true, Status: 200, Source: headers.SourceEngine, Route: request.RouteNative,
		Waited: 100 * time.Millisecond, FirstByte: 300 * time.Millisecond, Attempts: 1, PromptTokens: 100, CachedTokens: 60,
		UsageKnown: true, CachedKnown: true, Prediction: p}
}

func TestB1_PredictionsBesideWhatHappened(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsConfig{})
	good := predictedStream(request.Prediction{TTFT: 250 * time.Millisecond, MatchedTokens: 64, Known: true, Reason: "cached"})
	m.Finished(good)
	moved := predictedStream(request.Prediction{MatchedTokens: 500, Known: true, Reason: "fastest", Moved: "load"})
	m.Finished(moved) // a time that was not predicted
	retried, refused, whole, unread := good, good, good, good
	retried.Attempts = 2
	m.Finished(retried)
	refused.Source, refused.CachedKnown = headers.SourceGateway, false
	m.Finished(refused)
	whole.Stream, whole.CachedKnown = false, false
	m.Finished(whole)
	unread.FirstByte, unread.CachedKnown = 0, false
	m.Finished(unread)
	m.Finished(predictedStream(request.Prediction{})) // another strategy
	want := []string{
		`sluice_route_cached_tokens_total{model="chat"} 180`,
		`sluice_route_matched_tokens_total{model="chat"} 228`, // 64, at most the prompt, 64
		`sluice_route_moves_total{model="chat",reason="load"} 1`,
		`sluice_route_picks_total{model="chat",reason="cached"} 5`,
		`sluice_route_picks_total{model="chat",reason="fastest"} 1`,
		`sluice_route_predicted_ttft_seconds_sum{model="chat"} 0.25`,
		`sluice_route_predicted_ttft_seconds_count{model="chat"} 1`,
		`sluice_route_prompt_tokens_total{model="chat"} 300`,
		`sluice_route_ttft_ratio_sum{model="chat"} 0.8`,
		`sluice_route_ttft_seconds_sum{model="chat"} 0.2`,
	}
	got := scrape(t, m, "sluice_route_cached", "sluice_route_matched", "sluice_route_moves", "sluice_route_picks", "sluice_route_prompt",
		"sluice_route_predicted_ttft_seconds_sum", "sluice_route_predicted_ttft_seconds_count", "sluice_route_ttft_ratio_sum",
		"sluice_route_ttft_seconds_sum")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestB1_RouteMetricsGoWithTheirModel(t *testing.T) {
	t.Parallel()
	names := Names{Models: map[string]bool{"chat": true}}
	m := NewMetrics(MetricsConfig{Names: func() Names { return names }})
	m.Finished(predictedStream(request.Prediction{TTFT: time.Second, Known: true, Reason: "ring", Moved: "full"}))
	if got := scrape(t, m, "sluice_route_"); len(got) == 0 {
		t.Fatal("nothing was counted")
	}
	names = Names{}
	scrape(t, m) // the last scrape with the model
	if got := scrape(t, m, "sluice_route_"); len(got) != 0 {
		t.Errorf("series without a model: %q", got)
	}
}
