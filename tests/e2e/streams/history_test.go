package streams

import (
	"fmt"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// The history of a model has the measured times between tokens, native and managed: a stall is in
// the 95th percentile, and not spread over the whole stream.
func TestE2E_R3_HistoryHasTheStalls(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"native", managed} {
		t.Run(mode[:6], func(t *testing.T) {
			t.Parallel()
			g := startFigured(t, mode)
			n := 0
			harness.Eventually(t, "a sample with the stall", func() error {
				n++
				watchStream(g, chatBody(n, 20), "x-sim-fault: "+stalls)
				return stallInHistory(g)
			})
		})
	}
}

// stallInHistory returns an error unless a sample has a median that is shorter than the stall, and
// the stall as its 95th percentile. A busy machine has gaps that are shorter than figuresConfig
// says, because tokens come in bunches.
func stallInHistory(g *harness.Gateway) error {
	var past struct {
		Series []struct {
			Name   string
			Values []*float64
		}
	}
	if err := g.TryGet("/api/v1/history?model=m&step=10&from=-300", &past); err != nil {
		return err
	}
	series := map[string][]*float64{}
	for _, s := range past.Series {
		series[s.Name] = s.Values
	}
	var seen []string
	for i, p95 := range series["inter_token_p95_ms"] {
		p50 := series["inter_token_p50_ms"][i]
		if p95 == nil || p50 == nil {
			continue
		}
		if seen = append(seen, fmt.Sprint(*p50, " ", *p95)); *p50 < 60 && *p95 >= 70 {
			return nil
		}
	}
	return fmt.Errorf("p50 and p95 in ms: %v", seen)
}
