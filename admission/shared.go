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

// Reason says what became of a claim or of a request.
type Reason uint8

// The reasons.
const (
	// Granted: nothing stands in the way.
	Granted Reason = iota
	// ModelConcurrency: the model has as many leases as it may.
	ModelConcurrency
	// ModelTokens: the model's bucket has too few tokens.
	ModelTokens
	// TenantRequests: the tenant has used up its requests a minute.
	TenantRequests
	// TenantTokens: the tenant's bucket has too few tokens.
	TenantTokens
	// TenantStreams: the tenant has as many requests at once as it may.
	TenantStreams
	// TenantPrefill: the tenant has as many requests in prefill as it may.
	TenantPrefill
	// ReplicaFull: the replica has as many requests as it may.
	ReplicaFull
	// TenantBytes: the tenant's waiting requests hold as many bytes as they may.
	TenantBytes
	// QueueFull: too many requests, or too many bytes, wait already.
	QueueFull
	// Evicted: the request waited, and one that goes before it needed its place.
	Evicted
	// Unavailable: the shared state did not answer in time.
	Unavailable
	// Stale: the limits have changed meanwhile; ask again.
	Stale
)

// ofLimits reports whether it is the limits of a model or of a tenant that stand in the way.
func (r Reason) ofLimits() bool { return r >= ModelConcurrency && r <= TenantPrefill }

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

// TenantLimits bound one tenant over all models. The zero value has no limits and the weight 1.
type TenantLimits struct {
	// Weight is the tenant's share beside others of its priority. 0 or less means 1.
	Weight int
	// RequestsPerMinute and TokensPerMinute are sizes of buckets that are full at first. 0 or less means no limit.
	RequestsPerMinute, TokensPerMinute int
	// MaxConcurrent bounds the tenant's requests that run or wait. 0 or less means no limit.
	MaxConcurrent int
	// MaxPrefill bounds the tenant's requests that are at a replica and have no token yet; more of them wait. 0 or less means no limit.
	MaxPrefill int
	// MaxQueueBytes bounds what the tenant's waiting requests hold. 0 or less means no limit but that of all.
	MaxQueueBytes int64
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
