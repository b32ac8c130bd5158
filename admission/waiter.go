package admission

import "time"

// arrival is a request, normalized, with what is particular about a task.
type arrival struct {
	Request
	// cost is what it counts in the fair order: its tokens, and at least one.
	cost int64
	band int
	// task, if it is to become one, under this id.
	task   *TaskClaim
	taskID string
	// once: it does not wait, but is told how long to stay away.
	noWait bool
	// held: what it holds by waiting is counted already.
	counted bool
}

func newArrival(r Request) arrival {
	r.Tokens = min(max(r.Tokens, 0), maxTokens)
	r.Bytes = max(r.Bytes, 0)
	return arrival{Request: r, cost: int64(max(r.Tokens, 1)), band: r.Priority.band()}
}

// due is what it will take from the buckets.
func (a *arrival) charge() int64 {
	if a.SlotOnly {
		return 0
	}
	return int64(a.Tokens)
}

type waiterState uint8

// Where a waiter is. Queued and chosen ones are in a queue; one that is asked about or judged is with its gate, waiting for the verdict
// of the shared state or for what that entails.
const (
	stateIdle waiterState = iota
	stateQueued
	stateReturned
	stateAsked
	stateDenied
	stateDecided
)

// waiter is a request that was not decided at once. After done is closed, lease, found or err says how it ended; before, all
// of it belongs to the Controller's lock.
type waiter struct {
	arrival
	tenant   *tenant
	arrived  time.Time
	deadline time.Time

	state waiterState
	// home is the queue that it waits in; until its first verdict, one that asks for a pool may be in a model's instead.
	homeQueue *queue
	queue     *queue
	flow      *flow
	links     [2]link
	done      chan struct{}

	lease     *Lease
	foundTask *Task
	err       error

	// What follows is for waiters that are asked about.

	// fresh: no verdict has made it wait yet. waits is closed when one does.
	newcomer bool
	mustWait chan struct{}
	// tried are the models of its pool that it was bound to in vain.
	triedGates []*gate
	id         string
	slot       Slot
	// kept: it was admitted by this gateway alone.
	grantedAlone bool
	// placed: Place gave it a slot that nobody has given back.
	hasSlot bool
	// gone: the caller has left, and whatever is granted goes back. leaving: it leaves with this error unless it is granted now.
	cancelled bool
	cancelErr error
	// stale counts verdicts in a row that came too late for the limits.
	staleVerdicts int
	// madeWay: a lease was preempted for it.
	causedPreemption bool
}

// decide ends the waiting.
func (w *waiter) decide(l *Lease, err error) {
	w.lease, w.err, w.state = l, err, stateDecided
	close(w.done)
}
