package testutil

import (
	"testing"
	"time"
)

func TestProcessorTime(t *testing.T) {
	if took := ProcessorTime(t, func() { time.Sleep(50 * time.Millisecond) }); took > 25*time.Millisecond {
		t.Errorf("a sleep of 50 ms took %v of a processor", took)
	}
	began := time.Now()
	took := ProcessorTime(t, func() {
		for start := threadTime(t); threadTime(t) < start+time.Millisecond; {
		}
	})
	if took < time.Millisecond || took > time.Since(began) {
		t.Errorf("a loop of 1 ms took %v of a processor, of %v", took, time.Since(began))
	}
}
