package join

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// requestCounts knows how many requests the node's replicas have, from the gateway's messages. A
// replica whose count is unknown counts as busy. A draining replica must not stop before the
// gateway has seen that it drains and has then reported its remaining requests.
type requestCounts struct {
	fleet *engines.Fleet

	mu sync.Mutex
	// sequence is the number of the newest snapshot. Guarded by mu.
	sequence uint64
	// firstDraining holds, by replica id, the first snapshot of the current stream in which the
	// replica was draining. Guarded by mu.
	firstDraining map[string]uint64
	// received is true once the gateway has sent counts on the current stream. Guarded by mu.
	received bool
	// last holds the latest counts of the gateway. Guarded by mu.
	last inFlight
	// deadline is when the agent stops waiting for requests, because the gateway is gone or is
	// stopping. The zero time means no deadline. Guarded by mu.
	deadline time.Time
}

func newRequestCounts(fleet *engines.Fleet) *requestCounts {
	return &requestCounts{fleet: fleet, firstDraining: map[string]uint64{}}
}

// reset forgets the counts of an earlier stream. The gateway of a new stream has not seen any
// snapshot.
func (c *requestCounts) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.firstDraining)
	c.received, c.last = false, inFlight{}
}

// set stores counts of the gateway.
func (c *requestCounts) set(f inFlight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received, c.last = true, f
}

// setDeadline limits the waiting for requests to d from now on. 0 removes the limit.
func (c *requestCounts) setDeadline(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = time.Time{}
	if d > 0 {
		c.deadline = time.Now().Add(d)
	}
}

// snapshot returns all replicas under the next sequence number.
func (c *requestCounts) snapshot() *replicaSnapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sequence++
	p := &replicaSnapshot{Sequence: c.sequence, Clock: time.Now(), Replicas: []engines.Replica{}}
	draining := map[string]bool{}
	for _, m := range c.fleet.Snapshot().Models {
		for _, r := range m.Replicas {
			r.Since, r.NextStart = byClock(r.Since, p.Clock), byClock(r.NextStart, p.Clock)
			p.Replicas = append(p.Replicas, r)
			if r.State != engines.Draining {
				continue
			}
			draining[r.ID] = true
			if _, ok := c.firstDraining[r.ID]; !ok {
				c.firstDraining[r.ID] = c.sequence
			}
		}
	}
	maps.DeleteFunc(c.firstDraining, func(id string, _ uint64) bool { return !draining[id] })
	return p
}

// byClock returns t as the clock that says now would have told it. The clock may have been set
// since t. A time of this process also has a monotonic reading, by which Sub computes.
func byClock(t, now time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return now.Round(0).Add(t.Sub(now)).Truncate(time.Millisecond)
}

// inFlight returns the number of requests of the replica, or 1 while the number is unknown.
func (c *requestCounts) inFlight(id string) int {
	draining := c.isDraining(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.deadline.IsZero() && time.Now().After(c.deadline) {
		return 0
	}
	since, reported := c.firstDraining[id]
	if n := c.last.Requests[id]; n > 0 {
		return n
	}
	if !c.received || draining && (!reported || c.last.Seen < since) {
		return 1
	}
	return 0
}

// isDraining reports whether the replica is draining, or missing in the fleet. The launcher
// publishes that a replica drains before it asks for its requests.
func (c *requestCounts) isDraining(id string) bool {
	model := id[:max(strings.LastIndexByte(id, '-'), 0)]
	r := c.fleet.Snapshot().Models[model].Replica(id)
	return r == nil || r.State == engines.Draining
}
