package relay

import (
	"context"
	"errors"
	"io"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// Finish reasons of choices that Sluice itself ends.
const (
	finishLength   = "length"
	finishFiltered = "content_filter"
)

// finish finishes the stream. err is how reading the response ended; nil: the relay wanted no more
// of it. The reason is as for failover.try.
func (s *engineStream) finish(err error) (reason string) {
	s.finished = true
	s.timers.stop()
	s.gaps.flush()
	s.recordUsage()
	if cause := context.Cause(s.attempt.ctx); s.stopCause == nil && cause != nil && !s.tracker.Done() {
		s.stopCause = cause
	}
	reason = s.finishBy(err)
	if s.started && reason == "" && s.failover.result.Fault != nil && !s.failover.result.Told && s.gen.call.Scan.Endpoint == openai.Responses {
		s.publishFailed()
	}
	return reason
}

// finishBy finishes the stream by why it has ended, see finish.
func (s *engineStream) finishBy(err error) (reason string) {
	switch {
	case s.attempt.isAbandoned(), errors.Is(s.stopCause, errMalformed) && !s.started:
		return s.attempt.fail(err)
	case s.stopCause != nil:
		return s.finishStopped()
	case s.outcome(err) == sse.Complete:
		return s.finishComplete()
	case !s.started:
		return s.attempt.fail(err)
	case !s.finishModeration():
		return s.finishStopped()
	}
	s.gen.relay.config.Failed(s.failover.ticket.Model, s.attempt.replica.ID, dispatch.Reset, "broke a response off")
	s.setFault(causeEngine, openai.Errorf(openai.CodeUpstreamTruncated, "The engine's answer ended before it was whole."))
	return ""
}

// setFault sets the fault and the cause of the result.
func (s *engineStream) setFault(cause string, fault *openai.Error) {
	s.failover.result.Fault, s.failover.result.Cause = fault, cause
}

// outcome returns how the stream ended, by the events in it. The events of some endpoints do not
// tell their end; there the end of the response counts, unless it was that of the connection.
func (s *engineStream) outcome(err error) sse.Outcome {
	outcome := s.tracker.Outcome()
	whole := err == io.EOF && !s.cutInEvent && !s.closeDelimited //nolint:errorlint // a body ends with io.EOF itself
	if outcome == sse.Truncated && !s.gen.call.Scan.Endpoint.Generates() && s.started && whole {
		return sse.Complete
	}
	return outcome
}

// finishComplete finishes a stream that was whole. If the engine has omitted its end marker or
// broken it off, finishComplete publishes one.
func (s *engineStream) finishComplete() (reason string) {
	s.start()
	if s.stopCause == nil && s.finishModeration() && !s.sentDone && s.gen.call.Scan.Endpoint.Chunked() {
		s.gen.publishOwn(sse.AppendDone(nil))
	}
	if s.attempt.isAbandoned() {
		return s.attempt.fail(nil)
	}
	if s.stopCause != nil {
		return s.finishStopped()
	}
	if fault := s.gen.call.brokenOff(s.failover.result.Finish); fault != nil {
		s.setFault(causeEngine, fault)
		s.failover.result.Told = true // by the translation of the last event
	}
	return ""
}

// finishStopped finishes a stream that the relay has stopped, for stopCause. It publishes events of
// Sluice's own where they are needed. The reason is as for failover.try.
func (s *engineStream) finishStopped() (reason string) {
	cause := s.stopCause
	s.stopCause = nil // so that the withheld events can be published
	s.attempt.cancel(cause)
	switch {
	case errors.Is(cause, errBlocked):
		s.failover.result.Cause, s.failover.result.Finish = causeModeration, finishFiltered
		if !s.gen.call.Scan.Endpoint.Generates() { // its events cannot say why they end
			s.failover.result.Fault = filteredFault()
			return ""
		}
		s.publishFinal(finishFiltered)
		return ""
	case errors.Is(cause, errReported) && !s.started:
		return s.finishReported()
	case errors.Is(cause, errTimeout), errors.Is(cause, errTooLong):
		if s.gen.call.Scan.Stream {
			s.start()
		}
		if s.attempt.isAbandoned() {
			return s.attempt.fail(nil)
		}
	case errors.Is(cause, errStalled), errors.Is(cause, errMalformed), errors.Is(cause, errUnjudged), errors.Is(cause, errReported),
		errors.Is(cause, sse.ErrTooLarge):
	default:
		s.setFault(causeOf(cause), faultOf(cause))
		return ""
	}
	if s.stopCause == nil {
		s.finishModeration()
	}
	if s.stopCause != nil {
		return s.finishStopped()
	}
	s.reportStop(cause)
	return ""
}

// reportStop tells the client why a stream that had started was stopped.
func (s *engineStream) reportStop(cause error) {
	switch {
	case errors.Is(cause, errReported):
		s.finishReported()
	case errors.Is(cause, errStalled):
		s.setFault(causeTimeout, openai.Errorf(openai.CodeUpstreamTimeout, "The engine stopped in the middle of its answer."))
	case errors.Is(cause, errMalformed):
		s.setFault(causeEngine, openai.Errorf(openai.CodeUpstreamError, "The engine sent an event that cannot be read."))
	case errors.Is(cause, errUnjudged):
		s.setFault(causeEngine, openai.Errorf(openai.CodeUpstreamError, "The engine sent an event in a form that the moderation rules cannot read."))
	case errors.Is(cause, sse.ErrTooLarge):
		s.setFault(causeEngine, openai.Errorf(openai.CodeUpstreamError, "The engine sent an event that is too large."))
	default:
		s.finishTimeout(cause)
	}
}

// finishTimeout finishes a stream whose time is over as the engine would finish an answer that has
// become too long.
func (s *engineStream) finishTimeout(cause error) {
	s.failover.result.Cause = causeTimeout
	if !s.gen.call.Scan.Stream || !s.gen.call.Scan.Endpoint.Generates() {
		s.failover.result.Fault = faultOf(cause)
		return
	}
	s.publishFinal(finishLength)
}

// finishReported finishes a stream in which the engine has reported an error. Before the first
// token the error counts as an answer with its status. Another replica is tried if the model's
// fail_over_on has it. The events are kept in case that no replica answers. After the first token
// the replica has answered. The request then counts as failed by its engine, and the replica is not
// blamed, because a single bad request may cause such an error.
func (s *engineStream) finishReported() (reason string) {
	f := s.failover
	f.result.Fault = openai.Errorf(openai.CodeUpstreamError, "The engine could not finish its answer.")
	if s.started {
		f.result.Told, f.result.Cause = true, causeEngine
		return ""
	}
	if kind := dispatch.Answered(s.reported); kind != 0 {
		s.gen.relay.config.Failed(f.ticket.Model, s.attempt.replica.ID, kind, "reported an error in an event")
	}
	f.lastEvents = s.held
	if reason = f.ticket.FailOver.Reason(s.reported); reason == "" {
		f.publishLastEvents()
	}
	return reason
}

// recordUsage records what the stream has used, by the events in it.
func (s *engineStream) recordUsage() {
	r := &s.failover.result
	r.Usage, r.Finish = usageOf(&s.tracker), s.tracker.Finish()
	if s.filter != nil && (s.filter.AnyEnded() || !s.failover.rules.Allows([]byte(r.Finish))) {
		r.Finish = finishFiltered
	}
	if !s.firstToken.IsZero() {
		r.Decode = s.lastToken.Sub(s.firstToken)
	}
}

// usageOf returns what a stream has used, by the events in it.
func usageOf(t *sse.Tracker) Usage {
	u, known := t.Usage()
	if !known {
		u.Completion = max(u.Completion, t.Tokens())
	}
	return Usage{Prompt: u.Prompt, Completion: u.Completion, Cached: u.Cached, Known: known}
}
