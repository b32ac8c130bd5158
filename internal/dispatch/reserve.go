package dispatch

import (
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// fallbacks bounds how many replicas Envoy may retry on beside the picked one.
const fallbacks = 3

// reserve picks a replica, acquires a slot on it and records both in the ticket. It returns false
// if no replica has a free slot.
func (t *modelRoute) reserve(key uint64, ticket *Ticket) (admission.Slot, bool) {
	var space [32]int
	f := forecastsPool.Get().(*forecasts)
	defer forecastsPool.Put(f)
	for {
		now := time.Now()
		p := pickInput{key: key, loads: t.loads(space[:0]), now: t.warmUpTime(), forecasts: f}
		t.forecast(f, &ticket.prompt, p.loads, now)
		t.capPrefill(&p, now, ticket.dispatcher)
		i := t.pick(&p)
		if i < 0 {
			return admission.Slot{}, false
		}
		if r := t.replicas[i]; r.acquire(ticket.watch) {
			load := int(r.load.Load()) - 1
			expected := t.prediction(&p, &ticket.prompt, i)
			ticket.setSlot(t, i, t.list(key, i, p.loads), r.queue.Begin(now, load, f.uncached[i]), expected, f.matched[i])
			slot := admission.Slot{Replica: r.id, Limit: r.limit}
			if d := ticket.dispatcher; d.shared {
				slot.OnFull = func() { d.markFull(r, fullFor) }
			}
			return slot, true
		}
		// Another model that shares the replica acquired the slot first. Pick again with the new
		// load.
	}
}

// prediction returns what is expected of a request that goes to replica i.
func (t *modelRoute) prediction(p *pickInput, q *prompt, i int) Prediction {
	f := p.forecasts
	expected := Prediction{TTFT: f.predictions[i].TTFT, Reason: string(p.why)}
	if t.isCacheAware() && q.chain.Bytes > 0 {
		expected.Known = true
		expected.MatchedTokens = int(q.matchedTokens(f.matched[i]))
		expected.Moved = t.moved(f, p.loads, i)
	}
	return expected
}

// loads appends the current load of each replica to into. -1 stands for a replica without a free
// slot.
func (t *modelRoute) loads(into []int) []int {
	for _, r := range t.replicas {
		n := r.load.Load()
		if r.full(n) {
			n = -1
		}
		into = append(into, int(n))
	}
	return into
}

// list returns the value of the header that Envoy's override_host policy reads: the picked replica,
// then other replicas with a free slot in ring order. All are in the cluster of the picked one,
// because a retry stays in its cluster. list overwrites loads.
func (t *modelRoute) list(key uint64, picked int, loads []int) string {
	if len(t.replicas) == 1 {
		return t.replicas[picked].address
	}
	if t.mixed {
		for i := range loads {
			if t.replicas[i].cluster != t.replicas[picked].cluster {
				loads[i] = -1 // a retry cannot reach another cluster
			}
		}
	}
	var b strings.Builder
	b.WriteString(t.replicas[picked].address)
	var space [fallbacks + 1]int // the picked replica may be among them
	more := fallbacks
	for _, i := range t.ring.AppendOrder(space[:0], key, loads, len(space)) {
		if i != picked && more > 0 {
			b.WriteByte(',')
			b.WriteString(t.replicas[i].address)
			more--
		}
	}
	return b.String()
}
