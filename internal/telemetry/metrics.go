package telemetry

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
)

// MetricsConfig is the configuration of Metrics. The zero value counts requests and has no gauges.
type MetricsConfig struct {
	// Version is the version of Sluice, for sluice_build_info.
	Version string
	// Gauges is called at every scrape. It must be quick and safe for concurrent use. If Gauges is
	// nil, there are no gauges.
	Gauges func() Gauges
	// KnownModel reports whether a model or a pool has this name. All other names are counted as
	// "other", because clients choose them. KnownModel is called once or twice for every request.
	// If it is nil, every name is known.
	KnownModel func(name string) bool
	// Names returns the names that exist now. It is called at every scrape, and at most once a
	// second when a bound is reached. The series of a name that has gone are in one more scrape,
	// and are then deleted. If it is nil, no series is ever deleted.
	Names func() Names
	// MaxModels and MaxUpstreams bound the values of the labels model and upstream at one time.
	// Further values are counted as "other". 0 means 500 and 1000.
	MaxModels, MaxUpstreams int
}

// Gauges is the state of the gateway at one moment.
type Gauges struct {
	// Envoy is the version of the connected Envoy. It is empty while none is connected.
	Envoy string
	// XDSNacks counts the configurations that Envoys have rejected since Sluice started.
	XDSNacks uint64
	// Envoys is how many Envoys get their configuration from this gateway.
	Envoys int
	Models []ModelGauges
	// Pools holds the models of each pool by its name.
	Pools   map[string][]string
	Tenants []TenantGauges
	// Shared is the state that several gateways share. It is nil for a gateway without shared
	// state.
	Shared *SharedGauges
	// Routing is what gateways have told each other for routing. It is nil without Redis.
	Routing *RoutingGauges
	// Conditions are the conditions of the gateway.
	Conditions []condition.Condition
	// Budgets are what the gateway may use at most.
	Budgets []BudgetGauges
	// Spending are the budgets of tenants and keys.
	Spending []SpendingGauges
	// GPUs are the GPUs of all nodes whose memory is known.
	GPUs []GPUGauges
	// Engines are what the engines of replicas say of themselves.
	Engines []EngineGauges
	// Restarts are the replicas of all models with how often each was started again.
	Restarts []RestartGauges
}

// RestartGauges is how often a replica was started after its first start.
type RestartGauges struct {
	Model, Replica string
	Count          int
}

// BudgetGauges is one budget and what is used of it: connections, or bytes.
type BudgetGauges struct {
	Name        string
	Used, Limit int64
	// Refused counts the connections or requests that did not fit.
	Refused uint64
}

// SpendingGauges is a budget of a tenant, or of one of its keys, and what is used of it.
type SpendingGauges struct {
	Tenant, Key, Per, Of string
	// Used, Soft and Hard are in tokens or in the currency of the prices. 0 is no bound.
	Used, Soft, Hard float64
}

// GPUGauges is the memory of one GPU.
type GPUGauges struct {
	UUID string
	// Total and Used are in bytes. Used includes all processes.
	Total, Used int64
}

// EngineGauges is what the engine of a replica says of itself. A negative number is not told.
type EngineGauges struct {
	Model, Replica string
	// Running and Waiting are numbers of requests, whoever has sent them.
	Running, Waiting int
	// KVUsage is the used share of the key-value cache, from 0 to 1.
	KVUsage float64
}

// TenantGauges is the state of one tenant.
type TenantGauges struct {
	Name string
	// Running counts the tenant's admitted requests and tasks. Queued counts its waiting requests.
	Running, Queued int
}

// SharedGauges is the condition of the state that several gateways share.
type SharedGauges struct {
	// Up tells whether Redis answers. Gateways counts the gateways that are known to be alive.
	Up       bool
	Gateways int
	// Errors counts the calls to the state that failed or timed out.
	Errors uint64
}

