package join

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// setFleetState puts one replica in this state into the fleet, or no replica if state is empty.
func setFleetState(f *engines.Fleet, state engines.State) {
	p := engines.Part{Models: []engines.Model{{Name: "a-b"}}}
	if state != "" {
		p.Replicas = []engines.Replica{{ID: "a-b-0", Model: "a-b", State: state}}
	}
	f.Set("test", p)
}

func (c *requestCounts) expect(t *testing.T, want int, when string) {
	t.Helper()
	if got := c.inFlight("a-b-0"); got != want {
		t.Errorf("%s: %d requests, want %d", when, got, want)
	}
}

func TestCountsAreBusyUntilTheGatewayHasSpoken(t *testing.T) {
	t.Parallel()
	f := engines.NewFleet()
	c := newRequestCounts(f)
	setFleetState(f, engines.Ready)
	c.expect(t, 1, "no counts received")
	c.reset()
	c.set(inFlight{Seen: c.snapshot().Sequence})
	c.expect(t, 0, "ready, counts received")
	c.set(inFlight{Seen: 1, Requests: map[string]int{"a-b-0": 3}})
	c.expect(t, 3, "ready, with requests")
	c.set(inFlight{Seen: 1})
	setFleetState(f, engines.Draining)
	c.expect(t, 1, "draining, not reported")
	p := c.snapshot()
	c.expect(t, 1, "draining, reported, not seen")
	c.set(inFlight{Seen: p.Sequence - 1})
	c.expect(t, 1, "draining, an older snapshot was seen")
	c.snapshot() // A snapshot because of another replica.
	c.set(inFlight{Seen: p.Sequence, Requests: map[string]int{"a-b-0": 2}})
	c.expect(t, 2, "seen, with requests")
	c.set(inFlight{Seen: p.Sequence})
	c.expect(t, 0, "seen")
	c.reset()
	c.expect(t, 1, "a new stream")
	c.snapshot()
	c.set(inFlight{Seen: p.Sequence})
	c.expect(t, 1, "a new stream, the gateway has seen a snapshot of an older one")
	// The replica was assigned again and then drains again.
	setFleetState(f, engines.Ready)
	c.snapshot()
	setFleetState(f, engines.Draining)
	c.set(inFlight{Seen: 5})
	c.expect(t, 1, "draining again")
	setFleetState(f, "")
	c.expect(t, 1, "not in the fleet")
}

func TestCountsHaveALimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := engines.NewFleet()
		setFleetState(f, engines.Draining)
		c := newRequestCounts(f)
		c.setDeadline(time.Minute)
		time.Sleep(time.Minute)
		c.expect(t, 1, "before the deadline")
		time.Sleep(time.Nanosecond)
		c.expect(t, 0, "after the deadline")
		c.setDeadline(0)
		c.expect(t, 1, "without a deadline")
	})
}
