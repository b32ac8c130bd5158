package dispatch

import "time"

// FirstModel returns the model that a request may go to, or the first of a pool. It is empty for a
// request that Dispatch would refuse. It reads the Model, the Endpoint and Allowed of the request.
func (d *Dispatcher) FirstModel(r *Request) string {
	_, c, fault := d.resolve(r)
	if fault != nil {
		return ""
	}
	return c.members[0].Name
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