// RoutingGauges counts what gateways have told each other for routing.
type RoutingGauges struct {
	// Messages are by result: sent, failed, received, and ignored. Placements are by result: sent,
	// received, and dropped.
	Messages, Placements map[string]uint64
	SentBytes            uint64
}

// ModelGauges is the state of one model.
type ModelGauges struct {
	Name string
	// InFlight counts the requests that replicas serve. Queued counts the waiting requests.
	InFlight, Queued int
	// Replicas counts the replicas by state.
	Replicas map[string]int
	// Launched tells that the gateway starts the model's replicas. Desired is how many it wants.
	Launched bool
	Desired  int
}

// Metrics are Sluice's Prometheus metrics, on a registry of their own. Make them with NewMetrics.
// The methods are safe for concurrent use and do nothing on a nil *Metrics.
type Metrics struct {
	config    MetricsConfig
	models    labelSet
	upstreams labelSet
	tenants   labelSet
	reasons   labelSet
	registry  *prometheus.Registry
	// vectors are all metrics with labels.
	vectors []vector
	// sweeping is held to delete series, and for reading to add to series by a label of a labelSet,
	// so that no series outlives its label.
	sweeping sync.RWMutex
	// swept is when sweepIfFull has swept, by steady.Nanos; 0: never.
	swept atomic.Int64

	requests    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	firstByte   *prometheus.HistogramVec
	upstream    *prometheus.HistogramVec
	wait        *prometheus.HistogramVec
	tokens      *prometheus.CounterVec
	rejected    *prometheus.CounterVec
	retries     *prometheus.CounterVec
	disconnects *prometheus.CounterVec
	reloads     *prometheus.CounterVec
	loads       *prometheus.HistogramVec
	// lastReload is 1 if the last reload succeeded. reloadedAt is when one did last.
	lastReload, reloadedAt prometheus.Gauge

	// waited is the series of wait.
	waited prometheus.Observer

	// cache has series that requests count in.
	cache     seriesCache
	perTenant *tenantMetrics
	streams   *streamMetrics
	routes    *routeMetrics
}

// Other is the label value for all values beyond the cap of a label.
const Other = "other"

// The phases of a request at an engine. The time that a request waits counts as waiting for
// prefill, because Sluice schedules whole requests and the engine schedules decode steps.
const (
	phasePrefill = "prefill"
	phaseDecode  = "decode"
)

// The kinds of tokens.
const (
	kindPrompt     = "prompt"
	kindCached     = "cached"
	kindCompletion = "completion"
)

const (
	defaultMaxModels    = 500
	defaultMaxUpstreams = 1000
	// maxReasons is more than there are error codes.
	maxReasons = 64
)

