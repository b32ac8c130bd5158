package admission

import (
	"slices"
	"time"
)

// account is what the requests of a task use of the task's charge. The model and the tenant are
// charged the larger of the estimate and what the requests have used, and at least one request. An
// account outlives its task, because the real cost of a request may be known after the task's end.
// Controller.mu guards it. A nil account is that of a task that another gateway has admitted; then
// the shared state keeps the account, and this gateway's own buckets are charged all.
type account struct {
	// estimate is what the task was charged, with one request. At the task's end it becomes what
	// the caller declares.
	estimate int64
	// used is the sum of what its requests were charged: their real cost as soon as it is known.
	// requests is their number.
	used, requests int64
	// running counts the requests that hold a slot. ended says that the task has ended.
	running int
	ended   bool
	// lease is that of the task. The last running request of an ended task releases it.
	lease *Lease
}

// excess returns what the task does not cover of so many tokens and requests.
func (a *account) excess(tokens, requests int64) (int64, int64) {
	if a == nil {
		return tokens, requests
	}
	return max(a.estimate, a.used+tokens) - max(a.estimate, a.used),
		max(1, a.requests+requests) - max(1, a.requests)
}

// spend adds what a request uses, or takes it back if the numbers are negative. It returns what the
// buckets are to be charged.
func (a *account) spend(tokens, requests int64) (chargeTokens, chargeRequests int64) {
	if a == nil {
		return tokens, requests
	}
	tokens, requests = max(tokens, -a.used), max(requests, -a.requests)
	chargeTokens, chargeRequests = a.excess(tokens, requests)
	a.used += tokens
	a.requests += requests
	return chargeTokens, chargeRequests
}

// correct returns what the buckets get back of a task whose caller declares this cost. A task never
// costs less than its requests have used.
func (a *account) correct(declared int64) int64 {
	charged := max(a.estimate, a.used)
	a.estimate = declared
	return charged - max(declared, a.used)
}

// hold counts the requests that run (n = 1 or -1). It reports whether the last request of an ended
// task has left, so that its lease is to be released.
func (a *account) hold(n int) (last bool) {
	if a == nil {
		return false
	}
	a.running += n
	return a.ended && a.running == 0
}

// isHeld reports whether requests of an ended task still run, which keep its lease.
func (a *account) isHeld() bool { return a.ended && a.running > 0 }

// findAccount finds the account of the task to which the request belongs. The error is
// ErrUnknownTask.
func (c *Controller) findAccount(a *arrival, now time.Time) error {
	if a.UnderTask == "" {
		return nil
	}
	t := c.tasks.find(a.Tenant, a.UnderTask, now)
	switch {
	case t == nil && c.shared == nil, t != nil && t.Model != a.Model:
		return ErrUnknownTask
	case t != nil:
		a.setAccount(t.lease.account)
	}
	return nil
}

// endAccount says that the task has ended, and refuses those of its requests that wait.
func (c *Controller) endAccount(a *account) {
	a.ended = true
	g, refused := a.lease.gate, false
	for _, w := range slices.Clone(g.queue.underTasks) {
		if w.account == a {
			c.refuse(w, ErrUnknownTask)
			refused = true
		}
	}
	if refused {
		c.admitWaiters(g, time.Now()) // those behind may be admitted now
	}
}
