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

// Lose tells, after Close, that nobody sees the end of a native request: its connection to Envoy
// has broken. If Envoy's final entry does not come within lostCheck, alive is called from another
// goroutine. It reports whether that Envoy lives: then the request may run on, and its entry comes
// at its end. Otherwise no entry comes, and the request ends without one.
func (r *Record) Lose(alive func() bool) {
	if r == nil {
		return
	}
	r.store.mu.Lock()
	hold, awaited := r.hold, r.closed && !r.logged
	r.store.mu.Unlock()
	if !awaited || hold == nil {
		return
	}
	time.AfterFunc(lostCheck, func() {
		if !alive() {
			r.endLost(hold) // the record may have forgotten its hold
		}
	})
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
	cost := hold.Correct(Response{Stream: stream, Failed: true, Abandoned: true, Lost: true})
	r.store.mu.Lock()
	q := r.summary.lose(cost)
	r.store.mu.Unlock()
	r.store.used(&q)
	r.store.finish(&q)
}

// lose sets how a request has ended whose Envoy has died. Nobody knows what its client has got.
func (q *Summary) lose(cost Cost) Summary {
	q.Source, q.Route, q.Abandoned = headers.SourceGateway, RouteNative, true
	q.Code = cmp.Or(q.Code, string(openai.CodeGatewayUnavailable))
	q.Attempts = max(q.Attempts, 1)
	if q.Stream {
		q.Cause = CauseGateway
	}
	q.estimate(cost)
	return *q
}
