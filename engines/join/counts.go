package join

import (
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// counts is how many requests the node's replicas have, as far as the gateway has said so. Who is not sure counts as busy: a replica
// that leaves must not end before the gateway has seen it leave and has said how many requests it has since.
type counts struct {
	fleet *engines.Fleet

	mu sync.Mutex
	// sequence is that of the newest picture; guarded by mu
	sequence uint64
	// marks is the first picture of this stream in which a replica was leaving; guarded by mu
	marks map[string]uint64
	// known: the gateway of this stream has spoken; guarded by mu
	known bool
	// last is what it said; guarded by mu
	last inFlight
	// limit is when requests are waited for no longer, because there is no gateway or will be none; zero: there is no limit; guarded by mu
	limit time.Time
}

func newCounts(fleet *engines.Fleet) *counts {
	return &counts{fleet: fleet, marks: map[string]uint64{}}
}

// begin is the begin of a stream: this gateway has seen nothing yet.
func (c *counts) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.marks)
	c.known, c.last = false, inFlight{}
}

// set takes in what the gateway says.
func (c *counts) set(f inFlight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known, c.last = true, f
}

// limitTo bounds the waiting for requests from now on; 0 lifts the bound.
func (c *counts) limitTo(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = time.Time{}
	if d > 0 {
		c.limit = time.Now().Add(d)
	}
}

// picture is all that there is, with the next number.
func (c *counts) picture() *replicas {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sequence++
	p := &replicas{Sequence: c.sequence, Replicas: []engines.Replica{}}
	leaving := map[string]bool{}
	for _, m := range c.fleet.Snapshot().Models {
		for _, r := range m.Replicas {
			p.Replicas = append(p.Replicas, r)
			if r.State != engines.Draining {
				continue
			}
			leaving[r.ID] = true
			if _, ok := c.marks[r.ID]; !ok {
				c.marks[r.ID] = c.sequence
			}
		}
	}
	for id := range c.marks {
		if !leaving[id] {
			delete(c.marks, id)
		}
	}
	return p
}

// of is the number of the replica's requests, or 1 while that is not known.
func (c *counts) of(id string) int {
	leaving := c.leaving(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.limit.IsZero() && time.Now().After(c.limit) {
		return 0
	}
	mark, told := c.marks[id]
	if n := c.last.Requests[id]; n > 0 {
		return n
	}
	if !c.known || leaving && (!told || c.last.Seen < mark) {
		return 1
	}
	return 0
}

// leaving tells whether the replica leaves; the launcher reports that before it acts on it.
func (c *counts) leaving(id string) bool {
	model := id[:max(strings.LastIndexByte(id, '-'), 0)]
	m, ok := c.fleet.Snapshot().Models[model]
	if !ok {
		return true
	}
	for _, r := range m.Replicas {
		if r.ID == id {
			return r.State == engines.Draining
		}
	}
	return true
}
