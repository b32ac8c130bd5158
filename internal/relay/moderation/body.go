package moderation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/openai/delta"
)

// CheckAnswer checks an answer that is no stream, of a chat, a completion or the Responses API.
// Each string of it is a separate text.
//
// If a rule blocks a text, the text is cut before the match (all of it is cut if a hook blocks it).
// The later texts of the choice become empty, its log probabilities and the like are removed, and
// its finish_reason becomes content_filter. A response of the Responses API becomes incomplete for
// that reason. Other choices and all other bytes do not change.
//
// The verdict is Pass, or Block by the rule that applies first. An answer that cannot be read
// passes.
func (s *Set) CheckAnswer(ctx context.Context, body []byte) (rewritten []byte, v Verdict) {
	var a delta.Answer
	if s.Empty() || !a.Read(body) {
		return body, Verdict{}
	}
	cuts := s.cuts(&a)
	err := s.askHooksAboutAnswer(ctx, &a, cuts)
	v = Verdict{Err: err}
	var edits []edit
	for of := range a.Endings {
		order := partsInOrder(&a, of)
		first := slices.IndexFunc(order, func(i int) bool { return cuts[i].rule >= 0 })
		if first < 0 {
			continue
		}
		if v.Action == Pass {
			v = Verdict{Action: Block, Rule: s.names[cuts[order[first]].rule], Choice: a.Endings[of].Choice, Err: err}
		}
		edits = append(edits, endingEdits(&a.Endings[of], body)...)
		for n, i := range order[first:] {
			keep := 0
			if n == 0 {
				keep = cuts[i].at
			}
			edits = append(edits, edit{a.Parts[i].At, quote(a.Parts[i].Text[:keep])})
		}
	}
	return applyEdits(body, edits), v
}

// cut is where a text has to end, in bytes, and the rule that wants it. -1: there is no such rule.
type cut struct{ at, rule int }

// cuts returns a cut for each part of an answer.
func (s *Set) cuts(a *delta.Answer) []cut {
	cuts := make([]cut, len(a.Parts))
	f := s.NewFilter()
	for i := range a.Parts {
		f.texts = f.texts[:0]
		cuts[i] = f.checkText(f.textOf(&a.Parts[i].Delta), a.Parts[i].Text)
	}
	return cuts
}

// checkText checks a text that is complete.
func (f *Filter) checkText(t *text, b []byte) cut {
	_, rule := f.scan(t, b, true)
	if rule < 0 {
		rule = f.patternAtEnd(t, -1)
	}
	if rule < 0 {
		return cut{rule: rule}
	}
	if t.found == nil { // a literal: cut before what may be the beginning of any
		at := int(t.bytes)
		for range t.depth {
			_, n := utf8.DecodeLastRune(b[:at])
			at -= n
		}
		return cut{at, rule}
	}
	// The machine finds the shortest match. A longer one may have begun earlier.
	at := int(t.start)
	if loc := t.found.whole.FindIndex(b); loc != nil {
		at = min(at, loc[0])
	}
	return cut{at, rule}
}

// askHooksAboutAnswer asks hooks about the texts that no other rule cuts.
func (s *Set) askHooksAboutAnswer(ctx context.Context, a *delta.Answer, cuts []cut) (err error) {
	var questions []*pendingQuestion
	var of []int
	for i := range a.Parts {
		if cuts[i].rule >= 0 {
			continue
		}
		for _, h := range s.hooks {
			questions = append(questions, &pendingQuestion{hook: h, q: question{a.Model, string(a.Parts[i].Text), a.Parts[i].Choice, true}})
			of = append(of, i)
		}
	}
	askAll(ctx, questions)
	for n, d := range questions {
		if d.err != nil && err == nil {
			err = d.err
		}
		if d.blocked && cuts[of[n]].rule < 0 {
			cuts[of[n]] = cut{0, d.hook.rule}
		}
	}
	return err
}

// partsInOrder returns the indexes of the parts of a choice, in the order in which they would come
// in a stream.
func partsInOrder(a *delta.Answer, of int) (order []int) {
	for i := range a.Parts {
		if a.Parts[i].Of == of {
			order = append(order, i)
		}
	}
	if a.Endings[of].Response { // its items are in the order of a stream
		return order
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(rank(a.Parts[i].Kind), rank(a.Parts[j].Kind)) })
	return order
}

// rank returns the position of a kind of text in a stream.
func rank(k delta.Kind) int {
	switch k {
	case delta.Reasoning:
		return 0
	case delta.Text:
		return 1
	case delta.Refusal:
		return 2
	}
	return 3
}

// edit replaces a span of the body. An empty span makes it an insertion.
type edit struct {
	at   delta.Span
	with string
}

// endingEdits returns the edits that say that a filter has ended a choice.
func endingEdits(e *delta.Ending, body []byte) (edits []edit) {
	member := func(at delta.Span, name, value string) {
		if at == (delta.Span{}) {
			at, value = delta.Span{From: e.Close, To: e.Close}, `,"`+name+`":`+value
		}
		edits = append(edits, edit{at, value})
	}
	if e.Response {
		member(e.Finish, "status", `"incomplete"`)
		member(e.Details, "incomplete_details", `{"reason":"content_filter"}`)
	} else {
		member(e.Finish, "finish_reason", `"content_filter"`)
	}
	for _, also := range e.Duplicates {
		nothing := "null"
		if body[also.From] == '[' {
			nothing = "[]"
		}
		edits = append(edits, edit{also, nothing})
	}
	return edits
}

// quote returns a text as a JSON string.
func quote(text []byte) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(string(text)) != nil {
		return `""` // strings always encode
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// applyEdits returns the body with the edits.
func applyEdits(body []byte, edits []edit) []byte {
	if len(edits) == 0 {
		return body
	}
	slices.SortStableFunc(edits, func(x, y edit) int { return cmp.Compare(x.at.From, y.at.From) })
	var out []byte
	from := 0
	for _, e := range edits {
		out = append(append(out, body[from:e.at.From]...), e.with...)
		from = e.at.To
	}
	return append(out, body[from:]...)
}
