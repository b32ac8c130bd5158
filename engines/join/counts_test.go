package join

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// fleetWith has one replica in this state, or none.
func fleetWith(f *engines.Fleet, state engines.State) {
	p := engines.Part{Models: []engines.Model{{Name: "a-b"}}}
	if state != "" {
		p.Replicas = []engines.Replica{{ID: "a-b-0", Model: "a-b", State: state}}
	}
	f.Set("test", p)
}

func (c *counts) expect(t *testing.T, want int, when string) {
	t.Helper()
	if got := c.of("a-b-0"); got != want {
		t.Errorf("%s: %d requests, want %d", when, got, want)
	}
}

func TestCountsAreBusyUntilTheGatewayHasSpoken(t *testing.T) {
	t.Parallel()
	f := engines.NewFleet()
	c := newCounts(f)
	fleetWith(f, engines.Ready)
	c.expect(t, 1, "nobody has spoken")
	c.begin()
	c.set(inFlight{Seen: c.picture().Sequence})
	c.expect(t, 0, "ready, and the gateway has spoken")
	c.set(inFlight{Seen: 1, Requests: map[string]int{"a-b-0": 3}})
	c.expect(t, 3, "ready, with requests")
	c.set(inFlight{Seen: 1})
	fleetWith(f, engines.Draining)
	c.expect(t, 1, "leaving, and nobody was told")
	p := c.picture()
	c.expect(t, 1, "leaving, told, and not seen")
	c.set(inFlight{Seen: p.Sequence - 1})
	c.expect(t, 1, "an older picture was seen")
	c.picture() // another replica's news
	c.set(inFlight{Seen: p.Sequence, Requests: map[string]int{"a-b-0": 2}})
	c.expect(t, 2, "seen, with requests")
	c.set(inFlight{Seen: p.Sequence})
	c.expect(t, 0, "seen")
	c.begin()
	c.expect(t, 1, "a new stream")
	c.picture()
	c.set(inFlight{Seen: p.Sequence})
	c.expect(t, 1, "a new stream, and the gateway has seen an older one's picture")
	// It was recalled, and leaves anew.
	fleetWith(f, engines.Ready)
	c.picture()
	fleetWith(f, engines.Draining)
	c.set(inFlight{Seen: 5})
	c.expect(t, 1, "leaving anew")
	fleetWith(f, "")
	c.expect(t, 1, "not in the fleet")
}

func TestCountsHaveALimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := engines.NewFleet()
		fleetWith(f, engines.Draining)
		c := newCounts(f)
		c.limitTo(time.Minute)
		time.Sleep(time.Minute)
		c.expect(t, 1, "the time is not over")
		time.Sleep(time.Nanosecond)
		c.expect(t, 0, "the time is over")
		c.limitTo(0)
		c.expect(t, 1, "there is no limit any more")
	})
}
