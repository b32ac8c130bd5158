package usage

import (
	"math"
	"testing"
)

func TestB3_CostOfARequest(t *testing.T) {
	for _, c := range []struct {
		counts Counts
		prices Prices
		want   float64
	}{
		{OfRequest(1_000_000, 400_000, 500_000, true), Prices{Prompt: 0.15, Cached: 0.05, Completion: 0.6}, 0.09 + 0.02 + 0.3},
		{OfRequest(1, 0, 0, true), Prices{Prompt: 0.15}, 0.00000015},
		{OfRequest(7, 9, 0, true), Prices{Cached: 1}, 0.000007},
		{OfRequest(7, 1, 2, true), Prices{}, 0},
	} {
		if c.counts.Charge(c.prices); c.counts.Money() != c.want {
			t.Errorf("%+v at %+v: %v, not %v", c.counts, c.prices, c.counts.Money(), c.want)
		}
	}
}

// An engine tells numbers that cannot be true. They count as nothing, and the sums of the tenant
// only grow.
func TestB3_CountsThatCannotBeTrue(t *testing.T) {
	l := open(t, t.TempDir())
	l.SetBudgets([]Budget{daily})
	spend(l, 100, 0)
	for _, n := range []int64{-1000, math.MinInt64, math.MaxInt64, math.MaxInt64} {
		for _, c := range []Counts{OfRequest(n, 0, 0, true), OfRequest(0, 0, n, true), OfRequest(7, n, 0, true)} {
			c.Charge(Prices{Prompt: 1, Cached: 0.5, Completion: 2})
			if c.PromptTokens < 0 || c.CachedTokens < 0 || c.CachedTokens > c.PromptTokens || c.CompletionTokens < 0 || c.Cost < 0 ||
				c.PromptTokens != 7 && c.EstimatedRequests != 1 {
				t.Errorf("%d: %+v", n, c)
			}
			l.Add(acme, c, today)
		}
	}
	wantLevels(t, l, Within, HardReached)
}
