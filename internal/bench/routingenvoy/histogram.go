package main

import (
	"context"
	"math"
	"strconv"
	"strings"
)

// predictions reads from the gateway's metrics what it predicted of the streams that have ended.
func (g *gateway) predictions(ctx context.Context) (predictions, error) {
	text, err := g.read(ctx, "/metrics")
	if err != nil {
		return predictions{}, err
	}
	median := func(name string) float64 { return histogram(string(text), name).median() }
	return predictions{
		predicted: median("sluice_route_predicted_ttft_seconds"),
		real:      median("sluice_route_ttft_seconds"),
		ratio:     median("sluice_route_ttft_ratio"),
	}, nil
}

// buckets are the upper bounds of a histogram in ascending order, and how many values are below
// each.
type buckets []struct{ bound, count float64 }

// histogram returns the histogram of that name of the only model. Without one it is empty.
func histogram(metrics, name string) buckets {
	var found buckets
	for line := range strings.Lines(metrics) {
		labels, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.HasPrefix(labels, name+"_bucket{") {
			continue
		}
		_, le, _ := strings.Cut(labels, `le="`)
		bound, err := strconv.ParseFloat(strings.TrimSuffix(le, `"`), 64) // "+Inf" is infinity
		count, err2 := strconv.ParseFloat(value, 64)
		if err == nil && err2 == nil {
			found = append(found, struct{ bound, count float64 }{bound, count})
		}
	}
	return found
}

// median returns the median, between the bounds of its bucket as Prometheus' histogram_quantile
// does. It returns 0 for an empty histogram.
func (b buckets) median() float64 {
	if len(b) == 0 || b[len(b)-1].count == 0 {
		return 0
	}
	half := b[len(b)-1].count / 2
	bound, count := 0.0, 0.0
	for _, next := range b {
		if next.count >= half {
			if math.IsInf(next.bound, 1) {
				return bound
			}
			return bound + (next.bound-bound)*(half-count)/(next.count-count)
		}
		bound, count = next.bound, next.count
	}
	return bound
}
