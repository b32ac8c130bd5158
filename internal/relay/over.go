package relay

import (
	"context"
	"errors"
	"io"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

// over is the end of the stream; err is how reading it ended, nil when no more was wanted.
func (t *tokens) over(err error) (reason string) {
	t.ending = true
	if t.linger != nil {
		t.linger.Stop()
	}
	t.count()
	if cause := context.Cause(t.ctx); t.stopped == nil && cause != nil && !t.tracker.Done() {
		t.stopped = cause
	}
	switch {
	case t.turn.Load() == turnGiven, errors.Is(t.stopped, errMalformed) && !t.begun:
		return t.failed(err)
	case t.stopped != nil:
		return t.stop()
	case t.outcome(err) == sse.Complete:
		return t.complete()
	case !t.begun:
		return t.failed(err)
	case !t.conclude():
		return t.stop()
	}
	t.relay.config.Failed(t.at.ID, dispatch.Reset, "broke a response off")
	t.result.Fault, t.result.Cause = openai.Errorf(openai.CodeUpstreamTruncated, "The engine's answer ended before it was whole."), causeEngine
	return ""
}

// outcome is how the stream ended by what was in it. Of endpoints whose events say nothing of their end, the transport's word is taken.
func (t *tokens) outcome(err error) sse.Outcome {
	outcome := t.tracker.Outcome()
	whole := err == io.EOF && !t.cut //nolint:errorlint // a body ends with io.EOF itself
	if outcome == sse.Truncated && !t.call.Scan.Endpoint.Generates() && t.begun && whole {
		return sse.Complete
	}
	return outcome
}

// complete is the end of a stream that was whole. An end marker that the engine has forgotten, or broken off, is made up for.
func (t *tokens) complete() (reason string) {
	t.begin()
	if t.stopped == nil && t.conclude() && !t.marked && t.call.Scan.Endpoint.Chunked() {
		t.own(sse.AppendDone(nil))
	}
	if t.turn.Load() == turnGiven {
		return t.failed(nil)
	}
	if t.stopped != nil {
		return t.stop()
	}
	return ""
}

// conclude lets go what the rules had to see more of, now that no more comes, unless they forbid it then: what might have been the beginning
// of something forbidden was none. It asks them also where the call's time is over, which their services may take a moment longer than.
func (t *tokens) conclude() (passes bool) {
	if t.filter == nil {
		return true
	}
	t.broadcast.Flush() // a service may take its time
	verdict := t.filter.End(context.WithoutCancel(t.ctx))
	t.unanswered(verdict)
	if verdict.Action == moderation.Block {
		t.stopped = errFiltered
		return false
	}
	t.release(0)
	return t.stopped == nil
}

// stop ends a stream of which no more is wanted, with an event of Sluice's own where there is one. The reason is as for try.
func (t *tokens) stop() (reason string) {
	why := t.stopped
	t.stopped = nil // so that what waits can go
	t.cancel(why)
	switch {
	case errors.Is(why, errFiltered):
		t.result.Cause = causeModeration
		t.finish(finishFiltered)
		return ""
	case errors.Is(why, errTold) && !t.begun:
		return t.failure()
	case errors.Is(why, errTimeout), errors.Is(why, errTooLong):
		if t.call.Scan.Stream {
			t.begin()
		}
		if t.turn.Load() == turnGiven {
			return t.failed(nil)
		}
	case errors.Is(why, errStalled), errors.Is(why, errMalformed), errors.Is(why, errTold), errors.Is(why, sse.ErrTooLarge):
	default:
		t.result.Fault, t.result.Cause = faultOf(why), causeOf(why)
		return ""
	}
	if t.stopped == nil {
		t.conclude()
	}
	if t.stopped != nil {
		return t.stop()
	}
	t.stoppedBy(why)
	return ""
}

// stoppedBy tells the client why the stream ends.
func (t *tokens) stoppedBy(why error) {
	switch {
	case errors.Is(why, errTold):
		t.failure()
	case errors.Is(why, errStalled):
		t.result.Fault, t.result.Cause = openai.Errorf(openai.CodeUpstreamTimeout, "The engine stopped in the middle of its answer."), causeTimeout
	case errors.Is(why, errMalformed):
		t.result.Fault, t.result.Cause = openai.Errorf(openai.CodeUpstreamError, "The engine sent an event that cannot be read."), causeEngine
	case errors.Is(why, sse.ErrTooLarge):
		t.result.Fault, t.result.Cause = openai.Errorf(openai.CodeUpstreamError, "The engine sent an event that is too large."), causeEngine
	default:
		t.timeOver(why)
	}
}

// timeOver ends a stream whose time is over as one that has become too long.
func (t *tokens) timeOver(why error) {
	t.result.Cause = causeTimeout
	if !t.call.Scan.Stream || !t.call.Scan.Endpoint.Generates() {
		t.result.Fault = faultOf(why)
		return
	}
	t.finish(finishLength)
}

// failure is the end of a stream in which the engine told of a fault.
func (t *tokens) failure() (reason string) {
	t.result.Fault = openai.Errorf(openai.CodeUpstreamError, "The engine could not finish its answer.")
	if !t.begun {
		t.lastWords = t.held // should no other replica do better
		return reason5xx
	}
	t.result.Told, t.result.Cause = true, causeEngine
	return ""
}

// count writes down what the stream has cost.
func (t *tokens) count() {
	t.result.Usage, t.result.Finish = usageIn(&t.tracker), t.tracker.Finish()
	if !t.start.IsZero() {
		t.result.Decode = t.latest.Sub(t.start)
	}
}

// usageIn is what a stream has cost, by what was in it.
func usageIn(t *sse.Tracker) Usage {
	u, known := t.Usage()
	if !known {
		u.Completion = t.Tokens()
	}
	return Usage{Prompt: u.Prompt, Completion: u.Completion, Cached: u.Cached, Known: known}
}
