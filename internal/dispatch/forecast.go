package dispatch

import "time"

// Forecast is what can be said of a request before it is sent.
type Forecast struct {
	// Exists says that the model, or the pool, is there for this tenant, and may be dispatched to.
	// Where it is false, nothing else is known, and Dispatch says why.
	Exists bool
	// Models are the names of the models that the request may go to: one, or those of its pool. The
	// slice is the caller's.
	Models []string
	// Cold says that no replica of any of them is ready, and one has to be started.
	Cold bool
	// TTFT is the usual time to the first token of a prompt of this length, counted from when the
	// request leaves for a replica; of several models the longest. 0: not known.
	TTFT time.Duration
}

// Forecast looks ahead, and changes nothing. It reads Model, Allowed, Tenant and PromptBytes of the
// request.
func (d *Dispatcher) Forecast(r *Request) Forecast {
	c, fault := d.table.Load().resolve(r)
	if fault != nil {
		return Forecast{}
	}
	f := Forecast{Exists: true, Models: make([]string, len(c.members)), Cold: c.starts(), TTFT: c.firstToken(r.PromptBytes)}
	for i, t := range c.members {
		f.Models[i] = t.Name
	}
	return f
}

// firstToken is the usual time to the first token of a prompt of so many bytes: of several models
// the longest, 0 if no model knows it.
func (c choice) firstToken(promptBytes int) (longest time.Duration) {
	for _, t := range c.members {
		longest = max(longest, t.estimator.firstToken(promptBytes))
	}
	return longest
}

// starts says that no model of the choice has a replica that may be picked now, and one has to be
// started first.
func (c choice) starts() bool {
	return !c.any(func(t *modelRoute) bool { return len(t.replicas) > 0 }) && c.any((*modelRoute).cold)
}
