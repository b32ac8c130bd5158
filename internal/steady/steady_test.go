package steady

import (
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestNanos: the clock of the machine moves no time, and times of a simulation, which have no other
// clock, keep their distance.
func TestNanos(t *testing.T) {
	now := time.Now()
	if got, want := Nanos(started), started.UnixNano(); got != want {
		t.Errorf("the start is %d, want %d", got, want)
	}
	for _, by := range []time.Duration{0, 48 * time.Hour, -48 * time.Hour} {
		if passed := Nanos(testutil.WithClockSet(now.Add(time.Second), by)) - Nanos(now); passed != int64(time.Second) {
			t.Errorf("clock set by %v: a second lasts %d ns", by, passed)
		}
	}
	virtual := time.Unix(1000, 0)
	if passed := Nanos(virtual.Add(time.Second)) - Nanos(virtual); passed != int64(time.Second) {
		t.Errorf("a second of a simulation lasts %d ns", passed)
	}
}