// NewMetrics returns Metrics that count from zero.
func NewMetrics(c MetricsConfig) *Metrics {
	if c.MaxModels <= 0 {
		c.MaxModels = defaultMaxModels
	}
	if c.MaxUpstreams <= 0 {
		c.MaxUpstreams = defaultMaxUpstreams
	}
	m := &Metrics{
		config:    c,
		registry:  prometheus.NewRegistry(),
		models:    labelSet{max: c.MaxModels},
		tenants:   labelSet{max: c.MaxModels},
		upstreams: labelSet{max: c.MaxUpstreams},
		reasons:   labelSet{max: maxReasons},
	}
	m.makeVectors()
	m.streams, m.routes, m.perTenant = newStreamMetrics(m.registry), newRouteMetrics(m.registry), newTenantMetrics(m.registry)
	m.vectors = append(m.vectors, m.requests, m.duration, m.firstByte, m.upstream, m.wait, m.tokens, m.rejected, m.retries, m.disconnects,
		m.reloads, m.loads)
	for _, v := range m.vectors {
		m.registry.MustRegister(v)
	}
	m.vectors = slices.Concat(m.vectors, m.streams.vectors(), m.routes.vectors(), m.perTenant.vectors())
	m.registry.MustRegister(newGaugeCollector(m), m.lastReload, m.reloadedAt, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.startAtZero()
	return m
}

func (m *Metrics) makeVectors() {
	m.requests = counter("sluice_requests_total",
		"Finished requests by HTTP status and by the side that answered, gateway or engine. Status 499 means that the client disconnected "+
			"before an answer.",
		"model", "code", "source")
	m.duration = histogram("sluice_request_duration_seconds",
		"Time from Envoy's receipt of a request to the end of the response.", longBuckets(), "model")
	m.firstByte = histogram("sluice_first_byte_seconds",
		"Time from Envoy's receipt of a request to the first byte of an engine's response body. The first event of a streamed response may "+
			"carry no token.", shortBuckets(), "model")
	m.upstream = histogram("sluice_upstream_request_duration_seconds",
		"Time of a replica for a response that it finished, from the first byte sent to the replica to the last byte received from it.",
		longBuckets(), "model", "upstream")
	m.wait = histogram("scheduler_wait_time_seconds",
		"Time that requests waited before they were sent to a replica.", shortBuckets(), "phase")
	m.tokens = counter("sluice_tokens_total",
		"Tokens by kind, as the engines counted them: prompt, cached (those of prompt that were in the engine's cache) and completion. "+
			"Responses whose usage Sluice did not read are not counted.",
		"model", "tenant", "kind")
	m.rejected = counter("sluice_rejected_total",
		"Requests that Sluice itself answered with an error, by error code (rate_limited, queue_full and so on).", "model", "reason")
	m.retries = counter("stream_retries_total",
		"Attempts that were repeated on another replica, by reason: "+strings.Join(request.Reasons(), ", ")+".", "reason")
	m.disconnects = counter("stream_disconnects_total",
		"Streamed responses that were cut off, by cause: "+strings.Join(request.Causes(), ", ")+". "+
			"Native streams have only the causes client, engine, timeout and gateway.", "cause")
	m.reloads = counter("sluice_config_reloads_total",
		"Reloads of the configuration file by result, success or failure.", "result")
	m.lastReload = prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_config_last_reload_successful",
		Help: "1 if the last reload of the configuration file succeeded or none was tried, 0 if the new file was refused."})
	m.reloadedAt = prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_config_last_reload_success_timestamp_seconds",
		Help: "When the configuration in force was read, in seconds since 1970."})
	m.loads = histogram("sluice_cold_start_seconds",
		"Time that replicas took from their start until they were ready, by model.", longBuckets(), "model")
}

// startAtZero creates the series before their first event, so that rates and alerts see the first
// increase.
func (m *Metrics) startAtZero() {
	for _, cause := range request.Causes() {
		m.disconnects.WithLabelValues(cause)
	}
	for _, reason := range request.Reasons() {
		m.retries.WithLabelValues(reason)
	}
	for _, ok := range []bool{true, false} {
		m.reloads.WithLabelValues(result(ok))
	}
	m.waited = m.wait.WithLabelValues(phasePrefill)
	m.lastReload.Set(1)
	m.reloadedAt.SetToCurrentTime()
}

// Handler serves the metrics in Prometheus' text format.
func (m *Metrics) Handler() http.Handler {
	scrape := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.sweep(true)
		scrape.ServeHTTP(w, r)
	})
}

// Waited records the time that a request waited before it was sent to a replica.
func (m *Metrics) Waited(d time.Duration) {
	if m != nil {
		m.waited.Observe(d.Seconds())
	}
}

// Retried counts an attempt for a tenant that was repeated on another replica of a model, by its
// reason: request.ReasonConnect and so on.
func (m *Metrics) Retried(model, tenant, reason string) {
	if m == nil {
		return
	}
	m.sweeping.RLock()
	defer m.sweeping.RUnlock()
	m.retries.WithLabelValues(reason).Inc()
	model = m.model(model)
	m.perTenant.retries.WithLabelValues(model, m.tenant(model, tenant), reason).Inc()
}

