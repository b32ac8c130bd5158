package relay

import (
	"context"
	"slices"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

// moderate applies the moderation rules to an event and publishes what they allow. last says that
// the answer ends with this event: the rules must judge the whole answer before the client learns
// that it has ended.
func (s *engineStream) moderate(e *sse.Event, last bool) {
	if s.filter == nil {
		s.publish(e)
		return
	}
	ctx := s.attempt.ctx
	s.gen.broadcast.Flush() // the service of a rule may take its time
	verdict := s.judge(ctx, e, last)
	switch {
	case (verdict.Ended || verdict.Action == moderation.Block) && verdict.Err != nil && ctx.Err() != nil:
		// The context has ended the question, no rule has blocked the stream. An event that was not
		// judged must not be published, and the client is told the cause of the context.
		s.stopCause = context.Cause(ctx)
		s.withheld, s.filter = eventList{}, nil
	case verdict.Action == moderation.Refuse:
		s.stopCause = errUnjudged
		s.withheld, s.filter = eventList{}, nil
	case verdict.Action == moderation.Block:
		s.withheld.add(e.Raw)
		s.publishAllowed()
		s.stopCause = errBlocked
	case verdict.Action == moderation.Hold || s.withheld.len() > 0:
		s.withheld.add(e.Raw)
		s.publishWithheld(verdict.Keep)
		s.stopIfEnded()
	default:
		s.publishJudged(e)
		s.stopIfEnded()
	}
}

// judge asks the rules about an event.
func (s *engineStream) judge(ctx context.Context, e *sse.Event, last bool) (v moderation.Verdict) {
	if e.IsDone() {
		v = s.filter.Skip()
	} else {
		v = s.filter.Check(ctx, e.Data)
	}
	s.logUnanswered(v)
	if !last || v.Action >= moderation.Block {
		return v
	}
	end := s.filter.Finish(ctx)
	s.logUnanswered(end)
	if !end.Ended {
		end.Ended, end.Rule, end.Choice = v.Ended, v.Rule, v.Choice
	}
	return end
}

// logUnanswered logs that the service of a rule has given no answer.
func (s *engineStream) logUnanswered(v moderation.Verdict) {
	if v.Err != nil && s.attempt.ctx.Err() == nil {
		s.gen.relay.config.Log.Warn("moderation service gave no answer", zap.String("rule", v.Rule), zap.Error(v.Err))
	}
}

// stopIfEnded stops the stream when rules have ended all choices that the engine still writes.
func (s *engineStream) stopIfEnded() {
	if s.stopCause != nil || !s.filter.AnyEnded() {
		return
	}
	s.failover.result.Cause = causeModeration
	open := s.tracker.Unfinished()
	if len(open) > 0 && s.withheld.len() == 0 && !slices.ContainsFunc(open, func(c int) bool { return !s.filter.HasEnded(c) }) {
		s.stopCause = errBlocked
	}
}

// publishWithheld publishes the withheld events, except the last keep of them.
func (s *engineStream) publishWithheld(keep int) {
	if n := s.withheld.len() - keep; n > 0 {
		for e := range eventsOf(s.withheld.removeFirst(n)) {
			if s.publishJudged(e); s.stopCause != nil {
				return
			}
		}
	}
}

// publishAllowed publishes what may be sent of the withheld events after a rule has ended the
// stream. The events of which nothing may be sent stay.
func (s *engineStream) publishAllowed() {
	all := slices.Clone(s.withheld.removeFirst(s.withheld.len()))
	for e := range eventsOf(all) {
		if !s.publishJudged(e) {
			s.withheld.add(e.Raw)
		}
		if s.stopCause != nil {
			return
		}
	}
}

// publishJudged publishes an event as far as the rules allow it, and reports whether anything of it
// was. Of its lines only the data and the type are kept.
func (s *engineStream) publishJudged(e *sse.Event) (sent bool) {
	s.judged++
	data, send := e.Data, true
	if s.filter != nil {
		data, send = s.filter.Rewrite(s.judged, e.Data)
	}
	if !send {
		return false
	}
	typed := len(e.Type) > 0 && s.failover.rules.Allows(e.Type)
	if same := len(data) == len(e.Data) && (len(data) == 0 || &data[0] == &e.Data[0]); same && (e.IsPlain() || typed && hasNoMore(e)) {
		s.publish(e)
		return true
	}
	var raw []byte
	if typed {
		raw = append(append(append(raw, "event: "...), e.Type...), '\n')
	}
	for e := range eventsOf(sse.AppendData(raw, data)) {
		if s.publish(e); s.stopCause != nil {
			break
		}
	}
	return true
}

// hasNoMore reports whether an event has one line with its type and one with its data, and nothing
// else that a client could read.
func hasNoMore(e *sse.Event) bool {
	return len(e.Raw) == len("event: ")+len(e.Type)+len("\ndata: ")+len(e.Data)+len("\n\n")
}

// finishModeration asks the rules for a verdict on the whole answer, and publishes the withheld
// events if the rules allow them. It asks even when the time of the call is over, although the
// service of a rule may take a moment longer.
func (s *engineStream) finishModeration() (allowed bool) {
	if s.filter == nil {
		return true
	}
	s.gen.broadcast.Flush() // the service of a rule may take its time
	verdict := s.filter.Finish(context.WithoutCancel(s.attempt.ctx))
	s.logUnanswered(verdict)
	if verdict.Ended || verdict.Action >= moderation.Block {
		s.publishAllowed()
		s.stopCause = errBlocked
		return false
	}
	s.publishWithheld(0)
	return s.stopCause == nil
}

// publishLastEvents publishes the events of a replica that has reported an error before its first
// token. If a rule applies to them, the client is told of the error without them.
func (f *failover) publishLastEvents() {
	f.isRefused = true
	f.result.Answered, f.result.Told, f.result.Cause = true, true, causeEngine
	if f.rules == nil {
		f.gen.publishOwn(f.lastEvents)
		return
	}
	filter, out, allowed := f.rules.NewFilter(), []byte(nil), true
	for e := range eventsOf(f.lastEvents) {
		v := filter.Check(f.gen.ctx, e.Data)
		data, send := filter.Rewrite(filter.Events(), e.Data)
		if allowed = send && !v.Ended && v.Action < moderation.Block; !allowed {
			break
		}
		out = sse.AppendData(out, data)
	}
	if allowed && !filter.Finish(f.gen.ctx).Ended {
		f.gen.publishOwn(out)
		return
	}
	f.result.Told = false
	f.result.Fault = openai.Errorf(openai.CodeUpstreamError, "The engine could not finish its answer.")
}
