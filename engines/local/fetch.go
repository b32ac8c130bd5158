package local

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/weights"
)

// fetchLogInterval is how often the progress of a fetch is logged.
const fetchLogInterval = 10 * time.Second

// fetchWeights fetches the weights of the replica's model, if the model says so, and returns why it
// could not. It has no time limit: a transfer that stands still is resumed, and the limits of a
// start begin with the process. If ctx ends, the next call goes on where this one ended.
func (r *runner) fetchWeights(ctx context.Context) string {
	m := r.model.Load()
	if r.weights = ""; m.Weights == nil {
		return ""
	}
	began := time.Now()
	path, err := r.launcher.fetcher.Fetch(ctx, *m.Weights, func(p weights.Progress) { r.reportFetch(ctx, p) })
	fetched := r.replica.Fetch
	r.replica.Fetch = engines.Fetch{}
	if ctx.Err() != nil {
		return ""
	}
	if err != nil {
		return "weights not fetched: " + err.Error()
	}
	if fetched.Total > 0 {
		r.launcher.config.Log.Info("weights fetched", zap.String("replica", r.id), zap.String("path", path),
			zap.String("size", weights.FormatBytes(fetched.Total)), zap.Duration("took", time.Since(began)))
	}
	r.weights = path
	return ""
}

// reportFetch reports how far the fetch is. Only the replica that fetches logs it, not those that
// wait for it.
func (r *runner) reportFetch(ctx context.Context, p weights.Progress) {
	if now := time.Now(); !p.Waiting && now.Sub(r.fetchLoggedAt) >= fetchLogInterval {
		r.fetchLoggedAt = now
		r.launcher.config.Log.Info("weights being fetched", zap.String("replica", r.id), zap.Stringer("progress", p))
	}
	r.replica.NextStart = time.Time{}
	r.replica.Fetch = engines.Fetch{Done: p.Done, Total: p.Total, Rate: p.Rate}
	r.report(ctx, engines.Starting, p.String())
}

// withWeights returns the model with the fetched weights as its source. Without a path it returns
// the model as it is.
func (m Model) withWeights(path string) Model {
	if path != "" {
		m.Launch.Registry, m.Launch.Model = "directory", path
	}
	return m
}
