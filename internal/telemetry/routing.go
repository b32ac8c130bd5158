package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/internal/request"
)

// routeMetrics compare what the dispatcher expected of requests with what happened.
type routeMetrics struct {
	predicted, real, ratio  *prometheus.HistogramVec
	prompt, matched, cached *prometheus.CounterVec
	picks, moves            *prometheus.CounterVec
}

func newRouteMetrics(r prometheus.Registerer) *routeMetrics {
	const compared = " It covers the streams that one replica served and whose first token was predicted."
	const counted = " It covers the requests whose match was predicted and whose engine reported its cached tokens."
	f := &routeMetrics{
		predicted: histogram("sluice_route_predicted_ttft_seconds",
			"Time from the pick of a replica to the first token, as it was predicted."+compared, shortBuckets(), "model"),
		real: histogram("sluice_route_ttft_seconds",
			"Time from the pick of a replica to the first token, as it was. For native streams, the first byte of the response's body stands for "+
				"the first token."+compared, shortBuckets(), "model"),
		ratio: histogram("sluice_route_ttft_ratio",
			"sluice_route_ttft_seconds divided by sluice_route_predicted_ttft_seconds, stream by stream; 1 is a prediction that came true.",
			ratioBuckets(), "model"),
		prompt: counter("sluice_route_prompt_tokens_total", "Tokens of prompts."+counted, "model"),
		matched: counter("sluice_route_matched_tokens_total",
			"Tokens of prompts that their replica was predicted to have in its cache."+counted, "model"),
		cached: counter("sluice_route_cached_tokens_total", "Tokens of prompts that their replica had in its cache."+counted, "model"),
		picks: counter("sluice_route_picks_total",
			"Requests by the reason for which their replica won: fastest, cached, session or ring. Models whose routing does not predict have none.",
			"model", "reason"),
		moves: counter("sluice_route_moves_total",
			"Requests that left the replica that had served their session or the longest beginning of their prompt, by reason: load, full or "+
				"replica_gone.", "model", "reason"),
	}
	for _, v := range f.vectors() {
		r.MustRegister(v)
	}
	return f
}

func (f *routeMetrics) vectors() []vector {
	return []vector{f.predicted, f.real, f.ratio, f.prompt, f.matched, f.cached, f.picks, f.moves}
}

// observe counts a request that has ended under the label of its model.
func (f *routeMetrics) observe(model string, q *request.Summary) {
	p := &q.Prediction
	if p.Reason != "" {
		f.picks.WithLabelValues(model, p.Reason).Inc()
	}
	if p.Moved != "" {
		f.moves.WithLabelValues(model, p.Moved).Inc()
	}
	if p.Known && q.CachedKnown && q.PromptTokens > 0 {
		f.prompt.WithLabelValues(model).Add(float64(q.PromptTokens))
		f.matched.WithLabelValues(model).Add(float64(min(int64(p.MatchedTokens), q.PromptTokens)))
		f.cached.WithLabelValues(model).Add(float64(q.CachedTokens))
	}
	if predicted, took, ok := q.FirstTokenAfterPick(); ok {
		f.predicted.WithLabelValues(model).Observe(predicted.Seconds())
		f.real.WithLabelValues(model).Observe(took.Seconds())
		f.ratio.WithLabelValues(model).Observe(took.Seconds() / predicted.Seconds())
	}
}
