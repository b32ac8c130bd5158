package gateway

import "testing"

// TestWorkers: Envoy counts small machines itself, and large ones give it eight workers.
func TestWorkers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ wanted, processors, want int }{{0, 1, 0}, {0, 8, 0}, {0, 9, 8}, {0, 128, 8}, {3, 2, 3}, {64, 128, 64}} {
		if got := workers(c.wanted, c.processors); got != c.want {
			t.Errorf("%d wanted on %d processors: %d, want %d", c.wanted, c.processors, got, c.want)
		}
	}
}
