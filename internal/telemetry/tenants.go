package telemetry

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/internal/request"
)

// defaultMaxPairs bounds the pairs of a model and a tenant that have series of their own. The
// series of a pair are about fifty.
const defaultMaxPairs = 2000

// tenantMetrics are the metrics with the labels model and tenant, and the twins of the metrics of
// streams and of the scheduler that have no label for them.
type tenantMetrics struct {
	pairs labelSet

	requests, rejected, disconnects, retries *prometheus.CounterVec
	ttft, wait                               *prometheus.HistogramVec
	batch                                    *prometheus.HistogramVec // by model alone
}

func newTenantMetrics(r prometheus.Registerer) *tenantMetrics {
	f := &tenantMetrics{
		pairs: labelSet{max: defaultMaxPairs},
		requests: counter("sluice_tenant_requests_total",
			"Finished requests by model, tenant and HTTP status. Status 499 means that the client disconnected before an answer.",
			"model", "tenant", "code"),
		rejected: counter("sluice_tenant_rejected_total",
			"Requests that Sluice itself answered with an error, by model, tenant and error code (rate_limited, queue_full and so on).",
			"model", "tenant", "reason"),
		disconnects: counter("sluice_tenant_stream_disconnects_total",
			"Streamed responses that were cut off, by model, tenant and cause. The causes are those of stream_disconnects_total.",
			"model", "tenant", "cause"),
		retries: counter("sluice_tenant_stream_retries_total",
			"Attempts that were repeated on another replica, by model, tenant and reason. The reasons are those of stream_retries_total.",
			"model", "tenant", "reason"),
		ttft: histogram("sluice_tenant_ttft_seconds",
			"Time from the receipt of a request for a stream to its first token, as stream_ttft_seconds, by model and tenant.",
			shortBuckets(), "model", "tenant"),
		wait: histogram("sluice_tenant_queue_wait_seconds",
			"Time that requests waited before they were sent to a replica, by model and tenant. A request is counted when it has ended.",
			shortBuckets(), "model", "tenant"),
		batch: histogram("sluice_batch_size",
			"Requests on a replica of the model at each dispatch to it, including the dispatched one. The phases are those of scheduler_batch_size.",
			batchBuckets(), "model", "phase"),
	}
	for _, v := range f.vectors() {
		r.MustRegister(v)
	}
	return f
}

func (f *tenantMetrics) vectors() []vector {
	return []vector{f.requests, f.rejected, f.disconnects, f.retries, f.ttft, f.wait, f.batch}
}

// observe counts a request that has ended. model is a label, and to are the series of the request.
// disconnect is the cause for which its stream was cut off, empty if it was not.
func (f *tenantMetrics) observe(model string, to *series, q *request.Summary, disconnect string) {
	to.tenantRequests.of(f.requests, model, to.tenant, to.status).Inc()
	if disconnect != "" {
		f.disconnects.WithLabelValues(model, to.tenant, disconnect).Inc()
	}
	if q.Replica != "" {
		to.wait.of(f.wait, model, to.tenant).Observe(q.Waited.Seconds())
	}
}

// tenant returns the label value of a tenant beside the label of a model. It is Other for a tenant,
// or a pair of both, beyond the bound. It is empty for requests whose key is not valid.
func (m *Metrics) tenant(model, name string) string {
	switch {
	case name == "":
		return ""
	case m.tenants.admit(name) == Other, m.perTenant.pairs.admit(model+"\x00"+name) == Other:
		return Other
	}
	return name
}

// Loaded observes how long a replica of a model took from its start until it was ready.
func (m *Metrics) Loaded(model string, took time.Duration) {
	if m == nil {
		return
	}
	m.sweeping.RLock()
	defer m.sweeping.RUnlock()
	m.loads.WithLabelValues(m.model(model)).Observe(took.Seconds())
}

// forgetPairs drops the pairs with a value that has left its label set. before is true for a model,
// which is the first part of a pair.
func (f *tenantMetrics) forgetPairs(value string, before bool) {
	f.pairs.remove(func(pair string) bool {
		model, tenant, _ := strings.Cut(pair, "\x00")
		return before && model == value || !before && tenant == value
	})
}
