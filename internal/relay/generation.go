package relay

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/queue"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
	"github.com/sluice-gateway/sluice/internal/request"
)

const (
	// replayLogBytes bounds the replay log of a named generation, in bytes. It holds some thousand
	// tokens, so that a start that is repeated late mostly receives all events.
	replayLogBytes = 1 << 20
)

// generation is one run of an engine for a call: it waits for a ticket, has a replica answer, and
// publishes the events of the answer. One goroutine does that, in run. Each subscriber has a
// goroutine of its own.
type generation struct {
	relay *Relay
	// call is the generation's own copy. Its Body and Header are dropped when no further replica
	// can need them; only the generation's goroutine reads those two.
	call *Call
	// policy is that of the model that the call names. The model that a ticket is for may have
	// another one.
	policy    Policy
	broadcast *replay.Broadcast
	// dropped has translated the events that the replay log has dropped, for clients of the
	// Messages API that come back. nil: the log has dropped none, or no such client can come back.
	// The lock of broadcast guards it.
	dropped *translator
	// trace is nil if the call is not traced.
	trace Trace
	// leftTrace says that one of two has left it to the other to end the trace of a named call that
	// moves. The two are the generation and the client that has started it.
	leftTrace atomic.Bool

	// ctx ends with the generation. Its cause says why. See "Who ends what" in the package comment.
	ctx    context.Context
	cancel context.CancelCauseFunc

	// request is what the dispatcher is asked for each ticket. pending is a dispatch that had begun
	// before the generation; nil: there is none. attempts counts the replicas that were tried.
	// Only the generation's goroutine uses the three.
	request  dispatch.Request
	pending  *dispatch.Pending
	attempts int

	// answered is closed when answer is set and is not nil. done is closed when the generation is
	// over; answer and result do not change after that.
	answered chan struct{}
	answer   *Answer
	done     chan struct{}
	result   Result
	// nextSequence is the sequence number of the event after the last one of a response of the
	// Responses API that has failed. 0: it has not failed.
	nextSequence atomic.Int64
	// moved says that the call waited in vain, because the successor carries it now. It is set
	// before done is closed.
	moved bool
	// forgotten says that nobody can find a named generation any more, although it runs.
	forgotten atomic.Bool
	// sentEnd says that the event that ends the stream was published. No heartbeat follows it.
	sentEnd atomic.Bool
	// countedBy decides once who counts what a named generation uses: the client that has started
	// it, if that client stays to the end, or the generation itself.
	countedBy atomic.Int32
	// starterTold is closed when the entry of that client has its outcome. nil: the call has no
	// name.
	starterTold chan struct{}

	status generationStatus
	// leaveTimer ends a named generation some time after its last subscriber has gone. nil: it has
	// a subscriber. Only onIdle uses it.
	leaveTimer *time.Timer
}

