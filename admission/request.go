package admission

import "time"

// Priority is the band in which a request waits. A higher band goes first, but never keeps a lower one waiting for ever (Config.Ageing).
type Priority int8

// The bands. Other values count as the nearest of them.
const (
	Batch       Priority = -1
	Default     Priority = 0
	Interactive Priority = 1
)

// Slot is a place on a replica.
type Slot struct {
	// Replica is its id; "" is no replica.
	Replica string
	// Limit is how many requests the replica may have at once over all gateways; 0 is no limit.
	Limit int
	// Full is called, without a lock and before Unplace, when other gateways have filled the replica. Place must then not offer it for a
	// moment, and Kick must be called after it. nil: Place is called again after a while.
	OnFull func()
}

// Request asks for a lease.
type Request struct {
	// Model is the model's name, as given to SetLimits.
	Model string
	// Pool, if not empty, asks for any model of this pool instead. Lease.Model says which it became.
	Pool string
	// Allowed says which of a pool's models the request may go to; nil means all. It is also false for a model that has no replica
	// now. It is called with the Controller locked: it must be quick and must not call it.
	Allowed func(model string) bool
	// Tenant is who asks. Tenants share a model by their weight.
	Tenant string
	// Priority is the request's band.
	Priority Priority
	// Tokens is what the request is estimated to cost of the tokens a minute. Below 0 means 0.
	Tokens int
	// Bytes is the memory that the request keeps in use while it waits. Below 0 means 0.
	Bytes int
	// Timeout is how long the request may wait, in place of the model's QueueTimeout: shorter, or longer (a model that is only
	// starting). 0 or less means the model's.
	Timeout time.Duration
	// Prefill counts the request against the tenant's MaxPrefill until Lease.FirstToken.
	Prefill bool
	// Admitted says that a task has taken the request's tokens and its place in the limits already. It takes nothing but a slot,
	// and waits for that in the same order as all others.
	SlotOnly bool
	// Place takes a slot on a replica of the model and says whether it found one. It is called when everything else is there, with
	// the Controller locked: it must be quick and must not call it. After a false it is called again when something changed: a
	// lease was released, another request left, or Kick. nil means that no slot is needed.
	ReserveSlot func(model string) (Slot, bool)
	// Unplace gives back the slot that Place took, if the request could not use it. It is called without a lock, and before Place
	// is called again or Admit returns.
	ReleaseSlot func()
	// OnWait is called once, without a lock, when the request has a place in the queue and is about to wait.
	OnWait func()
	// Preempt, unless it is nil, says that the lease may be preempted until its first token (Lease.FirstToken): Preempt is called once, without
	// a lock and from any goroutine, when a request of a higher band waits for its place, and must be quick. The lease stays until it is released, and
	// everything that it took is given back then. Preempt may be called before Admit has returned.
	OnPreempt func()
	// Helps reports whether another request would find a slot if this one gave back its own. It is called, like Place, with the Controller
	// locked. nil means yes.
	WouldFreeSlot func() bool
	// Preempted says that the request had a lease before, which was preempted. It goes before all others of its tenant and is refused
	// only when it can never go: limits that refuse on arrival make it wait, and the queue has always room for it.
	Preempted bool
	// Spot can be asked for the request's position while it waits. nil: nobody asks.
	WaitHandle *WaitHandle
}

// Resumed is a request that runs already, as one does whose admission was before a restart.
type RecoveredRequest struct {
	Model, Tenant string
	// ID of its lease, if it had one.
	ID string
	// Tokens it was estimated to cost, for Lease.Settle. They are not taken again.
	Tokens int
}

// TaskRequest asks for a task.
type TaskRequest struct {
	// Model or Pool, Allowed, Tenant, Priority and Tokens are as in Request.
	Model, Pool string
	Allowed     func(model string) bool
	Tenant      string
	Priority    Priority
	Tokens      int
	// Key makes a repeated call find the task of the first, as long as that lives. Keys belong to their tenant; "" finds nothing.
	Key string
	// Lease is how long the task lasts without a renewal. 0 or less means 15 minutes.
	Lease time.Duration
	// MaxWait is how long the call may wait for its turn. 0 or less: it does not.
	MaxWait time.Duration
}

// Stats is a model's state at one moment.
type Stats struct {
	// InFlight is the number of leases of this process, tasks included.
	InFlight int
	// Queued is the number of waiting requests.
	Queued int
	// QueuedBytes is the sum of their Bytes.
	QueuedBytes int64
	// Tokens are in the model's bucket now, by this process's own book; -1 when it has no token limit.
	Tokens float64
	// Share is the number of leases of all gateways as last heard; without others it is InFlight.
	Share int
}

// TenantStats is a tenant's state at one moment, over all models.
type TenantStats struct {
	// Running is the number of leases, tasks included; Prefill of them have had no token yet.
	Running, Prefill int
	// Queued requests wait, and hold QueuedBytes.
	Queued      int
	QueuedBytes int64
	// Quota is what is left.
	Quota Quota
}
