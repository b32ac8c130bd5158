package realtime

import (
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// A client that has gone is pinged as soon as it is silent, and one that has just sent something is
// not. That holds also where the clock of the machine was set meanwhile.
func TestS9_SilenceIsMeasuredWhileTheClockIsSet(t *testing.T) {
	s := newSocket(Limits{})
	s.recordReceived()
	for _, by := range []time.Duration{-2 * time.Hour, 0, 2 * time.Hour} {
		now := testutil.WithClockSet(time.Now(), by)
		if s.isSilent(now, time.Minute) {
			t.Errorf("clock set by %v: a client is silent that has just sent something", by)
		}
		if !s.isSilent(now.Add(61*time.Second), time.Minute) {
			t.Errorf("clock set by %v: a client that has gone is not silent", by)
		}
	}
}
