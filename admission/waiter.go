package admission

import "time"

// arrival is a request with its values in their bounds, and what is special about a task.
type arrival struct {
	Request
	// cost is what the request counts in the fair order: its tokens, at least one.
	cost int64
	band int
	// task is set, with its id, if the request is to become a task.
	task   *TaskClaim
	taskID string
	// noWait says that the request does not wait, but is told when to try again.
	noWait bool
	// counted says that the sums of waiters include the request.
	counted bool
}

func newArrival(r Request) arrival {
	r.Tokens = min(max(r.Tokens, 0), maxTokens)
	r.Bytes = max(r.Bytes, 0)
	return arrival{Request: r, cost: int64(max(r.Tokens, 1)), band: r.Priority.band()}
}

// charge is what the request will be charged.
func (a *arrival) charge() int64 {
	if a.SlotOnly {
		return 0
	}
	return int64(a.Tokens)
}

type waiterState uint8

// The states of a waiter. Queued and returned waiters are in a queue. An asked one is part of an
// inquiry. A denied one has its verdict and is about to be requeued.
const (
	stateIdle waiterState = iota
	stateQueued
	stateReturned
	stateAsked
	stateDenied
	stateDecided
)

// waiter is a request that was not decided at once. Controller.mu guards it until done is closed;
// after that, lease, foundTask or err says how it ended.
type waiter struct {
	arrival
	tenant   *tenant
	arrived  time.Time
	deadline time.Time

	state waiterState
	// homeQueue is the queue in which it waits. Until its first verdict, a request for a pool may
	// be in the queue of a member instead.
	homeQueue *queue
	queue     *queue
	flow      *flow
	links     [2]link
	done      chan struct{}

	lease     *Lease
	foundTask *Task
	err       error

	// The fields below are for waiters of an inquiry.

	// newcomer says that no verdict has made it wait yet. mustWait is closed when one does.
	newcomer bool
	mustWait chan struct{}
	// triedGates are the members of its pool at which it was enqueued in vain.
	triedGates []*gate
	id         string
	slot       Slot
	// grantedAlone says that this gateway admitted it without the shared state.
	grantedAlone bool
	// hasSlot says that it holds a slot from ReserveSlot.
	hasSlot bool
	// cancelled says that its caller has left, so whatever is granted is given back. cancelErr
	// makes it fail with this error unless it is granted now.
	cancelled bool
	cancelErr error
	// staleVerdicts counts verdicts in a row that were for old limits.
	staleVerdicts int
	// causedPreemption says that a lease was preempted for it.
	causedPreemption bool
}

// decide ends the waiting.
func (w *waiter) decide(l *Lease, err error) {
	w.lease, w.err, w.state = l, err, stateDecided
	close(w.done)
}
