package request

import (
	"cmp"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// lostCheck is how long after Lose the store looks whether a request without a final entry still
// has its Envoy. What an Envoy has told before it died has come by then.
const lostCheck = lateNews / 2

// Lose tells, after Close, that nobody sees the end of a request: its connection to Envoy has
// broken. If Envoy's final entry does not come within lostCheck, alive is called from another
// goroutine. It reports whether that Envoy lives: then the request may run on, and its entry comes
// at its end. Otherwise no entry comes, and the request ends without one. Lose does nothing if
// alive is nil, for a managed request that has ended well, and for one that was refused.
func (r *Record) Lose(alive func() bool) {
	if r == nil || alive == nil {
		return
	}
	hold, awaited := r.awaited()
	if !awaited {
		return
	}
	time.AfterFunc(lostCheck, func() {
		if !alive() {
			r.endLost(hold) // the record may have forgotten its hold
		}
	})
}

// awaited returns what a request holds that was closed, and whether only its final entry can tell
// how it has ended.
func (r *Record) awaited() (hold Hold, awaited bool) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	refused := r.hold == nil && r.outcome == nil && r.summary.Code != ""
	return r.hold, r.closed && !r.logged && !r.outcome.isWhole() && !refused
}

// endLost ends a request whose Envoy has died, unless its final entry has come. An entry that comes
// later counts nothing.
func (r *Record) endLost(hold Hold) {
	r.store.mu.Lock()
	if r.logged {
		r.store.mu.Unlock()
		return
	}
	r.logged, r.lost = true, true
	r.unnamed, r.untold = false, 0
	stream := r.summary.Stream
	r.store.mu.Unlock()
	var cost Cost
	if hold != nil {
		cost = hold.Correct(Response{Stream: stream, Failed: true, Abandoned: true, Lost: true})
	}
	r.store.mu.Lock()
	r.summary.lose()
	if hold != nil {
		r.summary.loseNative(cost)
	}
	q, managed := r.summary, r.outcome != nil
	r.store.mu.Unlock()
	if !managed { // else the relay has told it
		r.store.used(&q)
	}
	r.store.finish(&q)
}

// lose sets how a request has ended whose Envoy has died. Nobody knows what its client has got. The
// relay has seen that the client left, which was that Envoy.
func (q *Summary) lose() {
	if q.Cause == CauseClient {
		q.Cause, q.Code = "", ""
	}
	q.Code = cmp.Or(q.Code, string(openai.CodeGatewayUnavailable))
	q.Source = cmp.Or(q.Source, headers.SourceGateway)
	q.Cause = cmp.Or(q.Cause, CauseGateway)
	q.Cause = q.DisconnectCause()
}

// loseNative adds what is so for a request that was at a replica by Envoy alone.
func (q *Summary) loseNative(cost Cost) {
	q.Source, q.Route, q.Abandoned = headers.SourceGateway, RouteNative, true
	q.Attempts = max(q.Attempts, 1)
	q.estimate(cost)
}

// isWhole reports whether the relay has carried the request to a good end.
func (o *Outcome) isWhole() bool { return o != nil && o.Cause == "" && o.Fault == nil }

// watch looks every lateNews whether the Envoy of a request of before a restart lives, until the
// request has ended. When the Envoy has died, the request ends without a final entry.
func (r *Record) watch() {
	time.AfterFunc(lateNews, func() {
		r.store.mu.Lock()
		logged, pid := r.logged, r.interim.PID
		r.store.mu.Unlock()
		switch {
		case logged:
		case r.store.subscribers.Lives(pid):
			r.watch()
		default:
			time.AfterFunc(lostCheck, r.endRecovered)
		}
	})
}

// endRecovered ends a request of before a restart whose Envoy has died, unless its final entry has
// come. The last periodic entry says what the request has used. If no response had begun by then,
// the replica was at work on the request.
func (r *Record) endRecovered() {
	r.store.mu.Lock()
	if r.logged {
		r.store.mu.Unlock()
		return
	}
	r.logged, r.lost = true, true
	e := *r.interim
	e.Flags = "DC" // what Envoy writes of a request whose client's connection has ended
	e.Interim = false
	r.store.mu.Unlock()
	var cost Cost
	if r.store.subscribers.CostOf != nil {
		cost = r.store.subscribers.CostOf(&e)
	}
	if r.store.subscribers.Lost != nil {
		r.store.subscribers.Lost(&e)
	}
	r.store.mu.Lock()
	q := &r.summary
	q.applyEnd(&e)
	q.Flags = ""
	q.lose()
	q.Duration = time.Since(q.Started)
	q.estimate(cost)
	r.store.finishLocked(r)
	told := *q
	r.store.mu.Unlock()
	r.store.used(&told)
	r.store.finish(&told)
}
