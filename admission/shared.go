package admission

import (
	"context"
	"time"
)

// Shared is the state that several gateways share: leases, buckets and tasks. Package
// admission/redis keeps it in Redis. A Controller without a Shared shares with nobody.
//
// Each lease of a Controller is known to its Shared from Acquire or ReportLease until Release. The
// Shared renews what it knows, and reports it again to a store that has lost it. All methods are
// safe for concurrent use. Only those with a context block.
type Shared interface {
	// Acquire asks for the claims in their order. It calls done once, with one verdict for each
	// claim, within some 100 ms and from any goroutine. If the model's own limits deny a claim
	// (ModelConcurrency, ModelTokens), no later claim of the same call for that model is granted. A
	// later one gets the same verdict, so that no claim passes another. Claims under a task are
	// exempt from that. A claim whose ID already holds a lease is granted and charged nothing.
	Acquire(claims []Claim, done func([]Verdict))
	// ReportLease reports a lease that was granted without asking: the store did not answer, or the
	// request ran before a restart. It is called with Controller.mu held.
	ReportLease(Claim)
	// Release releases a lease and gives tokens back to the buckets of its model and its tenant. A
	// negative number charges more. unused also gives back the request. The account of a task is
	// kept in between, as in Claim.UnderTask.
	Release(id string, tokens int64, unused bool)
	// MoveSlot says that the request of a lease holds its slot on this replica now, even beyond the
	// replica's limit. "" means a replica that gateways do not share. It is called with
	// Controller.mu held.
	MoveSlot(id, replica string)
	// FirstToken says that the request is no longer in prefill.
	FirstToken(id string)
	// Correct corrects the buckets of a model and a tenant after a lease was released. A positive
	// number is given back. underTask is that of the lease's claim.
	Correct(model, tenant, underTask string, tokens int64)
	// Gateways returns the number of live gateways, this one included; at least 1. While the store
	// does not answer, it is the last known number.
	Gateways() int
	// Task finds a task of any gateway by its id. It fails with ErrUnknownTask or ErrUnavailable.
	Task(ctx context.Context, tenant, id string) (Task, error)
	// FindTask finds a task of any gateway by its key. Errors are those of Task, and ErrTaskEnded
	// for the key of a task that was completed a short time ago.
	FindTask(ctx context.Context, tenant, key string) (Task, error)
	// EndTask ends a task, once. The buckets get back what the task was charged beyond declared,
	// its cost, and beyond what its requests have used. A declared cost below 0 is unknown and
	// gives nothing back. While a request of the task runs, its lease stays. Errors are those of
	// Task.
	EndTask(ctx context.Context, tenant, id string, declared int64) error
	// RenewTask makes the task last for the time lease from now on, but not beyond its lifetime.
	// Errors are those of Task.
	RenewTask(ctx context.Context, tenant, id string, lease time.Duration) (Task, error)
	// Subscribe sets who is told of what happens at other gateways. It is called once, before all
	// other methods.
	Subscribe(Subscriber)
}

// Subscriber is told of what happens at other gateways. Its methods are called without a lock of
// the Shared, and must be quick.
type Subscriber interface {
	// CapacityFreed says that capacity of the model may have become free at another gateway.
	CapacityFreed(model string)
	// TokensServed says how many tokens of the model went to the tenant through other gateways
	// since the last call.
	TokensServed(model, tenant string, tokens int64)
	// TaskEnded says that another gateway has ended the task with this id. It may be unknown here.
	TaskEnded(id string)
	// TaskRenewed says that another gateway has renewed the task with this id for the time lease
	// from now on. It may be unknown here.
	TaskRenewed(id string, lease time.Duration)
}

// Claim is what one request asks of the shared state. It is granted as a whole or not at all.
type Claim struct {
	// ID is the id of the lease, unique over all gateways and all time.
	ID string
	// Model and Tenant are those whose limits the claim counts against.
	Model, Tenant string
	// Limits and TenantLimits are those in force. Only the rows of LimitTable with Shared matter.
	Limits       Limits
	TenantLimits TenantLimits
	// Tokens are charged to both buckets.
	Tokens int64
	// Recovered says that the lease is of before a restart, and that its tokens were charged then.
	Recovered bool
	// Prefill counts the request against TenantLimits.MaxPrefill until its first token.
	Prefill bool
	// Replica is the replica whose slot the request holds; "" means none. ReplicaLimit is how many
	// requests it may have at once; 0 means no limit.
	Replica      string
	ReplicaLimit int
	// Task is set for a task, whose lease expires unless it is renewed on demand.
	Task *TaskClaim
	// UnderTask is the id of the task whose request the claim is for; "" means none. Such a claim
	// holds a slot and counts as prefill, and the task holds the lease. Its tokens and requests
	// beyond the task's are charged. It is denied with TaskEnded if the tenant has no such task
	// for this model, and with TaskBusy while another request of the task runs. A Controller asks
	// again about a busy task for some 200 ms.
	UnderTask string
}

// TaskClaim is what is special about the lease of a task.
type TaskClaim struct {
	// Key is the caller's own id of the request. A repeated call with it finds the task of the
	// first. Keys belong to their tenant. "" finds nothing.
	Key string
	// Lease is how long the task lasts without a renewal, Lifetime how long it lasts at most.
	Lease, Lifetime time.Duration
}

// Verdict is the answer to a claim.
type Verdict struct {
	Reason Reason
	// Wait is how long the tokens or the request will be missing, if nobody else is charged. 0
	// means an unknown time.
	Wait time.Duration
	// ModelInUse counts the leases of the model over all gateways, the new one included.
	ModelInUse int
	// Quota is that of the tenant after the claim.
	Quota Quota
	// Task is the earlier task that the key of the claim has found. Its ID differs from the
	// claim's.
	Task *Task
}

// Quota is what a tenant has left.
type Quota struct {
	// Requests and Tokens are per minute.
	Requests, Tokens Allowance
}

// Allowance is one limit per minute and what is left of it.
type Allowance struct {
	// Limit is the limit. 0 means that there is none; the other fields then mean nothing.
	Limit int64
	// Remaining is what is left.
	Remaining int64
	// Reset is the time until the whole limit is available again.
	Reset time.Duration
}

// Task is admitted work that the caller does outside Sluice.
type Task struct {
	// ID is the handle of the task.
	ID string
	// Model is the model that it was admitted to, Tenant the tenant that it belongs to.
	Model, Tenant string
	// Tokens is the estimate that it was charged.
	Tokens int64
	// Expires is when its lease ends unless it is renewed, by the clock of this machine. Until is
	// when it ends at the latest. It is zero for a task that another gateway has admitted.
	Expires, Until time.Time
}
