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
