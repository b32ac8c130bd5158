package usage

import "testing"

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
