package routesync

import (
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
)

// outboxSize is how many placements an outbox keeps. With chains of 200 blocks they take 7 MB.
const outboxSize = 2048

// outbox is a ring of the latest placements of this gateway. Its zero value is empty.
type outbox struct {
	mu sync.Mutex
	// ring has the placements at their number modulo its length.
	ring []entry
	// added is the number of the next placement to add, next that of the next one to send.
	added, next uint64
	// listeners is how many gateways listen. While nobody listens, nothing counts as dropped.
	listeners int
	dropped   uint64
}

// entry is one placement with the time of it. Its slices belong to the ring.
type entry struct {
	dispatch.Placement
	at time.Time
}

// add adds a copy of a placement. The oldest one makes room.
func (o *outbox) add(p dispatch.Placement, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ring == nil {
		o.ring = make([]entry, outboxSize)
	}
	if o.added-o.next == uint64(len(o.ring)) {
		o.next++
		if o.listeners > 0 {
			o.dropped++
		}
	}
	e := &o.ring[o.added%uint64(len(o.ring))]
	blocks, ends := e.Chain.Blocks[:0], e.Chain.Ends[:0]
	e.Placement, e.at = p, now
	blocks, ends = append(blocks, p.Chain.Blocks...), append(ends, p.Chain.Ends...)
	e.Chain.Blocks, e.Chain.Ends = blocks, ends
	o.added++
}

// take calls use for the next placement, unless none is left. use must be quick: requests wait for
// it.
func (o *outbox) take(use func(*entry)) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.next == o.added {
		return false
	}
	use(&o.ring[o.next%uint64(len(o.ring))])
	o.next++
	return true
}

// position returns the number of the next placement to send.
func (o *outbox) position() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.next
}

// goBack makes the placements from this number on the next ones to send, as far as the ring has
// them.
func (o *outbox) goBack(to uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.goBackLocked(to)
}

func (o *outbox) goBackLocked(to uint64) {
	o.next = min(o.next, max(to, o.added-min(o.added, uint64(len(o.ring)))))
}

// setListeners says how many other gateways listen. When one of them is new, the latest placements
// are sent again. All gateways together send as many as one ring has.
func (o *outbox) setListeners(n int, isNew bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listeners = n
	if isNew {
		share := uint64(outboxSize / n)
		o.goBackLocked(o.added - min(o.added, share))
	}
}

// waits reports whether there is something to send, and somebody to whom.
func (o *outbox) waits() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.listeners > 0 && o.next < o.added
}

func (o *outbox) droppedCount() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropped
}
