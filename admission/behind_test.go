package admission

import (
	"testing"
	"testing/synctest"
	"time"
)

// pinned is a request that waits for one certain slot although others are free.
func pinned(r Request) Request {
	r.Locked = LockedHooks{ReserveSlot: func(string) (Slot, bool) { return Slot{}, false }, HoldsOut: func() bool { return true }}
	return r
}

// TestB1_NobodyWaitsForThoseThatHoldOut: requests that hold out for a slot keep no other request
// from a free one, whatever its priority and its tenant are, and however many they are. Neither a
// pool nor a model keeps the other one's requests.
func TestB1_NobodyWaitsForThoseThatHoldOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pinned, other Request
		count         int
	}{
		"a lower priority":            {Request{Model: "m0", Priority: Interactive}, Request{Model: "m0", Priority: Batch}, 1},
		"a higher priority":           {Request{Model: "m0", Priority: Batch}, Request{Model: "m0", Priority: Interactive}, 1},
		"many of one tenant":          {Request{Model: "m0", Tenant: "a"}, Request{Model: "m0", Tenant: "b"}, 5 * maxBehind},
		"many of a higher priority":   {Request{Model: "m0", Priority: Interactive}, Request{Model: "m0"}, 5 * maxBehind},
		"a pool behind its model":     {Request{Model: "m0"}, Request{Pool: "auto"}, 5 * maxBehind},
		"a model behind its pool":     {Request{Pool: "auto"}, Request{Model: "m0"}, 5 * maxBehind},
		"a pool behind the same pool": {Request{Pool: "auto", Priority: Interactive}, Request{Pool: "auto"}, 5 * maxBehind},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newPoolController(t, Limits{}, 1)
				for range c.count {
					d.wantWaiting(d.start(t.Context(), pinned(c.pinned)))
				}
				slots := newSlotCounter(1)
				other := c.other
				other.Locked = slots.request().Locked
				first := d.start(t.Context(), other)
				d.wantAdmitted(first, 0)
				second := d.start(t.Context(), other)
				d.wantWaiting(second)
				time.Sleep(time.Second)
				slots.free.Add(1)
				first.release()
				d.wantAdmitted(second, time.Second)
				second.release()
			})
		})
	}
}

// TestB1_PrioritiesHoldBehindThoseThatHoldOut: where a request that would take any slot finds none,
// no request of a lower priority passes it.
func TestB1_PrioritiesHoldBehindThoseThatHoldOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{})
		d.wantWaiting(d.start(t.Context(), pinned(Request{Priority: Interactive})))
		urgent, slow := newSlotCounter(0), newSlotCounter(1)
		first, second := urgent.request(), slow.request()
		first.Priority, second.Priority = Default, Batch
		waits := d.start(t.Context(), first)
		d.wantWaiting(waits, d.start(t.Context(), second))
		time.Sleep(time.Second)
		urgent.free.Add(1)
		d.RetryWaiters("chat")
		d.wantAdmitted(waits, time.Second)
		waits.release()
	})
}
