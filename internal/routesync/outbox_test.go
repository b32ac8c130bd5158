package routesync

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/prefix"
)

// fill adds the placements of sessions from to to-1.
func fill(o *outbox, from, to uint64) {
	for n := from; n < to; n++ {
		o.add(dispatch.Placement{Session: n}, time.Now())
	}
}

// drain takes all that is to be sent.
func drain(o *outbox) (sessions []uint64) {
	for o.take(func(e *entry) { sessions = append(sessions, e.Session) }) {
	}
	return sessions
}

func TestB1_OutboxDropsTheOldest(t *testing.T) {
	t.Parallel()
	var o outbox
	o.setListeners(1, true)
	fill(&o, 0, outboxSize+10)
	got := drain(&o)
	if len(got) != outboxSize || got[0] != 10 || got[len(got)-1] != outboxSize+9 || !slices.IsSorted(got) {
		t.Errorf("%d placements from %d to %d", len(got), got[0], got[len(got)-1])
	}
	if o.droppedCount() != 10 {
		t.Errorf("%d dropped, want 10", o.droppedCount())
	}
}

// A gateway that nobody listens to drops nothing that anyone would miss.
func TestB1_OutboxOfALoneGateway(t *testing.T) {
	t.Parallel()
	var o outbox
	fill(&o, 0, 3*outboxSize)
	if o.droppedCount() != 0 || o.waits() {
		t.Errorf("%d dropped; waits: %t", o.droppedCount(), o.waits())
	}
	o.setListeners(1, true)
	if got := drain(&o); len(got) != outboxSize || got[0] != 2*outboxSize {
		t.Errorf("the first listener gets %d placements", len(got))
	}
}

func TestB1_OutboxGoesBack(t *testing.T) {
	t.Parallel()
	var o outbox
	o.setListeners(1, true)
	fill(&o, 0, 100)
	drain(&o)
	o.goBack(90)
	if got := drain(&o); len(got) != 10 || got[0] != 90 {
		t.Errorf("after going back to 90: %v", got)
	}
	o.setListeners(2, true)
	if got := drain(&o); len(got) != 100 {
		t.Errorf("a second listener gets %d placements", len(got))
	}
	fill(&o, 100, 2*outboxSize)
	drain(&o)
	o.goBack(0)
	if got := drain(&o); len(got) != outboxSize || got[0] != outboxSize {
		t.Errorf("the ring has %d placements from %d", len(got), got[0])
	}
	o.setListeners(4, true)
	if got := drain(&o); len(got) != outboxSize/4 || got[len(got)-1] != 2*outboxSize-1 {
		t.Errorf("one of four that listen tells %d placements", len(got))
	}
}

// The path of a request allocates nothing once the ring has been around.
func TestB1_OutboxCopiesAndDoesNotAllocate(t *testing.T) {
	var o outbox
	p := dispatch.Placement{Model: "m", Replica: "r", Chain: chainOf(20000, 0, 1, 1)}
	for range outboxSize + 1 {
		o.add(p, time.Now())
	}
	if n := testing.AllocsPerRun(100, func() { o.add(p, time.Now()) }); n > 0 {
		t.Errorf("%v allocations for a placement", n)
	}
	first := p.Chain.Blocks[0]
	p.Chain.Blocks[0] = prefix.Block{}
	o.goBack(o.added - 1)
	if o.take(func(e *entry) {
		if e.Chain.Blocks[0] != first {
			t.Error("the outbox has not copied the chain")
		}
	}); t.Failed() {
		return
	}
}
