package telemetry

import (
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
	counts request.GapCounts
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

// measured counts gaps of a managed stream.
func (g *gapGauge) measured(model string, gaps []time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w, i := g.slotLocked(model)
	for _, gap := range gaps {
		w[i].counts.Measured(request.GapClass(gap))
	}
}

// finished counts a stream that has ended with so many gaps. If it is native, read are those of
// its gaps that were measured; those of a managed one were counted before.
func (g *gapGauge) finished(model string, native bool, gaps int64, read map[int]int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w, i := g.slotLocked(model)
	w[i].counts.Finished(native, gaps, read)
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
		slot.number, slot.counts = number, request.GapCounts{}
	}
	return w, i
}

func (g *gapGauge) slotNumber() int64 { return int64(time.Since(g.began) / gapSlot) }

// p95 returns the 95th percentile of the slots since oldest. ok is false if they have no gap.
func (w *gapWindow) p95(oldest int64) (seconds float64, ok bool) {
	var counts request.GapCounts
	for i := range w {
		if w[i].number >= oldest {
			w[i].counts.AddTo(&counts)
		}
	}
	weights := request.GapWeights{}
	counts.Weigh(weights)
	if quantiles, ok := weights.Quantiles(0.95); ok {
		return quantiles[0], true
	}
	return 0, false
}

// isEmpty reports whether no slot since oldest has a stream.
func (w *gapWindow) isEmpty(oldest int64) bool {
	for i := range w {
		if w[i].number >= oldest && !w[i].counts.IsEmpty() {
			return false
		}
	}
	return true
}

func (g *gapGauge) Describe(out chan<- *prometheus.Desc) { out <- g.desc }

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
