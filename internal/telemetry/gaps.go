package telemetry

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The window of stream_inter_token_p95_seconds is gapSlots slots of gapSlot each. The newest slot
// is not complete yet.
const (
	gapSlot  = 10 * time.Second
	gapSlots = 6
)

// Gaps are counted in classes whose bounds grow by gapGrowth. So a percentile is at most 1 % wrong,
// and the size of a window does not depend on the traffic: about a thousand classes cover gaps up
// to an hour.
const (
	gapGrowth   = 1.02
	shortestGap = 10 * time.Microsecond
)

// gapGauge is the metric stream_inter_token_p95_seconds: per model, the 95th percentile of the time
// between two tokens over the last minute.
type gapGauge struct {
	desc  *prometheus.Desc
	began time.Time

	mu sync.Mutex
	// windows by the label of the model, for models with recent gaps; guarded by mu
	windows map[string]*gapWindow
}

// gapWindow holds the gaps of one model.
type gapWindow [gapSlots]struct {
	// number is the index of the slot since the start of the gauge. A slot with an old number is
	// emptied before use.
	number int64
	// measured and estimated count gaps by class.
	measured, estimated map[int]int64
}

func newGapGauge() *gapGauge {
	return &gapGauge{
		desc: prometheus.NewDesc("stream_inter_token_p95_seconds",
			"95th percentile of the time between two tokens of a stream over the last minute, by model. The gauge is absent for a model whose "+
				"streams did not report tokens. Managed streams are measured. For native streams, every gap is estimated as the time from the first byte "+
				"to the last, divided by the engine's token count less one. Estimates are used only if nothing was measured.",
			[]string{"model"}, nil),
		began:   time.Now(),
		windows: map[string]*gapWindow{},
	}
}

// measured counts one gap that the relay has measured.
func (g *gapGauge) measured(model string, gap time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w, i := g.slotLocked(model)
	w[i].measured[gapClass(gap)]++
}

// estimated counts the gaps of a whole stream, all with the same length.
func (g *gapGauge) estimated(model string, gap time.Duration, gaps int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w, i := g.slotLocked(model)
	w[i].estimated[gapClass(gap)] += gaps
}

// forget drops the gaps of a model.
func (g *gapGauge) forget(model string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.windows, model)
}

// slotLocked returns the window of the model and the index of the current slot.
func (g *gapGauge) slotLocked(model string) (w *gapWindow, i int64) {
	w = g.windows[model]
	if w == nil {
		w = new(gapWindow)
		g.windows[model] = w
	}
	number := g.slotNumber()
	i = number % gapSlots
	if slot := &w[i]; slot.number != number || slot.measured == nil {
		slot.number, slot.measured, slot.estimated = number, map[int]int64{}, map[int]int64{}
	}
	return w, i
}

func (g *gapGauge) slotNumber() int64 { return int64(time.Since(g.began) / gapSlot) }

// p95 returns the 95th percentile of the slots since oldest. ok is false if they have no gap.
func (w *gapWindow) p95(oldest int64) (seconds float64, ok bool) {
	measured, estimated := map[int]int64{}, map[int]int64{}
	for i := range w {
		if w[i].number < oldest {
			continue
		}
		for class, n := range w[i].measured {
			measured[class] += n
		}
		for class, n := range w[i].estimated {
			estimated[class] += n
		}
	}
	if len(measured) > 0 {
		return percentile95(measured), true
	}
	return percentile95(estimated), len(estimated) > 0
}

// percentile95 returns the shortest gap that is at least as long as 95 % of all gaps, in seconds.
func percentile95(counts map[int]int64) float64 {
	var all, passed int64
	for _, n := range counts {
		all += n
	}
	for _, class := range slices.Sorted(maps.Keys(counts)) {
		if passed += counts[class]; float64(passed) >= 0.95*float64(all) {
			return shortestGap.Seconds() * math.Pow(gapGrowth, float64(class))
		}
	}
	return 0
}

// gapClass returns the class of a gap.
func gapClass(gap time.Duration) int {
	return int(math.Round(math.Log(float64(max(gap, shortestGap))/float64(shortestGap)) / math.Log(gapGrowth)))
}

// Describe implements prometheus.Collector.
func (g *gapGauge) Describe(out chan<- *prometheus.Desc) { out <- g.desc }

// Collect implements prometheus.Collector.
func (g *gapGauge) Collect(out chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	oldest := g.slotNumber() - gapSlots + 1
	for model, w := range g.windows {
		p95, ok := w.p95(oldest)
		if !ok {
			delete(g.windows, model)
			continue
		}
		out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, p95, model)
	}
}
