package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Buckets of the histograms. They include the usual latency targets: 150 ms and 800 ms to the first
// token, 35 ms between two tokens. The share below a target is exact only if the target is a bucket
// bound.

// shortBuckets suit waits and first bytes: 1 ms to 5 min.
func shortBuckets() []float64 {
	return []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 0.8, 1, 2.5, 5, 10, 30, 60, 300}
}

// longBuckets suit whole responses: 5 ms to 30 min.
func longBuckets() []float64 {
	return []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800}
}

// tokenBuckets suit the time of one token: 1 ms to 2 s.
func tokenBuckets() []float64 {
	return []float64{0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2}
}

// gapBuckets suit the time between two tokens of a stream, stalls included: 1 ms to 30 s.
func gapBuckets() []float64 { return append(tokenBuckets(), 5, 10, 30) }

// rateBuckets suit tokens per second of one stream, from decode of a large model on a CPU to
// prefill of a small one on a GPU. 28.57 is one token per 35 ms.
func rateBuckets() []float64 {
	return []float64{1, 2.5, 5, 10, 20, 28.57, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000}
}

// ratioBuckets suit a measured value divided by a predicted one.
func ratioBuckets() []float64 {
	return []float64{0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10}
}

// batchBuckets suit requests on one replica: engines take 256 or 1024 at most unless they are told
// otherwise.
func batchBuckets() []float64 {
	return append([]float64{0}, prometheus.ExponentialBuckets(1, 2, 11)...)
}
