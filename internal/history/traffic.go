package history

import (
	"math"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/request"
)

// Traffic counts the requests that have ended since the last sample. Make it with NewTraffic. Its
// methods are safe for concurrent use. A request takes one lock of its model for less than a
// microsecond, after its end.
type Traffic struct {
	known func(model string) bool

	mu sync.RWMutex
	// models by name; guarded by mu. others counts the requests that are for no model of these.
	models map[string]*counts
	others counts
	taken  time.Time
}

// NewTraffic returns a Traffic. known reports whether a model has this name: others count in the
// total only, because clients choose their names.
func NewTraffic(known func(model string) bool) *Traffic {
	return &Traffic{known: known, models: map[string]*counts{}, taken: time.Now()}
}

// counts is what is counted of one model.
type counts struct {
	mu sync.Mutex
	figures
}

// figures are sums, and times by their class.
type figures struct {
	requests, errors, tokens int64
	ttft                     histogram
	gaps                     request.GapCounts
}

// Finished counts a request that has ended.
func (t *Traffic) Finished(q request.Summary) {
	c := t.of(q.Model)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	if isError(&q) {
		c.errors++
	}
	if !q.UsedApart {
		c.tokens += q.CompletionTokens
	}
	if ttft := q.TTFT(); q.Stream && ttft > 0 && q.Status < 300 {
		c.ttft.add(ttft)
		c.gaps.Finished(q.Route == request.RouteNative, max(0, q.CompletionTokens-1), gapsRead(&q))
	}
}

// Used counts the tokens of a request that are not counted at its end. See
// request.Summary.UsedApart.
func (t *Traffic) Used(q *request.Summary) {
	c := t.of(q.Model)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens += q.CompletionTokens
}

// gapsRead returns the gaps that Envoy has read of a native stream, by their class.
func gapsRead(q *request.Summary) map[int]int64 {
	if q.Reading == nil {
		return nil
	}
	return q.Reading.Gaps
}

// Gaps counts measured times between two tokens of a managed stream. The relay may report a random
// share of the streams only.
func (t *Traffic) Gaps(model string, gaps ...time.Duration) {
	c := t.of(model)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, gap := range gaps {
		c.gaps.Measured(request.GapClass(gap))
	}
}

// isError reports whether a request counts as an error.
func isError(q *request.Summary) bool {
	switch q.DisconnectCause() {
	case request.CauseEngine, request.CauseTimeout, request.CauseGateway, request.CauseSlowClient:
		return true
	}
	return q.Status == 429 || q.Status >= 500
}

func (t *Traffic) of(model string) *counts {
	t.mu.RLock()
	c := t.models[model]
	t.mu.RUnlock()
	switch {
	case c != nil:
		return c
	case !t.known(model):
		return &t.others
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.models[model] == nil {
		t.models[model] = new(counts)
	}
	return t.models[model]
}

// Take writes what has ended since the last call into a sample, and begins again. Values of models
// that are not in the sample count in its total only.
func (t *Traffic) Take(s *Sample) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	seconds := max(now.Sub(t.taken).Seconds(), 1e-3)
	t.taken = now
	total, allGaps := figures{}, request.GapWeights{}
	total.add(t.others.take(), allGaps)
	for name, c := range t.models {
		f := c.take()
		total.add(f, allGaps)
		if _, ok := s.Models[name]; !ok {
			delete(t.models, name)
		}
		f.give(s, name, seconds)
	}
	for name, values := range s.Models {
		if t.models[name] == nil {
			none := figures{}
			none.write(&values, seconds, nil)
			s.Models[name] = values
		}
	}
	total.write(&s.Total, seconds, allGaps)
}

// give writes figures into the values of a model, if the sample has them.
func (f *figures) give(s *Sample, name string, seconds float64) {
	if values, ok := s.Models[name]; ok {
		gaps := request.GapWeights{}
		f.gaps.Weigh(gaps)
		f.write(&values, seconds, gaps)
		s.Models[name] = values
	}
}

// take returns the figures and begins again.
func (c *counts) take() *figures {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.figures
	c.figures = figures{}
	return &f
}

// add adds other figures, and the weights of their gaps to gaps. A gap weighs by its own model,
// because different shares of the models' streams are measured.
func (f *figures) add(other *figures, gaps request.GapWeights) {
	f.requests += other.requests
	f.errors += other.errors
	f.tokens += other.tokens
	f.ttft.merge(&other.ttft)
	other.gaps.Weigh(gaps)
}

// write writes the figures of so many seconds, and the percentiles of gaps, into values.
func (f *figures) write(v *Values, seconds float64, gaps request.GapWeights) {
	v[RequestsPerSecond], v[ErrorsPerSecond] = float64(f.requests)/seconds, float64(f.errors)/seconds
	v[TokensPerSecond] = float64(f.tokens) / seconds
	v[TTFTp50], v[TTFTp95] = f.ttft.quantile(0.5), f.ttft.quantile(0.95)
	if q, ok := gaps.Quantiles(0.5, 0.95); ok {
		v[InterTokenP50], v[InterTokenP95] = 1000*q[0], 1000*q[1]
	} else {
		v[InterTokenP50], v[InterTokenP95] = math.NaN(), math.NaN()
	}
}

// classes is how many of the classes of request.GapClass a histogram has: for times of up to an
// hour.
const classes = 996

// histogram counts times in the classes of gaps. The zero value has none.
type histogram struct {
	count   int64
	classes *[classes]uint32
}

func (h *histogram) add(d time.Duration) {
	if h.classes == nil {
		h.classes = new([classes]uint32)
	}
	h.classes[min(request.GapClass(d), classes-1)]++
	h.count++
}

// merge adds the times of another histogram.
func (h *histogram) merge(other *histogram) {
	if other.count == 0 {
		return
	}
	if h.classes == nil {
		h.classes = new([classes]uint32)
	}
	for i, n := range other.classes {
		h.classes[i] += n
	}
	h.count += other.count
}

// quantile returns the shortest time that is at least as long as the share q of all, in
// milliseconds; NaN if there is none.
func (h *histogram) quantile(q float64) float64 {
	if h.count == 0 {
		return math.NaN()
	}
	need := int64(math.Ceil(q * float64(h.count)))
	for class, n := range h.classes {
		if need -= int64(n); need <= 0 {
			return 1000 * request.GapLength(class)
		}
	}
	return math.NaN()
}
