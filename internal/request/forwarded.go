package request

import (
	"sync"
	"time"
)

// forwarded is the Follower of a request that another process has forwarded, which has its record.
type forwarded struct {
	store *Store
	mu    sync.Mutex
	// summary has what is told of the usage, and told says that it was. Guarded by mu.
	summary Summary
	told    bool
}

// Forwarded returns the Follower of a request that another gateway, or the process before this one,
// has forwarded and has a record of. The request may also be one whose record has ended before it.
// What the request uses here is told here, and nothing else.
func (s *Store) Forwarded(a Arrival) Follower {
	return &forwarded{store: s, summary: Summary{Tenant: a.Tenant, Key: a.Key, Model: clip(a.Model), Stream: a.Stream}}
}

// SetDispatched implements Follower.
func (f *forwarded) SetDispatched(model, replica string, _ time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.summary.Model, f.summary.Replica = model, replica
}

// SetPrediction implements Follower.
func (f *forwarded) SetPrediction(Prediction) {}

// AddRetry implements Follower.
func (f *forwarded) AddRetry(string, string) {}

// SetTrace implements Follower.
func (f *forwarded) SetTrace(string, string) {}

// SetCanceller implements Follower. The gateway that has the record cancels.
func (f *forwarded) SetCanceller(Canceller) {}

// SetOutcome implements Follower.
func (f *forwarded) SetOutcome(o Outcome) {
	f.mu.Lock()
	used := !f.told && !o.UsedElsewhere
	f.told = true
	f.summary.applyOutcome(&o)
	f.summary.UsedApart = true
	q := f.summary
	f.mu.Unlock()
	if used {
		f.store.used(&q)
	}
}

// SetUsage implements Follower. The gateway that has the record shows the usage.
func (f *forwarded) SetUsage(Usage) {}
