package admission

import (
	"context"
	"time"
)

// Shared is capacity that several gateways share. Package admission/redis keeps it in Redis. A Controller without one shares with
// nobody.
//
// Every lease of a Controller is known to its Shared: it was granted by Acquire or told by Keep, and it is forgotten by Release. What
// is known is renewed, and is told again to a store that has lost it. All methods are safe for concurrent use; none but those
// with a context blocks.
type Shared interface {
	// Acquire asks for the claims in their order and calls done once, with one verdict for each, within some 100 ms and from any
	// goroutine. After a claim that its model's own limits turned away (ModelConcurrency, ModelTokens), no later claim of the
	// same call for that model is granted: they get the same verdict, so that nobody passes. A claim whose ID holds a lease already is
	// granted and takes nothing more.
	Acquire(claims []Claim, done func([]Verdict))
	// Keep tells of a lease that was taken without asking: the store did not answer, or the request is of before a restart.
	ReportLease(Claim)
	// Release ends a lease and gives so many of its tokens back to the buckets of its model and its tenant. A negative number
	// takes more. A lease of a request that was never begun also gives back the request.
	Release(id string, tokens int64, unused bool)
	// FirstToken tells that the request has had its first token and is no longer in prefill.
	FirstToken(id string)
	// Settle corrects the buckets of a model and a tenant after a lease has ended: a positive number is given back.
	Correct(model, tenant string, tokens int64)
	// Gateways is how many gateways live, this one included; at least 1. While the store does not answer, it is what was last known.
	Gateways() int
	// Task finds a task of any gateway by its id. It fails with ErrUnknownTask, or with ErrUnavailable.
	Task(ctx context.Context, tenant, id string) (Task, error)
	// EndTask ends a task, once; tokens is as in Release. Errors are those of Task.
	EndTask(ctx context.Context, tenant, id string, tokens func(Task) int64) error
	// RenewTask makes the task last for so long from now on. Errors are those of Task.
	RenewTask(ctx context.Context, tenant, id string, lease time.Duration) error
	// Attach names who is told of what happens elsewhere. It is called once, before anything else.
	Subscribe(Subscriber)
}

// Listener hears from a Shared. Its methods are called without a lock of the Shared and must be quick.
type Subscriber interface {
	// Freed tells that capacity of the model may have become free elsewhere.
	CapacityFreed(model string)
	// Served tells that so many tokens of the model went to the tenant through other gateways since the last word.
	TokensServed(model, tenant string, tokens int64)
}

// Claim is what one request takes: everything, or nothing.
type Claim struct {
	// ID is the lease's, unique over all gateways and all time.
	ID string
	// Model and Tenant whose limits it counts against.
	Model, Tenant string
	// Limits and TenantLimits that hold. Only the fields that bound running requests and tokens matter.
	Limits       Limits
	TenantLimits TenantLimits
	// Tokens to take from both buckets.
	Tokens int64
	// Prefill counts the request against TenantLimits.MaxPrefill until its first token.
	Prefill bool
	// Replica whose slot it takes, and the most that this replica is given at once; 0 is no limit, "" is no replica.
	Replica      string
	ReplicaLimit int
	// Task, if it is one: its lease ends by itself and is renewed only on demand.
	Task *TaskClaim
}

// TaskClaim is what is particular about the lease of a task.
type TaskClaim struct {
	// Key makes a repeated call find the task of the first: the caller's own request id. Empty: nothing does. Keys belong to their tenant.
	Key string
	// Lease is how long the task lasts without a renewal.
	Lease time.Duration
}

// Verdict is the answer to a claim.
type Verdict struct {
	Reason Reason
	// Wait is how long the tokens or the request will take to come, if nobody else takes any; 0 for what ends at no known time.
	Wait time.Duration
	// ModelInUse and ReplicaInUse count the leases of the model and of the replica over all gateways, this one included if granted.
	ModelInUse, ReplicaInUse int
	// Quota of the tenant after the claim.
	Quota Quota
	// Task is the one that a claim with a known key has found; its ID differs from the claim's.
	Task *Task
}

// Quota is what a tenant has left.
type Quota struct {
	// Requests and Tokens a minute.
	Requests, Tokens Allowance
}

// Allowance is one limit a minute and what is left of it.
type Allowance struct {
	// Limit is 0 where there is none; then the others mean nothing.
	Limit int64
	// Remaining of the limit.
	Remaining int64
	// Reset is the time until the whole limit is there again.
	Reset time.Duration
}

// Task is work that was admitted here and is done elsewhere.
type Task struct {
	// ID is the handle of the task.
	ID string
	// Model it was admitted to, Tenant whose it is.
	Model, Tenant string
	// Tokens it was estimated to cost.
	Tokens int64
	// Expires is when its lease ends unless it is renewed. The clock is that of this machine.
	Expires time.Time
}
