package realtime

import (
	"testing"
	"time"
	"unsafe"
)

// withClockSet returns a time as it is read after somebody has set the clock of the machine forward
// or back by whole seconds. Package time has no way to make one.
func withClockSet(t time.Time, by time.Duration) time.Time {
	const secondBit = 30 // in the first field of a time that was read from the clock
	*(*uint64)(unsafe.Pointer(&t)) += uint64(by/time.Second) << secondBit
	return t
}

// A client that has gone is pinged as soon as it is silent, and one that has just sent something is
// not. That holds also where the clock of the machine was set meanwhile.
func TestS9_SilenceIsMeasuredWhileTheClockIsSet(t *testing.T) {
	s := newSocket(Limits{})
	s.recordReceived()
	for _, by := range []time.Duration{-2 * time.Hour, 0, 2 * time.Hour} {
		now := withClockSet(time.Now(), by)
		if s.isSilent(now, time.Minute) {
			t.Errorf("clock set by %v: a client is silent that has just sent something", by)
		}
		if !s.isSilent(now.Add(61*time.Second), time.Minute) {
			t.Errorf("clock set by %v: a client that has gone is not silent", by)
		}
	}
}
