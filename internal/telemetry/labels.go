package telemetry

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/internal/steady"
)

// Names are the names that exist now, for labels of metrics.
type Names struct {
	// Models, Upstreams and Tenants have the value true for each name. Models has the pools too.
	// Upstreams are replicas by id and by address.
	Models, Upstreams, Tenants map[string]bool
}

// labelSet bounds the values of a label. The first max values are admitted, in the order of their
// first use. A value leaves the set by sweep.
type labelSet struct {
	max int
	// full is set when a value was not admitted because there are max others.
	full atomic.Bool

	mu sync.RWMutex
	// admitted values; true for those whose name did not exist at the last sweep. Guarded by mu.
	admitted map[string]bool
}

// admit returns value if it is admitted, and Other if not. Invalid UTF-8 is never a label, because
// Prometheus panics on it.
func (s *labelSet) admit(value string) string {
	value = strings.ToValidUTF8(value, "?")
	s.mu.RLock()
	_, ok := s.admitted[value]
	s.mu.RUnlock()
	if ok {
		return value
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.admitted[value]; ok {
		return value
	}
	if len(s.admitted) >= s.max {
		s.full.Store(true)
		return Other
	}
	if s.admitted == nil {
		s.admitted = make(map[string]bool)
	}
	s.admitted[value] = false
	return value
}

// sweep removes and returns the values whose names do not exist. With grace it first marks them,
// and removes them when the next sweep does not find them either.
func (s *labelSet) sweep(exists map[string]bool, grace bool) (removed []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for value, marked := range s.admitted {
		switch {
		case exists[value]:
			s.admitted[value] = false
		case grace && !marked:
			s.admitted[value] = true
		default:
			delete(s.admitted, value)
			removed = append(removed, value)
		}
	}
	if len(removed) > 0 {
		s.full.Store(false)
	}
	return removed
}

func (s *labelSet) remove(match func(value string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for value := range s.admitted {
		if match(value) {
			delete(s.admitted, value)
		}
	}
	s.full.Store(false)
}

// vector is a metric with labels, of any type.
type vector interface {
	prometheus.Collector
	DeletePartialMatch(labels prometheus.Labels) int
}

// sweepEvery bounds how often a full label set is swept between two scrapes.
const sweepEvery = time.Second

// sweep deletes the series of models, replicas and tenants that exist no more, which would
// otherwise stay and keep new ones out. With grace a series is in one more scrape after its name
// has gone, so that its last increase is seen.
func (m *Metrics) sweep(grace bool) {
	if m.config.Names == nil {
		return
	}
	names := m.config.Names()
	m.sweeping.Lock()
	defer m.sweeping.Unlock()
	m.cache.forget() // a series or a label that it has may go
	for _, model := range m.models.sweep(names.Models, grace) {
		m.delete("model", model)
		m.perTenant.forgetPairs(model, true)
		m.streams.gaps.forget(model)
	}
	for _, upstream := range m.upstreams.sweep(names.Upstreams, grace) {
		m.delete("upstream", upstream)
	}
	for _, tenant := range m.tenants.sweep(names.Tenants, grace) {
		m.delete("tenant", tenant)
		m.perTenant.forgetPairs(tenant, false)
	}
}

func (m *Metrics) delete(label, value string) {
	for _, v := range m.vectors {
		v.DeletePartialMatch(prometheus.Labels{label: value})
	}
}

// sweepIfFull makes room when a name was not admitted. The request that noticed it is counted as
// Other.
func (m *Metrics) sweepIfFull() {
	if !m.models.full.Load() && !m.upstreams.full.Load() && !m.tenants.full.Load() {
		return
	}
	last, now := m.swept.Load(), steady.Nanos(time.Now())
	if now-last >= int64(sweepEvery) && m.swept.CompareAndSwap(last, now) {
		m.sweep(false)
	}
}
