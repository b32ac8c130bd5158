package dispatch

import "time"

// observePredicted tells that a request was given to a replica, with its predicted time to the
// first token. prefill is the part of it in which the replica computes the request's own uncached
// tokens. The scaling of the model uses it.
func (l *estimator) observePredicted(now time.Time, ttft, prefill time.Duration) {
	l.recent.Add(now, ttft, prefill)
}
