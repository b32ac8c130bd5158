package admission

import (
	"testing"
	"time"
)

// A debt that nobody looks at for a while is paid at the same rate as one that is looked at.
func TestX2_ADebtIsPaidAtItsRate(t *testing.T) {
	start := time.Now()
	for name, test := range map[string]struct {
		deep  bool
		debt  int64
		after time.Duration
		want  int64
	}{
		"at once":                {false, 100, 0, -100},
		"after a minute":         {false, 100, time.Minute, 0},
		"after two":              {false, 100, 2 * time.Minute, 100},
		"a shallow one":          {false, 100_000, 90 * time.Second, 50},
		"a deep one":             {true, 1000, 3*time.Minute + 30*time.Second, -650},
		"the deepest":            {true, 1_000_000, 59 * time.Minute, -100},
		"the deepest, paid":      {true, 1_000_000, 61 * time.Minute, 100},
		"after a year":           {true, 1_000_000, 365 * 24 * time.Hour, 100},
		"after a year, a little": {true, 1, 365 * 24 * time.Hour, 100},
	} {
		b := bucket{deep: test.deep}
		b.resize(100, start)
		b.charge(100)
		b.correct(-test.debt)
		if b.refill(start.Add(test.after)); b.level/unitsPerToken != test.want {
			t.Errorf("%s: %d tokens, want %d", name, b.level/unitsPerToken, test.want)
		}
	}
	huge := bucket{deep: true}
	huge.resize(maxTokens, start)
	huge.correct(-10 * maxTokens)
	if huge.refill(start.Add(90 * time.Second)); huge.level/unitsPerToken != maxTokens/2 {
		t.Errorf("%d tokens of the largest bucket, want %d", huge.level/unitsPerToken, int64(maxTokens/2))
	}
}

// TestCorrectWithoutDebt: what a request has cost beyond its estimate makes no debt and adds to
// none. What comes back pays a debt.
func TestCorrectWithoutDebt(t *testing.T) {
	for _, test := range []struct{ before, tokens, want int64 }{{10, -4, 6}, {10, -30, 0}, {-5, -30, -5}, {-5, 3, -2}, {-5, 30, 25}} {
		b := bucket{deep: true, perMinute: 100, level: test.before * unitsPerToken}
		if b.correctWithoutDebt(test.tokens); b.level != test.want*unitsPerToken {
			t.Errorf("%d corrected by %d: %d, want %d", test.before, test.tokens, b.level/unitsPerToken, test.want)
		}
	}
}
