package telemetry

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/internal/request"
)

// maxSeries bounds seriesCache.all, which is emptied when it is full.
const maxSeries = 4096

// seriesKey says what the labels of a request's series depend on. model is a label; the others are
// what the request has.
type seriesKey struct {
	model, tenant, upstream, source, route string
	status                                 int
}

// sourceDispatch is the source in the key of what is counted at a dispatch. No request has it, so
// that a key never has the series of both.
const sourceDispatch = "dispatch"

// series are the series that a request counts in. A search by labels costs several times what it
// costs to count, so the series are searched once for all requests with the same key. A series is
// made when something is first counted in it.
type series struct {
	// tenant, upstream and status are labels.
	tenant, upstream, status string

	requests, tenantRequests          one[prometheus.Counter]
	prompt, cached, completion        one[prometheus.Counter]
	duration, firstByte, upstreamTime one[prometheus.Observer]
	wait, tenantTTFT                  one[prometheus.Observer]
	ttft, prefillRate, decodeRate     one[prometheus.Observer]
	perToken                          one[prometheus.Observer]
	batchPrefill, batchDecode         one[prometheus.Observer]
}

// seriesCache has series by their key. The zero value is empty.
type seriesCache struct {
	mu sync.RWMutex
	// all is guarded by mu.
	all map[seriesKey]*series
}

// find returns the series of a key, which made makes if there are none.
func (c *seriesCache) find(k seriesKey, made func() *series) *series {
	c.mu.RLock()
	s := c.all[k]
	c.mu.RUnlock()
	if s != nil {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil || len(c.all) >= maxSeries {
		c.all = map[seriesKey]*series{}
	}
	if c.all[k] == nil {
		c.all[k] = made()
	}
	return c.all[k]
}

// forget drops all series. The caller holds Metrics.sweeping, so that nobody uses them.
func (c *seriesCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = nil
}

// seriesOf returns the series of a request that has ended. model is the label. sweeping is held for
// reading.
func (m *Metrics) seriesOf(model string, q *request.Summary) *series {
	upstream := upstreamOf(q)
	return m.cache.find(seriesKey{model, q.Tenant, upstream, q.Source, q.Route, q.Status}, func() *series {
		s := &series{tenant: m.tenant(model, q.Tenant), status: statusLabel(q.Status)}
		if upstream != "" {
			s.upstream = m.upstreams.admit(upstream)
		}
		return s
	})
}

// one is a series of a vector, once there is one.
type one[T any] struct{ found atomic.Pointer[T] }

// of returns the series of a vector with these labels, which are always the same.
func (o *one[T]) of(v interface{ WithLabelValues(labels ...string) T }, labels ...string) T {
	if found := o.found.Load(); found != nil {
		return *found
	}
	made := v.WithLabelValues(slices.Clone(labels)...) // a call by an interface would keep labels on the heap
	o.found.Store(&made)
	return made
}
