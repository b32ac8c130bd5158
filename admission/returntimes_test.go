package admission

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A caller is told the exact time, or one a little later that no other caller was told.
func TestR10_ReturnTimesAreReserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r returnTimes
		now := time.Now()
		told := map[time.Duration]bool{}
		for n := range 300 { // for three moments, in turn
			exact := []time.Duration{10 * time.Second, 20 * time.Second, 100 * time.Millisecond}[n%3]
			wait := r.reserve(exact, now)
			if wait < exact || wait > exact+returnSpread(exact) {
				t.Fatalf("told %v for %v", wait, exact)
			}
			if n < 3 && wait != exact {
				t.Errorf("the first caller is told %v, want %v", wait, exact)
			}
			if exact > time.Second { // 50 ms are too short for 100 callers
				told[wait] = true
			}
		}
		if len(told) != 200 {
			t.Errorf("%d times for 200 callers", len(told))
		}
		if !slices.IsSorted(r.told) {
			t.Errorf("not sorted: %v", r.told)
		}
		time.Sleep(time.Minute)
		if wait := r.reserve(time.Second, time.Now()); wait != time.Second || len(r.told) != 1 {
			t.Errorf("told %v with %d times reserved, after all had passed", wait, len(r.told))
		}
	})
}

// However many ask, and however late the tokens come, nobody is told to come much later.
func TestR10_ReturnTimesAreBounded(t *testing.T) {
	t.Parallel()
	for exact, most := range map[time.Duration]time.Duration{
		10 * time.Millisecond: 50 * time.Millisecond, 4 * time.Second: 200 * time.Millisecond, time.Hour: time.Second,
	} {
		var r returnTimes
		now := time.Now()
		for range 5 * maxReturnTimes {
			if wait := r.reserve(exact, now); wait < exact || wait > exact+most {
				t.Fatalf("told %v for %v, want at most %v more", wait, exact, most)
			}
		}
		if len(r.told) > maxReturnTimes {
			t.Errorf("%d times", len(r.told))
		}
	}
}

func BenchmarkReturnTimes(b *testing.B) {
	var r returnTimes
	now := time.Now()
	for b.Loop() {
		r.reserve(time.Hour, now)
	}
}
