package relay

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// mostPreempted bounds how often a call makes room for others.
const mostPreempted = 3

// errPreempted ends an attempt: the call makes room for one that is more urgent, and waits again.
var errPreempted = errors.New("pushed out by a more urgent request")

// work takes the call through dispatch and its attempts. Whatever is told to clients has been given to the fan when it returns.
func (g *generation) work() Result {
	defer g.limitTime()()
	for {
		ticket, fault := g.dispatch()
		if fault != nil {
			return Result{Fault: g.refused(fault), Attempts: g.tried}
		}
		a := g.attempts(ticket)
		again := a.run()
		if !again {
			ticket.Settle(a.response()) // of a call that makes room nothing is charged, and nothing learned
		}
		ticket.Release()
		if !again {
			return a.result
		}
		g.asked.Preempted++
		if g.tracer != nil {
			g.tracer.Queued()
		}
		g.relay.config.Retried(reasonPreempted)
	}
}

// limitTime has the call end when its time is over. It returns what takes that back.
func (g *generation) limitTime() (stop func()) {
	var timers []*time.Timer
	limit := func(d time.Duration, cause error) {
		if d > 0 {
			timers = append(timers, time.AfterFunc(time.Until(g.call.Received.Add(d)), func() { g.cancel(cause) }))
		}
	}
	limit(g.call.Scan.Timeout, errTimeout)
	limit(g.call.Scan.MaxDuration, errTooLong)
	return func() {
		for _, t := range timers {
			t.Stop()
		}
	}
}

// dispatch waits until the call may go.
func (g *generation) dispatch() (*dispatch.Ticket, *openai.Error) {
	if p := g.pending; p != nil {
		g.pending = nil
		g.enter(Queued, p.Progress())
		return p.Await(g.ctx)
	}
	watch := new(dispatch.Wait)
	g.enter(Queued, watch)
	asked := g.asked
	asked.Watch = watch
	if asked.Timeout > 0 {
		asked.Timeout = max(asked.Timeout-time.Since(g.call.Received), time.Millisecond)
	}
	var room preemption
	if asked.Preempted < mostPreempted && g.call.Scan.Stream { // of an answer that is no stream nobody sees the first token
		asked.Preempt = room.call
	}
	ticket, fault := g.relay.config.Dispatcher.Dispatch(g.ctx, &asked)
	if fault == nil {
		g.room = &room
	}
	return ticket, fault
}

// refused is the fault of a dispatch that came to nothing; when the call had ended meanwhile, why.
func (g *generation) refused(fault *openai.Error) *openai.Error {
	switch cause := context.Cause(g.ctx); {
	case g.ctx.Err() == nil:
		return fault
	case errors.Is(cause, errTimeout):
		return &openai.Error{Code: openai.CodeRequestTimeout, Param: "timeout_ms",
			Message: "The request's own timeout ended before it could start."}
	default:
		return faultOf(cause)
	}
}

// faultOf is what a client is told of the reason for which its call ended.
func faultOf(cause error) *openai.Error {
	switch {
	case errors.Is(cause, errClosing):
		return closing()
	case errors.Is(cause, errTimeout):
		return openai.Errorf(openai.CodeRequestTimeout, "The response took longer than the request's own timeout.")
	case errors.Is(cause, errTooLong):
		return openai.Errorf(openai.CodeUpstreamTimeout, "The response took longer than it may.")
	case errors.Is(cause, errCancelled):
		return openai.Errorf(openai.CodeCancelled, "The request was cancelled.")
	case errors.Is(cause, errSlow):
		return slow()
	}
	return &openai.Error{Code: openai.CodeCancelled, Message: "The client left."}
}

func slow() *openai.Error {
	return openai.Errorf(openai.CodeClientTooSlow, "The client read more slowly than the engine wrote, and too much was waiting for it.")
}

// causeOf is the same for the metrics.
func causeOf(cause error) string {
	switch {
	case errors.Is(cause, errClosing):
		return causeGateway
	case errors.Is(cause, errTimeout), errors.Is(cause, errTooLong):
		return causeTimeout
	case errors.Is(cause, errCancelled):
		return causeCancelled
	case errors.Is(cause, errSlow):
		return causeSlow
	}
	return causeClient
}
