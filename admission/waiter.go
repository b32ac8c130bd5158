package admission

import "time"

// arrival is a request with its values in their bounds, and what is special about a task.
type arrival struct {
	Request
	// cost is what the request counts in the fair order: its tokens, between one and maxCost.
	cost int64
	band int
	// task is set if the request is to become a task.
	task *TaskClaim
	// leaseID is the id of the lease. "" means a new one, if other processes need to know it.
	leaseID string
	// key is the lease of the caller's key; nil: the key has no limits of its own.
	key *Lease
	// noWait says that the request does not wait, but is told when to try again.
	noWait bool
	// counted says that the sums of waiters include the request.
	counted bool
	// account is that of the request's task. It is nil for a request without a task, and if another
	// gateway has admitted the task.
	account *account
	// needTokens and needRequests are what the buckets must have for the request when it arrives.
	// For a request under a task this is what its task does not cover.
	needTokens, needRequests int64
}

func newArrival(r Request) arrival {
	r.Tokens = min(max(r.Tokens, 0), maxTokens)
	r.Bytes = max(r.Bytes, 0)
	a := arrival{Request: r, band: r.Priority.band(), needRequests: 1}
	a.setTokens(r.Tokens)
	return a
}

// maxCost bounds what one request counts in the fair order, not what it is charged. An estimate can
// be thousands of times larger, if a client asks for a million choices, and is corrected only when
// the request has ended. It would keep other requests waiting for as long as so many tokens take.
const maxCost = 1 << 17

// setTokens sets what the request will be charged.
func (a *arrival) setTokens(n int) {
	a.Tokens, a.cost, a.needTokens = n, int64(min(max(n, 1), maxCost)), int64(n)
}

// needsLease reports whether the request needs a lease of its own. A request under a task does not.
func (a *arrival) needsLease() bool { return a.UnderTask == "" }

// setAccount sets the account of the request's task, and with it what the buckets must have.
func (a *arrival) setAccount(of *account) {
	a.account = of
	a.needTokens, a.needRequests = of.excess(int64(a.Tokens), 1)
}

// fits reports whether a bucket of perMinute tokens can ever hold what the request needs. Of a task
// of another gateway only the shared state knows how much of its estimate is left.
func (a *arrival) fits(perMinute int) bool {
	return !a.needsLease() && a.account == nil || fitsBucket(int(a.needTokens), perMinute)
}

// lowerGuess lowers what was guessed to what fits a bucket of perMinute tokens.
func (a *arrival) lowerGuess(perMinute int) {
	cut := min(a.Tokens-min(perMinute, maxTokens), a.Guessed-1) // an answer has a token
	if perMinute <= 0 || cut <= 0 {
		return
	}
	a.Guessed -= cut
	a.setTokens(a.Tokens - cut)
}

// waitFor is how long the bucket keeps the request waiting for its tokens.
func (a *arrival) waitFor(b *bucket, now time.Time) time.Duration {
	if !a.needsLease() && a.needTokens == 0 {
		return 0 // a bucket in debt is no concern of a request that takes nothing from it
	}
	return b.wait(a.needTokens, now)
}

type waiterState uint8

// The states of a waiter. Queued and returned waiters are in a queue. An asked one is part of an
// inquiry. A denied one has its verdict and is about to be requeued; if its task was busy, after a
// pause.
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
	// busy counts the verdicts TaskBusy, and gives the pause after each.
	busy backoff
	// causedPreemption says that a lease was preempted for it.
	causedPreemption bool
}

// decide ends the waiting.
func (w *waiter) decide(l *Lease, err error) {
	w.lease, w.err, w.state = l, err, stateDecided
	close(w.done)
}
