package moderation

import (
	"context"

	"github.com/sluice-gateway/sluice/internal/openai/leaves"
)

// CheckAnswer checks an answer that is no stream and is one JSON object.
//
// If a rule applies to a text of a choice, the text is cut before the match (all of it is cut if a
// hook blocks it). The later texts of the choice become empty, its log probabilities and the like
// are removed, and its finish_reason becomes content_filter. A response of the Responses API
// becomes incomplete for that reason. Other choices and all other bytes do not change.
//
// The verdict is Pass, with Ended if a rule has ended a choice or a response. It is Block if a rule
// applies to another answer, which has no place to say so, and Refuse if the answer cannot be read.
// Of these two nothing may be sent.
func (s *Set) CheckAnswer(ctx context.Context, model string, body []byte) (rewritten []byte, v Verdict) {
	f := s.NewFilter()
	f.Model, f.whole = model, true
	v = f.Check(ctx, body)
	if v.Action != Block && v.Action != Refuse {
		last := f.Finish(ctx)
		if !last.Ended {
			last.Ended, last.Rule, last.Choice = v.Ended, v.Rule, v.Choice
		}
		v = last
	}
	switch root := f.endingOf(leaves.Root); {
	case v.Action == Refuse:
		return nil, v
	case root != nil && (f.reader.Response == nil || root.cut.path == nil):
		v.Action = Block
		return nil, v
	}
	v.Action, v.Keep = Pass, 0
	rewritten, _ = f.Rewrite(f.event, body)
	return rewritten, v
}

// CheckText checks an answer that is plain text. The verdict is Pass or Block.
func (s *Set) CheckText(ctx context.Context, model string, body []byte) Verdict {
	f := s.NewFilter()
	if rule := f.judge(body); rule >= 0 {
		return Verdict{Action: Block, Ended: true, Rule: s.names[rule]}
	}
	var questions []*pendingQuestion
	for _, h := range s.hooks {
		questions = append(questions, &pendingQuestion{hook: h, q: question{model, string(body), 0, true}})
	}
	askAll(ctx, questions)
	v := Verdict{}
	for _, d := range questions {
		if d.err != nil && v.Err == nil {
			v.Err = d.err
		}
		if d.blocked && v.Action == Pass {
			v.Action, v.Ended, v.Rule = Block, true, s.names[d.hook.rule]
		}
	}
	return v
}

// Allows reports whether literals and patterns allow a value that stands alone. Constants of the
// API are allowed.
func (s *Set) Allows(value []byte) bool {
	return leaves.IsConstant(value) || s.NewFilter().judge(value) < 0
}
