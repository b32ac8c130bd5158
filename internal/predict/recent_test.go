package predict

import (
	"math"
	"testing"
	"time"
)

func TestU7_RecentFlow(t *testing.T) {
	t.Parallel()
	var r Recent
	now := time.Unix(1e9, 0)
	if f := r.Flow(now); f != (Flow{}) {
		t.Errorf("without a request: %v", f)
	}
	for range 1000 { // five requests a second
		now = now.Add(200 * time.Millisecond)
		r.Add(now, 900*time.Millisecond, 300*time.Millisecond)
	}
	f := r.Flow(now)
	for what, pair := range map[string][2]float64{"requests": {f.Requests, 5}, "times": {f.TTFT, 4.5}, "prefill": {f.Prefill, 1.5}} {
		if math.Abs(pair[0]/pair[1]-1) > 0.02 {
			t.Errorf("%s: %.2f a second, want %.2f", what, pair[0], pair[1])
		}
	}
	// The mean stays while the flow falls, until less than one request is left.
	later := r.Flow(now.Add(20 * time.Second))
	if later.Requests > f.Requests/2 || math.Abs(later.TTFT/later.Requests-0.9) > 1e-9 {
		t.Errorf("20 s later: %v", later)
	}
	if f := r.Flow(now.Add(5 * time.Minute)); f != (Flow{}) {
		t.Errorf("five minutes later: %v", f)
	}
	if f := r.Flow(now); f != (Flow{}) {
		t.Errorf("time that goes back brought %v back", f)
	}
}

func BenchmarkRecentAdd(b *testing.B) {
	var r Recent
	now := time.Unix(1e9, 0)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		r.Add(now, time.Second, time.Second/2)
	}
}
