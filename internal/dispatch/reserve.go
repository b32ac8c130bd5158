package dispatch

import (
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/predict"
)

// fallbacks bounds how many replicas Envoy may retry on beside the picked one.
const fallbacks = 3

// reserve picks a replica, acquires a slot on it and records both in the ticket. It returns false
// if no replica has a free slot.
func (t *modelRoute) reserve(key uint64, ticket *Ticket) (admission.Slot, bool) {
	f := forecastsPool.Get().(*forecasts)
	defer forecastsPool.Put(f)
	for {
		now := time.Now()
		f.loads = t.loads(f.loads[:0])
		p := pickInput{key: key, loads: f.loads, now: t.warmUpTime(), forecasts: f}
		if t.forecasts() {
			t.forecast(f, &ticket.prompt, p.loads, now)
			t.capPrefill(&p)
		} else {
			t.findPrevious(f, &ticket.prompt, now)
		}
		i := t.pick(&p)
		ticket.holdsOut = p.mustWait || i >= 0 && !f.pinned && t.holdOut(&p, i, ticket, now)
		if i < 0 || ticket.holdsOut {
			return admission.Slot{}, false
		}
		if r := &t.replicas[i]; r.acquire(ticket.watch) {
			expected := t.expect(&p, &ticket.prompt, i, now)
			if most := ticket.dispatcher.candidatesToExplain(len(t.replicas), now); most > 0 {
				t.explainPick(&p, pickExplained{i, &ticket.prompt, most}, &expected.Prediction)
			}
			ticket.setSlot(t, i, t.endpoints(key, i, &p), expected)
			return ticket.dispatcher.slotAt(r), true
		}
		// Another model that shares the replica acquired the slot first. Pick again with the new
		// load.
	}
}

// slotAt returns what admission knows of a slot of the replica.
func (d *Dispatcher) slotAt(r *replica) admission.Slot {
	if r.sharedID == "" {
		return admission.Slot{}
	}
	slot := admission.Slot{Replica: r.sharedID, Limit: r.limit}
	if d.config.Shared {
		slot.OnFull = func() { d.markFull(r.counter, fullFor) }
	}
	return slot
}

// expectation is what is expected of a request that goes to its replica.
type expectation struct {
	Prediction
	// pinned says that no other replica can serve the request.
	pinned  bool
	work    predict.Work
	matched int32
	at      time.Time
}

// expect puts a request into the queue of replica i and returns what is expected of it.
func (t *modelRoute) expect(p *pickInput, q *prompt, i int, now time.Time) (e expectation) {
	f, uncached := p.forecasts, q.tokens
	if t.forecasts() {
		uncached, e.matched = f.uncached[i], f.matched[i]
	}
	r := &t.replicas[i]
	e.at, e.pinned = now, f.pinned
	e.work = r.queue.Begin(now, int(r.load.Load())-1, uncached)
	e.Prediction = Prediction{TTFT: e.work.TTFT, Reason: string(p.why)}
	if t.isCacheAware() && q.chain.Bytes > 0 {
		e.Known = true
		e.MatchedTokens = int(q.matchedTokens(e.matched))
		e.Moved = t.moved(f, p.loads, i)
	}
	return e
}

// forecasts reports whether a pick needs a forecast of every replica.
func (t *modelRoute) forecasts() bool {
	return t.strategy != nil && t.strategy.cacheAware || t.policy.MaxPrefillTokensPerReplica > 0
}

// loads appends the current load of each replica to into. -1 stands for a replica without a free
// slot.
func (t *modelRoute) loads(into []int) []int {
	for i := range t.replicas {
		r := &t.replicas[i]
		n := r.load.Load()
		if r.full(n) {
			n = -1
		}
		into = append(into, int(n))
	}
	return into
}

// endpoints returns the value of the header that Envoy's override_host policy reads. A request that
// only one of several replicas can take has that one twice. Envoy may repeat such a request on a
// new connection. After the end of the list it would pick another replica by itself, one that is
// full, or that the routing table does not have.
func (t *modelRoute) endpoints(key uint64, picked int, p *pickInput) string {
	address := t.replicas[picked].address
	if !p.forecasts.pinned {
		list := t.list(key, picked, p.loads)
		if list != address || len(t.source.Replicas) == 1 {
			return list
		}
	}
	return address + "," + address
}

// list returns the endpoints of a request that is not pinned: the picked replica, then other
// replicas with a free slot in ring order. All are in the cluster of the picked one,
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
	var text [96]byte // four addresses of IPv4
	b := append(text[:0], t.replicas[picked].address...)
	var space [fallbacks + 1]int // the picked replica may be among them
	more := fallbacks
	for _, i := range t.ring.AppendOrder(space[:0], key, loads, len(space)) {
		if i != picked && more > 0 {
			b = append(b, ',')
			b = append(b, t.replicas[i].address...)
			more--
		}
	}
	return string(b)
}
