package dispatch

import "time"

// Forecast is what dispatch knows of a request before the request is sent.
type Forecast struct {
	// Exists says that the model or pool exists, that the tenant may use it, and that it may be
	// dispatched to. If it is false, the other fields are zero, and Dispatch returns the reason.
	Exists bool
	// Models are the names of the models that the request may go to: one model, or those of a pool.
	// The caller owns the slice.
	Models []string
	// Cold says that no replica of these models is ready, and that one has to be started.
	Cold bool
	// TTFT is the usual time to the first token of a prompt of this length, counted from when the
	// request leaves for a replica. For several models it is the longest. 0 means not known.
	TTFT time.Duration
}

// Forecast returns the forecast of a request and changes nothing. It reads the Model, Allowed,
// Tenant and PromptBytes of the request.
func (d *Dispatcher) Forecast(r *Request) Forecast {
	_, c, fault := d.resolve(r)
	if fault != nil {
		return Forecast{}
	}
	f := Forecast{Exists: true, Models: make([]string, len(c.members)), Cold: c.starts(), TTFT: c.firstToken(r.PromptBytes)}
	for i, t := range c.members {
		f.Models[i] = t.Name
	}
	return f
}

// firstToken returns the usual time to the first token of a prompt of so many bytes. For several
// models it is the longest. 0 means not known.
func (c choice) firstToken(promptBytes int) (longest time.Duration) {
	for _, t := range c.members {
		longest = max(longest, t.estimator.firstToken(promptBytes))
	}
	return longest
}

// starts reports whether no model of the choice has a pickable replica and a replica has to be
// started.
func (c choice) starts() bool {
	return !c.any(func(t *modelRoute) bool { return len(t.replicas) > 0 }) && c.any((*modelRoute).cold)
}
