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

// Body looks at an answer that did not stream, of a chat, a completion or the Responses API, where each string is a text of its own. If a
// rule blocks it, the text is cut before what was found (all of it when a hook said so), what the choice would have said after that is
// empty, its log probabilities and the like are gone, and its finish_reason is content_filter; a response is incomplete for that reason. Other
// choices, and all else, stay byte for byte. The verdict is Pass, or Block of what stands first; an answer that is not understood passes.
func (s *Set) Body(ctx context.Context, body []byte) (rewritten []byte, v Verdict) {
	var a delta.Answer
	if s.Empty() || !a.Read(body) {
		return body, Verdict{}
	}
	cuts := s.cuts(&a)
	err := s.askWhole(ctx, &a, cuts)
	v = Verdict{Err: err}
	var edits []edit
	for of := range a.Endings {
		order := speaking(&a, of)
		first := slices.IndexFunc(order, func(i int) bool { return cuts[i].rule >= 0 })
		if first < 0 {
			continue
		}
		if v.Action == Pass {
			v = Verdict{Action: Block, Rule: s.names[cuts[order[first]].rule], Choice: a.Endings[of].Choice, Err: err}
		}
		edits = append(edits, ended(&a.Endings[of], body)...)
		for n, i := range order[first:] {
			keep := 0
			if n == 0 {
				keep = cuts[i].at
			}
			edits = append(edits, edit{a.Parts[i].At, quote(a.Parts[i].Text[:keep])})
		}
	}
	return apply(body, edits), v
}

// cut is where a text must end, in bytes, and the rule that says so; -1: none does.
type cut struct{ at, rule int }

func (s *Set) cuts(a *delta.Answer) []cut {
	cuts := make([]cut, len(a.Parts))
	f := s.Stream()
	for i := range a.Parts {
		f.texts = f.texts[:0]
		cuts[i] = f.whole(f.text(&a.Parts[i].Delta), a.Parts[i].Text)
	}
	return cuts
}

// whole looks at a text that is all there.
func (f *Filter) whole(t *text, b []byte) cut {
	_, rule := f.scan(t, b, true)
	if rule < 0 {
		rule = f.ends(t, -1)
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
	// The machine knows the shortest match: it may have begun earlier.
	at := int(t.start)
	if loc := t.found.whole.FindIndex(b); loc != nil {
		at = min(at, loc[0])
	}
	return cut{at, rule}
}

// askWhole asks hooks about the texts that no other rule cuts.
func (s *Set) askWhole(ctx context.Context, a *delta.Answer, cuts []cut) (err error) {
	var questions []*due
	var of []int
	for i := range a.Parts {
		if cuts[i].rule >= 0 {
			continue
		}
		for _, h := range s.hooks {
			questions = append(questions, &due{hook: h, q: question{a.Model, string(a.Parts[i].Text), a.Parts[i].Choice, true}})
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

// speaking are the places of the parts of a choice in the order in which they would have come in a stream.
func speaking(a *delta.Answer, of int) (order []int) {
	for i := range a.Parts {
		if a.Parts[i].Of == of {
			order = append(order, i)
		}
	}
	if a.Endings[of].Response { // its items stand in that order
		return order
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(rank(a.Parts[i].Kind), rank(a.Parts[j].Kind)) })
	return order
}

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

// edit puts another value in the place of one; where From is To it is put between.
type edit struct {
	at   delta.Span
	with string
}

// ended are the edits that say that a choice was ended by a filter.
func ended(e *delta.Ending, body []byte) (edits []edit) {
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
	for _, also := range e.Also {
		nothing := "null"
		if body[also.From] == '[' {
			nothing = "[]"
		}
		edits = append(edits, edit{also, nothing})
	}
	return edits
}

func quote(text []byte) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(string(text)) != nil {
		return `""` // strings can always be written
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

func apply(body []byte, edits []edit) []byte {
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
