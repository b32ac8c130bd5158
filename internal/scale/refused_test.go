package scale

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestU8_RequestsThatDoNotWait: a request that was refused at once starts the first replica and
// keeps it, like one that waits. What was refused before the first update starts nothing.
func TestU8_RequestsThatDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Min: 0, Max: 2, Cooldown: time.Minute})
		refused := func(n uint64) {
			w.set(Load{Refused: n})
			w.ReportDemand("m")
		}
		refused(1)
		w.want(t, 1)
		time.Sleep(50 * time.Second)
		refused(2)
		time.Sleep(50 * time.Second)
		w.want(t, 1)
		time.Sleep(2 * time.Minute)
		w.want(t, 0)
	})
}

// TestU8_AGatewayThatComesBackHasRefusedNothing: what another gateway refused before it was known
// starts nothing, neither the first time nor after a pause. What it refuses then does.
func TestU8_AGatewayThatComesBackHasRefusedNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Min: 0, Max: 2, Cooldown: time.Hour})
		others := func(refused map[string]uint64) {
			w.set(Load{RefusedElsewhere: refused})
			time.Sleep(2 * time.Minute)
		}
		others(map[string]uint64{"other": 57})
		w.want(t, 0)
		others(nil)
		others(map[string]uint64{"other": 57, "third": 9})
		w.want(t, 0)
		w.set(Load{RefusedElsewhere: map[string]uint64{"other": 58, "third": 9}})
		w.ReportDemand("m")
		w.want(t, 1)
	})
}
