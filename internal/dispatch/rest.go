package dispatch

import (
	"cmp"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
)

// A replica that has too much to do rests for defaultRest if it does not say how long, and at most
// for maxRest.
const (
	defaultRest = time.Second
	maxRest     = 10 * time.Second
)

// WantsRest reports whether an answer with this status says that the replica has too much to do.
// The answer is a 429, or a 503 that says when the next request may come.
func WantsRest(status int, retryAfter time.Duration) bool {
	return status == 429 || status == 503 && retryAfter > 0
}

// RestOf reports whether an entry of Envoy's access log says so.
func RestOf(e *request.Entry) bool {
	return e.Log == headers.LogAttempts && !e.Interim && WantsRest(e.Status, e.RetryAfter)
}

// Rest reports that the replica has too much to do. It gets no new request for as long as it says,
// or for a second if retryAfter is 0, and at most for ten seconds. The last replica of a model that
// does not rest goes on.
func (d *Dispatcher) Rest(replica string, retryAfter time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c, now := d.counters[replica], time.Now()
	if c == nil || len(c.models()) == 0 {
		return
	}
	routes := d.table.Load().routes
	for _, model := range c.models() {
		if !routes[model].hasOther(c, now) {
			return
		}
	}
	d.markFull(c, min(cmp.Or(retryAfter, defaultRest), maxRest))
}

// hasOther reports whether the model has a replica beside the one of c that does not rest now.
func (t *modelRoute) hasOther(c *counter, now time.Time) bool {
	for _, r := range t.replicas {
		if r.counter != c && !r.rests(now) {
			return true
		}
	}
	return false
}
