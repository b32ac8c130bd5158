package telemetry

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/internal/request"
)

// The window of stream_inter_token_p95_seconds is gapSlots slots of gapSlot each. The newest slot
// is not complete yet.
const (
	gapSlot  = 10 * time.Second
	gapSlots = 6
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
	// native and managed are apart, because different shares of the two are measured.
	native, managed gapCounts
}

// gapCounts are the gaps of native or of managed streams. The zero value has none.
type gapCounts struct {
	// measured counts the measured gaps by class, see request.GapClass. n is their number, all that
	// of all streams, measured or not.
	measured map[int]int64
	n, all   int64
}

func (c *gapCounts) add(class int, n int64) {
	if c.measured == nil {
		c.measured = map[int]int64{}
	}
	c.measured[class] += n
	c.n += n
}

// addTo adds the counts to sum.
func (c *gapCounts) addTo(sum *gapCounts) {
	for class, n := range c.measured {
		sum.add(class, n)
	}
	sum.all += c.all
}

func newGapGauge() *gapGauge {
	return &gapGauge{
		desc: prometheus.NewDesc("stream_inter_token_p95_seconds",
			"95th percentile of the time between two tokens of a stream over the last minute, by model. Each time is measured, in a sample of the "+
				"native streams and of the managed ones. Each of the two counts by the tokens of all its streams. Streams count when they end, managed "+
				"ones also before. Sluice omits the gauge for a model without such a stream.",
			[]string{"model"}, nil),
		began:   time.Now(),
		windows: map[string]*gapWindow{},
	}
}

// measured counts one gap of a managed stream.
func (g *gapGauge) measured(model string, gap time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w, i := g.slotLocked(model)
	w[i].managed.add(request.GapClass(gap), 1)
}

// finished counts a stream that has ended with so many gaps. If it is native, read are those of
// its gaps that were measured; those of a managed one were counted before.
func (g *gapGauge) finished(model string, native bool, gaps int64, read map[int]int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w, i := g.slotLocked(model)
	if !native {
		w[i].managed.all += gaps
		return
	}
	w[i].native.all += gaps
	for class, n := range read {
		w[i].native.add(class, n)
	}
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
	if slot := &w[i]; slot.number != number {
		slot.number, slot.native, slot.managed = number, gapCounts{}, gapCounts{}
	}
	return w, i
}

func (g *gapGauge) slotNumber() int64 { return int64(time.Since(g.began) / gapSlot) }

// p95 returns the 95th percentile of the slots since oldest. ok is false if they have no gap.
func (w *gapWindow) p95(oldest int64) (seconds float64, ok bool) {
	var native, managed gapCounts
	for i := range w {
		if w[i].number >= oldest {
			w[i].native.addTo(&native)
			w[i].managed.addTo(&managed)
		}
	}
	weights := map[int]float64{}
	for _, c := range []*gapCounts{&native, &managed} {
		for class, n := range c.measured {
			weights[class] += float64(n) * float64(max(c.all, c.n)) / float64(c.n)
		}
	}
	return percentile95(weights), len(weights) > 0
}

// isEmpty reports whether no slot since oldest has a stream.
func (w *gapWindow) isEmpty(oldest int64) bool {
	for i := range w {
		if w[i].number >= oldest && w[i].native.all+w[i].native.n+w[i].managed.all+w[i].managed.n > 0 {
			return false
		}
	}
	return true
}

// percentile95 returns the length of the shortest class such that it and all shorter ones have at
// least 95 % of the weight, in seconds.
func percentile95(weights map[int]float64) float64 {
	all, passed := 0.0, 0.0
	classes := slices.Sorted(maps.Keys(weights))
	for _, class := range classes {
		all += weights[class]
	}
	const rounding = 1e-9 // of the sums
	for _, class := range classes {
		if passed += weights[class]; passed >= (0.95-rounding)*all {
			return request.GapLength(class)
		}
	}
	return 0
}

// Describe implements prometheus.Collector.
func (g *gapGauge) Describe(out chan<- *prometheus.Desc) { out <- g.desc }

// Collect implements prometheus.Collector.
func (g *gapGauge) Collect(out chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	oldest := g.slotNumber() - gapSlots + 1
	for model, w := range g.windows {
		if w.isEmpty(oldest) {
			delete(g.windows, model)
			continue
		}
		p95, ok := w.p95(oldest)
		if !ok {
			continue
		}
		out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, p95, model)
	}
}
