package admission

import "time"

// Priority is the band in which a request waits. Bands are strict: a waiter of a higher band is
// admitted before one of a lower band, except for ageing (Config.Ageing).
type Priority int8

// The bands. Any other value counts as the nearest of them.
const (
	Batch       Priority = -1
	Default     Priority = 0
	Interactive Priority = 1
)

// Slot is a hold on one replica, as Request.Locked.ReserveSlot returns it.
type Slot struct {
	// Replica is the id of the replica. "" means that no replica is involved.
	Replica string
	// Limit is the number of requests that the replica may have at once over all gateways. 0 means
	// no limit.
	Limit int
	// OnFull is called when other gateways have filled the replica. It is called without
	// Controller.mu, and before ReleaseSlot. After it, ReserveSlot must not return this replica for
	// a moment, and the callee must call RetryWaiters when that moment is over. If OnFull is nil,
	// the Controller calls ReserveSlot again after a backoff.
	OnFull func()
}

// LockedHooks are the callbacks of a request that the Controller calls with Controller.mu held. A
// hook must be quick and must not call the Controller. It must not take a lock under which anybody
// calls the Controller.
type LockedHooks struct {
	// Allowed reports whether the request may go to this model of Request.Pool. It is also false
	// for a model that has no replica now. nil means that all models are allowed. It is not called
	// when Request.Pool is "".
	Allowed func(model string) bool
	// ReserveSlot reserves a slot on a replica of the model, and reports whether it found one. It
	// is called when nothing else keeps the request waiting. After false it is called again when
	// something has changed: a lease was released, another waiter left, or RetryWaiters was called.
	// nil means that the request needs no slot.
	ReserveSlot func(model string) (Slot, bool)
	// HoldsOut reports whether the last ReserveSlot found a free slot and did not take it, because
	// a better replica will soon have one. Others may pass such a waiter. The request must call
	// RetryWaiters when it will wait no longer. nil means that the request takes any slot.
	HoldsOut func() bool
	// WouldFreeSlot reports whether another request would find a slot if this one gave back its
	// own. The Controller asks it of a preemption candidate, and only while the request holds a
	// lease. nil means yes.
	WouldFreeSlot func() bool
}

// UnlockedHooks are the callbacks of a request that the Controller calls without Controller.mu, so
// they may call the Controller.
type UnlockedHooks struct {
	// ReleaseSlot gives back the slot that ReserveSlot returned, if the request could not use it.
	// It is called before ReserveSlot is called again and before Admit or Pending.Await returns, by
	// their goroutine or by one of Shared.
	ReleaseSlot func()
	// OnWait is called by the goroutine of Admit, Begin, Pending.Await or Pending.AwaitFor. It says
	// that the request has entered a queue and is about to wait, or that the verdict of the shared
	// state takes longer than 250 ms. It is called at most once, and once more if the verdict on a
	// key with limits of its own is late.
	OnWait func()
	// OnBlock is called by the same goroutine when that is about to block: before OnWait, and also
	// if only the verdict of the shared state is to come. A request of a key with limits of its own
	// may call it twice.
	OnBlock func()
	// OnPreempt makes the lease preemptible until its first token (Lease.FirstToken). nil means
	// that the lease is never preempted. The Controller calls OnPreempt at most once, when a
	// request of a higher band waits for what the lease holds. The lease keeps everything that it
	// holds until its holder releases it; then all that it was charged is given back.
	//
	// OnPreempt may be called before Admit has returned. The goroutine is any that calls a method
	// of the Controller, and that caller may hold locks of its own: dispatch.Dispatcher.SetRules
	// holds Dispatcher.mu. So OnPreempt must be quick, and must not take such a lock.
	OnPreempt func()
}