// ConfigReloaded counts a reload of the configuration file. ok is false if the new file was
// refused.
func (m *Metrics) ConfigReloaded(ok bool) {
	if m == nil {
		return
	}
	m.reloads.WithLabelValues(result(ok)).Inc()
	if !ok {
		m.lastReload.Set(0)
		return
	}
	m.lastReload.Set(1)
	m.reloadedAt.SetToCurrentTime()
}

func result(ok bool) string {
	if ok {
		return "success"
	}
	return "failure"
}

// Finished counts a request that has ended, and its stream if it has one (see request.Subscribers).
func (m *Metrics) Finished(q request.Summary) {
	if m == nil {
		return
	}
	m.count(&q)
	m.sweepIfFull()
}

// Used counts the tokens of a request that are not counted at its end. See
// request.Summary.UsedApart.
func (m *Metrics) Used(q *request.Summary) {
	if m == nil {
		return
	}
	m.sweeping.RLock()
	model := m.model(q.Model)
	m.countTokens(model, m.seriesOf(model, q), q)
	m.sweeping.RUnlock()
	m.sweepIfFull()
}

// count adds a request that has ended to the series of its model and its replica.
func (m *Metrics) count(q *request.Summary) {
	m.sweeping.RLock()
	defer m.sweeping.RUnlock()
	model := m.model(q.Model)
	to := m.seriesOf(model, q)
	to.requests.of(m.requests, model, to.status, q.Source).Inc()
	to.duration.of(m.duration, model).Observe(q.Duration.Seconds())
	if q.Source == headers.SourceEngine {
		if q.FirstByte > 0 {
			to.firstByte.of(m.firstByte, model).Observe(q.FirstByte.Seconds())
		}
		if to.upstream != "" && q.UpstreamDuration > 0 {
			to.upstreamTime.of(m.upstream, model, to.upstream).Observe(q.UpstreamDuration.Seconds())
		}
	}
	m.routes.observe(model, q)
	cause := q.DisconnectCause()
	if !q.UsedApart {
		m.countTokens(model, to, q)
	}
	m.perTenant.observe(model, to, q, cause)
	if s := streamOf(q); s.TTFT > 0 {
		m.streams.observe(model, to, s)
		to.tenantTTFT.of(m.perTenant.ttft, model, to.tenant).Observe(s.TTFT.Seconds())
	}
	if q.Code != "" && q.Status > 0 && q.Source == headers.SourceGateway { // the status is 200 if a stream ended in an error after heartbeats
		reason := m.reasons.admit(q.Code)
		m.rejected.WithLabelValues(model, reason).Inc()
		m.perTenant.rejected.WithLabelValues(model, to.tenant, reason).Inc()
	}
	if cause != "" {
		m.disconnects.WithLabelValues(cause).Inc()
	}
}

func (m *Metrics) countTokens(model string, to *series, q *request.Summary) {
	if !q.UsageKnown {
		return
	}
	add := func(one *one[prometheus.Counter], kind string, n int64) {
		if n > 0 {
			one.of(m.tokens, model, to.tenant, kind).Add(float64(n))
		}
	}
	add(&to.prompt, kindPrompt, q.PromptTokens)
	add(&to.cached, kindCached, q.CachedTokens)
	add(&to.completion, kindCompletion, q.CompletionTokens)
}

// model returns the label value of a model. It is empty for requests that name no model.
func (m *Metrics) model(name string) string {
	if name == "" {
		return ""
	}
	if m.config.KnownModel != nil && !m.config.KnownModel(name) {
		return Other
	}
	return m.models.admit(name)
}

func upstreamOf(q *request.Summary) string {
	if q.Replica != "" {
		return q.Replica
	}
	return q.Upstream
}

// statusLabel returns the label value of a status. A request without a status gets 499, as in
// nginx.
func statusLabel(status int) string {
	switch {
	case status == 0:
		return "499"
	case status < 100 || status > 599:
		return Other
	}
	return strconv.Itoa(status)
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}
