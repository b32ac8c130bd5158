package sim

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are the engine's metrics under vLLM's names (vllm/v1/metrics/loggers.py), so that a
// scraper of vLLM can scrape this engine. Times are simulated times.
type metrics struct {
	registry *prometheus.Registry

	cacheQueries, cacheHits          prometheus.Counter
	promptTokens, cachedTokens       prometheus.Counter
	generatedTokens                  prometheus.Counter
	finishedByStop, finishedByLength prometheus.Counter
	aborted, preemptions             prometheus.Counter
	firstToken, perToken             prometheus.Observer
	total, queue                     prometheus.Observer
	prefill, decode                  prometheus.Observer
	promptSize, computedSize         prometheus.Observer
	outSize                          prometheus.Observer
}

// newMetrics registers all metrics. load is called at every scrape.
func newMetrics(c Config, load func() loadSnapshot) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	labels := prometheus.Labels{"model_name": c.Models[0], "engine": "0"}
	reg := prometheus.WrapRegistererWith(labels, m.registry)

	gauge := func(name, help string, value func(loadSnapshot) float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 { return value(load()) }))
	}
	gauge("vllm:num_requests_running", "Number of requests in model execution batches.",
		func(l loadSnapshot) float64 { return float64(l.running) })
	gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.",
		func(l loadSnapshot) float64 { return float64(l.waiting) })
	gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
		func(l loadSnapshot) float64 { return l.kvUsage })
	gauge("sim:max_num_seqs", "Number of requests that are worked on at once.",
		func(loadSnapshot) float64 { return float64(c.MaxNumSeqs) })
	registerCacheConfig(reg, c)

	counter := func(name, help string) prometheus.Counter {
		v := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(v)
		return v
	}
	m.cacheQueries = counter("vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.")
	m.cacheHits = counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.")
	m.promptTokens = counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.")
	m.cachedTokens = counter("vllm:prompt_tokens_cached_total", "Number of cached prompt tokens (local + external).")
	m.generatedTokens = counter("vllm:generation_tokens_total", "Number of generation tokens processed.")
	m.preemptions = counter("vllm:num_preemptions_total", "Cumulative number of preemptions from the engine.")
	success := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total",
		Help: "Count of successfully processed requests."}, []string{"finished_reason"})
	reg.MustRegister(success)
	m.finishedByStop, m.finishedByLength, m.aborted = success.WithLabelValues("stop"), success.WithLabelValues("length"), success.WithLabelValues("abort")
	m.registerHistograms(reg)
	return m
}

// registerCacheConfig registers the size of the cache in labels, as vLLM does.
func registerCacheConfig(reg prometheus.Registerer, c Config) {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "vllm:cache_config_info",
		Help: "Information of the LLMEngine CacheConfig",
		ConstLabels: prometheus.Labels{
			"block_size":            strconv.Itoa(c.BlockSize),
			"enable_prefix_caching": strconv.FormatBool(c.CacheTokens > 0),
			"num_gpu_blocks":        strconv.Itoa(max(c.CacheTokens, 0) / c.BlockSize),
			"kv_cache_size_tokens":  strconv.Itoa(max(c.CacheTokens, 0) / c.BlockSize * c.BlockSize),
		},
	})
	info.Set(1)
	reg.MustRegister(info)
}

// registerHistograms registers the histograms, with the buckets of vLLM.
func (m *metrics) registerHistograms(reg prometheus.Registerer) {
	histogram := func(name, help string, buckets []float64) prometheus.Observer {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		reg.MustRegister(h)
		return h
	}
	first := []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	each := []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	whole := []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	size := []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
	m.firstToken = histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", first)
	m.perToken = histogram("vllm:time_per_output_token_seconds", "Histogram of time per output token in seconds.", each)
	m.total = histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", whole)
	m.queue = histogram("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", whole)
	m.prefill = histogram("vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", whole)
	m.decode = histogram("vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", whole)
	m.promptSize = histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", size)
	m.computedSize = histogram("vllm:request_prefill_kv_computed_tokens",
		"Histogram of new KV tokens computed during prefill (excluding cached tokens).", size)
	m.outSize = histogram("vllm:request_generation_tokens", "Number of generation tokens processed.", size)
}

// observePrefill records the end of a prefill, which is also the time of the first token.
func (m *metrics) observePrefill(q *sequence, at time.Time) {
	m.cacheQueries.Add(float64(q.prompt.tokens))
	m.cacheHits.Add(float64(q.cached))
	m.promptTokens.Add(float64(q.prompt.tokens))
	m.cachedTokens.Add(float64(q.cached))
	m.computedSize.Observe(float64(q.prompt.tokens - q.cached))
	m.promptSize.Observe(float64(q.prompt.tokens))
	m.queue.Observe(q.admittedAt.Sub(q.arrivedAt).Seconds())
	m.prefill.Observe(at.Sub(q.admittedAt).Seconds())
	if q.limit > 0 {
		m.firstToken.Observe(at.Sub(q.arrivedAt).Seconds())
	}
}

// observeStep records a step that gave each of n sequences a token.
func (m *metrics) observeStep(n int, took time.Duration) {
	m.generatedTokens.Add(float64(n))
	for range n {
		m.perToken.Observe(took.Seconds())
	}
}

// observeFinish records a sequence that is complete.
func (m *metrics) observeFinish(q *sequence, at time.Time) {
	if q.truncated {
		m.finishedByLength.Inc()
	} else {
		m.finishedByStop.Inc()
	}
	m.total.Observe(at.Sub(q.arrivedAt).Seconds())
	if q.limit > 0 {
		m.decode.Observe(at.Sub(q.firstTokenAt).Seconds())
		m.outSize.Observe(float64(q.limit))
	}
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
