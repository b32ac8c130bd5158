package beat

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestUntil(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 21, 30, 41, 250_000_000, time.UTC)
	for _, c := range []struct {
		now          time.Time
		period, want time.Duration
	}{
		{at, 100 * time.Millisecond, 50 * time.Millisecond},
		{at, 500 * time.Millisecond, 250 * time.Millisecond},
		{at, 2 * time.Second, 750 * time.Millisecond},
		{at, 5 * time.Second, 3750 * time.Millisecond},
		{at.Truncate(time.Second), time.Second, time.Second}, // a beat that is now is over
		{at.Truncate(time.Second).Add(-1), time.Second, 1},
	} {
		if got := until(c.now, c.period); got != c.want {
			t.Errorf("%v before a beat of %v, want %v: %v", got, c.period, c.want, c.now)
		}
	}
}

// TestLoopsShareMoments: loops that begin at different times still tick at the same moments,
// however long their rounds take.
func TestLoopsShareMoments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		ticks := map[time.Time]int{}
		loop := func(begin, period, took time.Duration) {
			time.Sleep(begin)
			for end := time.Now().Truncate(time.Minute).Add(time.Minute); time.Now().Before(end); {
				now := <-After(period)
				mu.Lock()
				ticks[now.UTC()]++
				mu.Unlock()
				time.Sleep(took)
			}
		}
		var loops sync.WaitGroup
		loops.Go(func() { loop(0, 500*time.Millisecond, 0) })
		loops.Go(func() { loop(123*time.Millisecond, 500*time.Millisecond, 77*time.Millisecond) })
		loops.Go(func() { loop(777*time.Millisecond, time.Second, 300*time.Millisecond) })
		loops.Go(func() { loop(1999*time.Millisecond, 2*time.Second, time.Millisecond) })
		loops.Wait()
		sum := 0
		for at, n := range ticks {
			sum += n
			if at.Nanosecond()%int(500*time.Millisecond) != 0 {
				t.Errorf("%d loops ticked at %v, which is no beat", n, at)
			}
		}
		if len(ticks) != 120 || sum != 120+120+60+30 {
			t.Errorf("%d moments and %d ticks in a minute, want 120 and 330", len(ticks), sum)
		}
		if most := slices.Max(slices.Collect(maps.Values(ticks))); most != 4 {
			t.Errorf("at most %d loops ticked together, want all 4", most)
		}
	})
}
