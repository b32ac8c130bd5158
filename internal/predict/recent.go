package predict

import (
	"math"
	"sync"
	"time"
)

// recentTime is the time in which the weight of a prediction in Recent falls to 1/e.
const recentTime = 20 * time.Second

// Recent is what was predicted for the requests of the last half minute or so. The zero value has
// no request. Its methods are safe for concurrent use.
type Recent struct {
	mu sync.Mutex
	// at is when the sums were decayed last. requests, ttft and prefill are the decayed sums, of
	// requests and of seconds; guarded by mu
	at                      time.Time
	requests, ttft, prefill float64
}

// Flow is what requests bring in each second. The zero value is no request.
type Flow struct {
	// Requests is the number of requests per second.
	Requests float64
	// TTFT and Prefill are sums of seconds per second. TTFT adds up the predicted times to the
	// first token. Prefill adds up the part of them in which a replica computes the request's own
	// prompt. It is so the number of replicas that these prompts keep busy.
	TTFT, Prefill float64
}

// Add returns the sum of the flows at two gateways.
func (f Flow) Add(o Flow) Flow {
	return Flow{Requests: f.Requests + o.Requests, TTFT: f.TTFT + o.TTFT, Prefill: f.Prefill + o.Prefill}
}

// Add adds the prediction of a request. prefill is the part of ttft in which the replica computes
// the request's own uncached tokens.
func (r *Recent) Add(now time.Time, ttft, prefill time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decayLocked(now)
	r.requests++
	r.ttft += ttft.Seconds()
	r.prefill += prefill.Seconds()
}

// Flow returns the flow of the recent requests. It is zero when they are too long ago to tell.
func (r *Recent) Flow(now time.Time) Flow {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decayLocked(now)
	if r.requests < 1 {
		return Flow{}
	}
	t := recentTime.Seconds()
	return Flow{Requests: r.requests / t, TTFT: r.ttft / t, Prefill: r.prefill / t}
}

// decayLocked lets the sums decay up to now.
func (r *Recent) decayLocked(now time.Time) {
	passed := now.Sub(r.at)
	if passed <= 0 {
		return
	}
	r.at = now
	kept := math.Exp(-passed.Seconds() / recentTime.Seconds())
	r.requests, r.ttft, r.prefill = r.requests*kept, r.ttft*kept, r.prefill*kept
}
