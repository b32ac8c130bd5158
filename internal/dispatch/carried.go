package dispatch

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-gateway/sluice/admission"
)

// CarriedRequest is a request that an earlier process still carries. It counts here for its
// replica, its model and its tenant until Release. With shared state only the replica counts,
// because the earlier process keeps its leases there.
type CarriedRequest struct {
	dispatcher *Dispatcher
	// model and counter say where the slot is. here is the part of the counter for requests whose
	// address is not known, because the earlier process does not tell it.
	model   string
	counter *counter
	here    *atomic.Int64
	// lease is nil with shared state and for a request of a task.
	lease *admission.Lease
	// leaveTask ends the claim of the task of the request, and its renewals.
	leaveTask func()
	once      sync.Once
}

// Carry counts a request that an earlier process carries, even beyond the limits. Its estimate is
// not charged here, so Correct charges its whole cost. The request has the claim of its task here,
// too. The earlier process can no longer renew the task, so it is renewed here.
func (d *Dispatcher) Carry(r HeldRequest) *CarriedRequest {
	c := &CarriedRequest{dispatcher: d, model: r.Model}
	d.mu.Lock()
	c.counter = d.counterLocked(r.Model, r.Replica)
	c.here = c.counter.at("")
	c.counter.add(c.here, 1)
	d.mu.Unlock()
	c.leaveTask = d.holdTask(r.Tenant, r.Task)
	if d.config.Shared || r.SlotOnly {
		return c
	}
	c.lease = d.config.Admission.RecoverRequest(admission.RecoveredRequest{Model: r.Model, Tenant: r.Tenant, APIKey: r.APIKey})
	return c
}

// LeaveTask leaves the task of the request alone: another process, or another CarriedRequest, has
// the request from now on.
func (c *CarriedRequest) LeaveTask() { c.leaveTask() }

// Correct corrects the charge of the request to its real cost in tokens; negative: it is not known.
func (c *CarriedRequest) Correct(tokens int) {
	if c.lease != nil {
		c.lease.Correct(tokens)
	}
}

// Release frees the slot and the lease, and leaves the task alone. Only the first call has an
// effect.
func (c *CarriedRequest) Release() {
	c.once.Do(func() {
		c.leaveTask()
		c.counter.add(c.here, -1)
		c.dispatcher.wakeOthers(c.counter, c.model)
		if c.lease != nil {
			c.lease.Release() // admits the next waiter of the model
			return
		}
		c.dispatcher.config.Admission.RetryWaiters(c.model)
	})
}