// newGeneration returns a generation that does not run yet. pending may be nil.
func (r *Relay) newGeneration(c *Call, pending *dispatch.Pending) *generation {
	call := *c
	g := &generation{relay: r, call: &call, policy: r.policyOf(c), request: call.Asked(), pending: pending,
		answered: make(chan struct{}), done: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancelCause(r.ctx)
	g.status.phase = Queued
	if pending != nil {
		g.status.wait = pending.Progress()
	}
	limits := replay.Limits{Queue: queue.Limits{Memory: r.config.Memory}, Patience: r.config.Patience}
	if c.isNamed() {
		limits.LogBytes = replayLogBytes
		g.starterTold = make(chan struct{})
	}
	g.broadcast = replay.NewBroadcast(limits)
	g.broadcast.OnIdle(g.onIdle)
	if g.returnsAsMessages() {
		g.broadcast.OnDrop(g.translateDropped)
	}
	g.startTrace()
	return g
}

// startTrace starts the trace of the call, if the call is traced, and tells the call's record.
func (g *generation) startTrace() {
	if g.relay.config.StartTrace == nil {
		return
	}
	client := g.call.Header.Get("traceparent")
	g.trace = g.relay.config.StartTrace(g.call.arrival(), client, g.call.Received)
	if g.trace != nil && g.call.Entry != nil {
		g.call.Entry.SetTrace(g.trace.Traceparent(), client)
	}
}

// endTrace ends the trace of a named call when the generation is over. The trace of a call without
// a name ends with its subscriber. That of a call that moves ends with the client that has started
// the call, if that client is still here.
func (g *generation) endTrace() {
	if g.trace == nil || !g.call.isNamed() {
		return
	}
	if !g.moved || g.leftTrace.Swap(true) {
		g.trace.End(g.result)
	}
}

// leaveTrace is called when the client that has started the generation is done, unless the
// successor carries the call for that client. It ends the trace where the generation does not.
func (g *generation) leaveTrace(result Result) {
	if g.trace != nil && (!g.call.isNamed() || g.leftTrace.Swap(true)) {
		g.trace.End(result)
	}
}

// policyOf returns the policy of the model that the call names, or of the first model of a pool.
func (r *Relay) policyOf(c *Call) Policy {
	first := r.config.Dispatcher.FirstModel(&dispatch.Request{Model: c.Scan.Model, Endpoint: c.Scan.Endpoint, Allowed: c.Tenant.Allows})
	return r.rules.Load().policy(cmp.Or(first, c.Scan.Model))
}

// Cancel implements request.Canceller. It ends the generation for all its subscribers.
func (g *generation) Cancel() bool {
	g.cancel(errCancelled)
	return true
}

// run runs the generation to its end. It closes the broadcast, which ends all subscribers.
func (g *generation) run() {
	if g.call.isNamed() {
		defer g.expire()
	}
	defer close(g.done)
	g.result, g.answer = g.work()
	if g.moved {
		g.giveUpID()
		g.call.memory.Release() // the successor reserves for the call now
	} else {
		g.dropPrompt()
	}
	g.cancel(nil)
	g.countUsage()
	g.endTrace()
	switch {
	case g.answer != nil:
		close(g.answered)
		g.broadcast.Close(nil)
	case g.result.Fault != nil:
		g.broadcast.Close(g.result.Fault)
	default:
		g.broadcast.Close(nil)
	}
}

// work gets a ticket and tries its replicas, again and again while the generation is preempted.
// When it returns, everything for the subscribers has been published.
func (g *generation) work() (Result, *Answer) {
	defer g.startDeadlines()()
	for {
		ticket, preemption, fault := g.dispatch()
		if fault != nil {
			g.moved = g.relay.isRetired() && g.ctx.Err() == nil
			return Result{Fault: g.refusal(fault), Attempts: g.attempts}, nil
		}
		f := g.newFailover(ticket, preemption)
		preempted := f.run()
		if f.refusal != f.answer {
			f.refusal.release()
		}
		if !preempted {
			f.result.Estimate(ticket.Correct(f.response())) // a preempted attempt is not charged, and nothing is learned from it
		}
		ticket.Release()
		if !preempted {
			return f.result, f.answer
		}
		g.request.Preempted++
		if g.trace != nil {
			g.trace.Queued()
		}
		g.reportRetry(ticket.Model, f.result.Replica, request.ReasonPreempted)
	}
}

// reportRetry reports that an attempt at a replica has failed and that another one follows.
func (g *generation) reportRetry(model, replica, reason string) {
	g.relay.config.Retried(model, g.call.Tenant.Name, reason)
	if g.call.Entry != nil {
		g.call.Entry.AddRetry(reason, replica)
	}
}

// startDeadlines starts the timers that cancel the generation when its time is over. stop stops
// them.
func (g *generation) startDeadlines() (stop func()) {
	var timers []*time.Timer
	start := func(limit time.Duration, cause error) {
		if limit > 0 {
			timers = append(timers, time.AfterFunc(time.Until(g.call.Received.Add(limit)), func() { g.cancel(cause) }))
		}
	}
	start(g.call.Scan.Timeout, errTimeout)
	tooLong := errTooLong
	if !g.call.Scan.Stream { // a stream ends with what it has; another answer has nothing
		tooLong = errTimeout
	}
	start(g.call.Scan.MaxDuration, tooLong)
	return func() {
		for _, t := range timers {
			t.Stop()
		}
	}
}

// dispatch waits for a ticket. p passes requests to preempt the generation on to its attempts; nil:
// it cannot be preempted.
func (g *generation) dispatch() (ticket *dispatch.Ticket, p *preemption, fault *openai.Error) {
	if pending := g.pending; pending != nil {
		g.pending = nil
		g.status.enter(Queued, pending.Progress())
		ticket, fault = pending.Await(g.ctx)
		return ticket, nil, fault
	}
	request := g.request
	request.Watch = new(dispatch.Wait)
	g.status.enter(Queued, request.Watch)
	if request.Timeout > 0 {
		request.Timeout = max(request.Timeout-time.Since(g.call.Received), time.Millisecond)
	}
	p = new(preemption)
	if request.Preempted < dispatch.MaxPreempted && g.call.Scan.Stream { // an answer that is no stream has no first token
		request.Preempt = p.request
	}
	ticket, fault = g.relay.config.Dispatcher.Dispatch(g.ctx, &request)
	return ticket, p, fault
}

// refusal returns what the client is told when no ticket was given: the dispatcher's fault, or the
// cause of the generation's context.
func (g *generation) refusal(fault *openai.Error) *openai.Error {
	switch cause := context.Cause(g.ctx); {
	case g.ctx.Err() == nil:
		return fault
	case errors.Is(cause, errTimeout):
		return &openai.Error{Code: openai.CodeRequestTimeout, Param: "timeout_ms",
			Message: "The request's own timeout expired before the request could start."}
	default:
		return faultOf(cause)
	}
}

// isReceived reports whether nothing is left for a client that has seen the events up to number
// after. That is so if the stream has ended and no error is still to be told.
func (g *generation) isReceived(after int64) bool {
	select {
	case <-g.done:
	default:
		return false
	}
	told := g.result.Fault == nil || g.result.Told
	return after != noEvent && g.answer == nil && told && g.broadcast.NextNumber() == uint64(after+1)
}

// dropPrompt drops what only a further attempt would need, so that a long prompt is not held while
// the answer streams.
func (g *generation) dropPrompt() {
	g.call.originalBody = nil
	g.call.Body, g.call.Header, g.request.Key, g.request.Chain = nil, nil, nil, nil
	g.call.memory.Release()
}

// release gives back what the generation has reserved for clients that come back, when none can
// find it any more.
func (g *generation) release() {
	g.broadcast.Release()
	g.forgotten.Store(true)
	select {
	case <-g.done:
		g.answer.release()
	default: // expire does it
	}
}

// onIdle is called when the last subscriber has gone, and when one has come back. A generation
// without a name ends at once. A named one goes on for Policy.Resume.
func (g *generation) onIdle(idle bool) {
	if idle && !(g.call.isNamed() && g.policy.Resume > 0) {
		g.cancelIfIdle()
		return
	}
	if g.leaveTimer != nil {
		g.leaveTimer.Stop()
		g.leaveTimer = nil
	}
	if idle {
		g.leaveTimer = time.AfterFunc(g.policy.Resume, g.cancelIfIdle)
	}
}

// cancelIfIdle cancels the generation, unless a subscriber has come back meanwhile.
func (g *generation) cancelIfIdle() {
	if g.broadcast.Subscribers() == 0 {
		g.cancel(errLeft)
	}
}
