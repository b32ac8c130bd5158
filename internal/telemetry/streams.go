package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
)

// stream holds the measurements of a finished streamed response. An unknown value is zero and is
// not counted.
type stream struct {
	// Route is request.RouteNative or request.RouteManaged.
	Route string
	// TTFT is the time from the receipt of the request to the first token.
	TTFT time.Duration
	// Held is the part of TTFT for which the request was held before it was sent to a replica.
	Held time.Duration
	// Decode is the time from the first token to the last.
	Decode time.Duration
	// Usage is the token count of the engine, or an estimate of it; see request.Summary.
	Usage request.Usage
	// Gaps are the times between the tokens of a native stream that Envoy has read; see
	// request.Reading.
	Gaps map[int]int64
}

// streamOf returns the measurements of a request's stream. They are zero if it has none, or if no
// engine answered. The first byte of a native stream that Envoy has not read counts as its first
// token. Engines send their headers early, but the first event with the first token.
func streamOf(q *request.Summary) stream {
	if !q.Stream || q.Source != headers.SourceEngine {
		return stream{}
	}
	s := stream{Route: q.Route, TTFT: q.TTFT(), Held: q.Waited, Decode: q.Decode, Usage: q.Usage()}
	if q.Route == request.RouteManaged {
		return s
	}
	if q.Status >= 300 {
		return stream{}
	}
	if q.Reading != nil {
		s.Gaps = q.Reading.Gaps
	} else if q.FirstByte > 0 {
		s.Decode = max(0, q.LastByte-q.FirstByte)
	}
	return s
}

// leastDecode is the shortest Decode that tells how fast an engine is. Tokens that come within less
// have waited together: in an engine that sends several at once, on their way, or for a busy
// gateway.
const leastDecode = time.Millisecond

// perToken returns the mean time per token after the first; 0 if it is not known.
func (s stream) perToken() time.Duration {
	if gaps := s.Usage.Completion - 1; gaps > 0 && s.Decode >= leastDecode {
		return s.Decode / time.Duration(gaps)
	}
	return 0
}

// streamMetrics are the metrics of streams, and of the batches of requests on a replica.
type streamMetrics struct {
	ttft, cached, rate, perToken, gap, batch *prometheus.HistogramVec
	gaps                                     *gapGauge
	// prefill and decode are the series of batch.
	prefill, decode prometheus.Observer
}

func newStreamMetrics(r prometheus.Registerer) *streamMetrics {
	f := &streamMetrics{
		ttft: histogram("stream_ttft_seconds",
			"Time from the receipt of a request for a stream to its first token, including all waits. For native streams outside the sample that Envoy "+
				"reads, the first byte of the response's body stands for the first token.", shortBuckets(), "model", "route"),
		cached: histogram("sluice_ttft_seconds",
			"stream_ttft_seconds of the streams whose engine reported how many tokens of the prompt were in its cache. cached is true if at least "+
				"half of them were.", shortBuckets(), "model", "cached"),
		rate: histogram("stream_tokens_per_second",
			"Tokens per second of one stream, by the engine's count. Without one, by its events if the stream was read, else by an estimate from its "+
				"bytes. prefill: the prompt tokens that were not known to be cached, divided by the time from the dispatch to the first token. decode: the "+
				"tokens after the first, divided by the time from the first token to the last. A stream whose tokens all came within a millisecond has none.",
			rateBuckets(), "model", "phase"),
		perToken: histogram("sluice_time_per_output_token_seconds",
			"Mean time of a token after the first of one stream, by the replica that served it. It covers the streams that the phase decode of "+
				"stream_tokens_per_second covers.",
			tokenBuckets(), "model", "upstream"),
		gap: histogram("sluice_inter_token_seconds",
			"Time between two tokens of a stream, each one measured, in a sample of the streams. The sample has the first of four managed "+
				"streams of a model, and one in 64 native ones, at most one a second for each model.", gapBuckets(), "model", "route"),
		batch: histogram("scheduler_batch_size",
			"Requests on a replica at each dispatch to it, including the dispatched one. prefill: those without a token yet, as known for a model "+
				"with a limit on prefill, else as predicted from the first tokens so far. decode: all others.",
			batchBuckets(), "phase"),
		gaps: newGapGauge(),
	}
	f.prefill, f.decode = f.batch.WithLabelValues(phasePrefill), f.batch.WithLabelValues(phaseDecode)
	r.MustRegister(f.ttft, f.cached, f.rate, f.perToken, f.gap, f.batch, f.gaps)
	return f
}

func (f *streamMetrics) vectors() []vector {
	return []vector{f.ttft, f.cached, f.rate, f.perToken, f.gap, f.batch}
}

// Gaps counts times between two tokens of a managed stream. The relay may report a random share of
// the streams only.
func (m *Metrics) Gaps(model string, gaps ...time.Duration) {
	if m == nil {
		return
	}
	m.sweeping.RLock()
	defer m.sweeping.RUnlock()
	model = m.model(model)
	m.streams.gaps.measured(model, gaps)
	observer := m.streams.gap.WithLabelValues(model, request.RouteManaged)
	for _, gap := range gaps {
		observer.Observe(gap.Seconds())
	}
}

// Dispatched observes the requests on a replica of a model to which a request was just sent, that
// one included: those without a token yet, and all others.
func (m *Metrics) Dispatched(model string, prefill, decode int) {
	if m == nil {
		return
	}
	m.sweeping.RLock()
	defer m.sweeping.RUnlock()
	m.streams.prefill.Observe(float64(prefill))
	m.streams.decode.Observe(float64(decode))
	model = m.model(model)
	to := m.cache.find(seriesKey{model: model, source: sourceDispatch}, func() *series { return new(series) })
	to.batchPrefill.of(m.perTenant.batch, model, phasePrefill).Observe(float64(prefill))
	to.batchDecode.of(m.perTenant.batch, model, phaseDecode).Observe(float64(decode))
}

// observe counts a stream that has had its first token under the label of its model. to are the
// series of its request.
func (f *streamMetrics) observe(model string, to *series, s stream) {
	to.ttft.of(f.ttft, model, s.Route).Observe(s.TTFT.Seconds())
	u := s.Usage // all zero if it is not known
	if u.CachedKnown && u.Prompt > 0 {
		f.cached.WithLabelValues(model, strconv.FormatBool(2*u.Cached >= u.Prompt)).Observe(s.TTFT.Seconds())
	}
	if fresh, prefill := u.Prompt-u.Cached, s.TTFT-s.Held; fresh > 0 && prefill > 0 {
		to.prefillRate.of(f.rate, model, phasePrefill).Observe(float64(fresh) / prefill.Seconds())
	}
	gaps := max(0, u.Completion-1)
	if each := s.perToken(); each > 0 {
		to.decodeRate.of(f.rate, model, phaseDecode).Observe(float64(gaps) / s.Decode.Seconds())
		to.perToken.of(f.perToken, model, to.upstream).Observe(each.Seconds())
	}
	f.gaps.finished(model, s.Route == request.RouteNative, gaps, s.Gaps)
	if len(s.Gaps) > 0 {
		gap := f.gap.WithLabelValues(model, s.Route)
		for class, n := range s.Gaps {
			for range n {
				gap.Observe(request.GapLength(class))
			}
		}
	}
}