// Request asks for a lease.
type Request struct {
	// Model is the model's name, as given to SetLimits.
	Model string
	// Pool asks for any model of this pool instead of Model, unless it is "". Lease.Model returns
	// the model that was chosen.
	Pool string
	// Tenant is who asks. Tenants share a model by their weights.
	Tenant string
	// APIKey names the caller's key if it has limits of its own, which SetTenants has under
	// KeyTenant. They hold beside those of the tenant. "" means none.
	APIKey string
	// Priority is the request's band.
	Priority Priority
	// Tokens is the estimate of what the request will cost of the tokens per minute. Below 0 means
	// 0.
	Tokens int
	// Guessed is how many of Tokens are a guess of the answer. They are lowered to what the limits
	// per minute can ever grant, so that a guess refuses nobody for good.
	Guessed int
	// Bytes is the memory that the request keeps in use while it waits. Below 0 means 0.
	Bytes int
	// Timeout is how long the request may wait, in place of the model's QueueTimeout. It may be
	// shorter or longer. 0 or less means QueueTimeout.
	Timeout time.Duration
	// Prefill counts the request against TenantLimits.MaxPrefill until Lease.FirstToken.
	Prefill bool
	// UnderTask is the id of the task that the request belongs to; "" means none. The task already
	// holds a lease, so the request needs only a slot. Its tokens are taken from the estimate that
	// the task was charged. What exceeds the estimate is charged to the model and the tenant, and
	// so is every request of the task after the first. Limits on these may refuse the request or
	// make it wait. It waits in the same order as all other requests, except that a request that
	// waits for a lease does not hold it up.
	UnderTask string
	// Preempted says that the request had a lease before, which was preempted. It is admitted
	// before all other requests of its tenant. Limits that refuse on arrival make it wait instead,
	// and a full queue accepts it. It is refused only if it can never be admitted.
	Preempted bool
	// Locked are the callbacks that are called with Controller.mu held.
	Locked LockedHooks
	// Unlocked are the callbacks that are called without it.
	Unlocked UnlockedHooks
	// WaitHandle can be asked for the request's position while it waits. nil means that nobody
	// asks.
	WaitHandle *WaitHandle
}

// RecoveredRequest is a request that ran before a restart of the gateway and still runs.
type RecoveredRequest struct {
	// Model serves the request. Tenant is who sent it; "" while that is unknown.
	Model, Tenant string
	// APIKey is the name of the caller's key, if it is known.
	APIKey string
	// UnderTask is as in Request. The request counts as any other one if the task has ended.
	UnderTask string
	// ID is the id of its lease before the restart. "" means that nobody knows the id.
	ID string
	// Replica is that of the slot that the request holds, as Slot.Replica.
	Replica string
	// Tokens is the estimate that the request was charged before the restart. It is not charged
	// again. Lease.Correct charges what the request has cost beyond it.
	Tokens int
}

// TaskRequest asks for a task.
type TaskRequest struct {
	// Model or Pool, Tenant, Priority and Tokens are as in Request. Allowed is as in LockedHooks,
	// and obeys the same rules: it is called with Controller.mu held.
	Model, Pool string
	Allowed     func(model string) bool
	Tenant      string
	Priority    Priority
	Tokens      int
	// APIKey is as in Request. It is the name of the tenant, a slash and the id of the key.
	APIKey string
	// Key makes a repeated call return the task of the first call while that task lives. Keys
	// belong to their tenant. "" means that every call makes a new task.
	Key string
	// Lease is how long the task lasts without a renewal. 0 or less means 15 minutes.
	Lease time.Duration
	// Lifetime is how long the task lasts at most, however often it is renewed. 0 or less means 4
	// hours.
	Lifetime time.Duration
	// MaxWait is how long the call may wait to be admitted. 0 or less means that it does not wait.
	MaxWait time.Duration
}

// Stats is the state of a model at one moment.
type Stats struct {
	// InFlight is the number of leases of this process, tasks included.
	InFlight int
	// Queued is the number of waiters. At least AtTenantLimits of them cannot go because of limits
	// of their tenants.
	Queued, AtTenantLimits int
	// LacksTokens means that the next waiter cannot go because the model's tokens are used up.
	LacksTokens bool
	// QueuedBytes is the sum of the waiters' Request.Bytes.
	QueuedBytes int64
	// Tokens is the level of the model's token bucket, as this process knows it. -1 means that the
	// model has no token limit.
	Tokens float64
	// Share is the number of leases of all gateways, as last heard. Without other gateways it
	// equals InFlight.
	Share int
}

// TenantStats is the state of a tenant at one moment, over all models.
type TenantStats struct {
	// Running is the number of leases, tasks included. Prefill of them have had no token yet.
	Running, Prefill int
	// Queued is the number of waiters, QueuedBytes the sum of their Request.Bytes.
	Queued      int
	QueuedBytes int64
	// Quota is what is left of the limits per minute.
	Quota Quota
}
