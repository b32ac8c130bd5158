package moderation

import (
	"context"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/openai/delta"
)

const (
	// maxIdleEvents is the number of events that add to other texts of the same choice after which
	// a text holds events no longer. When a model has finished thinking, its answer must not be
	// held to the end because its thought ended with the first letter of a literal. A literal that
	// is continued after that is still found, but its beginning has been sent.
	maxIdleEvents = 32
	// maxTexts bounds the texts of one stream. Further texts are checked as one. A text needs some
	// hundred bytes, a thread for each state of a pattern and, with hooks, twice their window and
	// the text that they have not seen.
	maxTexts = 1024
)

// Filter checks the events of one stream. It is for one goroutine.
type Filter struct {
	// Model is given to hooks. Empty: none is given.
	Model string

	set     *Set
	reader  delta.Reader
	runs    []*run // of the machines of set, in the same order
	texts   []*text
	event   int64 // the number of events so far
	joined  []byte
	blocked *Verdict // nil: the stream is not blocked
}

// NewFilter returns a filter for one stream.
func (s *Set) NewFilter() *Filter {
	f := &Filter{set: s}
	for _, m := range s.machines {
		f.runs = append(f.runs, newRun(m))
	}
	return f
}

// Check checks the data of the next event. It blocks while a hook is asked, at most for the hook's
// timeout. When ctx has ended, the verdict means nothing.
func (f *Filter) Check(ctx context.Context, data []byte) Verdict {
	if f.blocked != nil {
		return *f.blocked
	}
	f.event++
	deltas, _ := f.reader.Read(data)
	for i := range deltas {
		if len(deltas[i].Text) == 0 {
			continue
		}
		t := f.textOf(&deltas[i])
		if rule, found := f.addDelta(t, &deltas[i]); found {
			return f.block(rule, t)
		}
	}
	for _, choice := range f.reader.Finished() {
		if v, found := f.finishChoice(choice); found {
			return v
		}
	}
	v := f.askHooks(ctx, false)
	if v.Action == Block {
		return v
	}
	f.releaseIdle(deltas)
	if v.Keep = f.countHeld(); v.Keep > 0 {
		v.Action = Hold
	}
	return v
}

// Finish says at the end of the stream whether the held events may be sent. It asks the hooks about
// text that they have not seen, about all texts at the same time.
func (f *Filter) Finish(ctx context.Context) Verdict {
	if f.blocked != nil {
		return *f.blocked
	}
	for _, t := range f.texts {
		if rule, found := f.finishText(t); found {
			return f.block(rule, t)
		}
	}
	return f.askHooks(ctx, true)
}

// block returns a verdict that blocks the stream for good.
func (f *Filter) block(rule int, t *text) Verdict {
	f.blocked = &Verdict{Action: Block, Rule: f.set.names[rule], Choice: t.choice}
	f.texts = nil
	return *f.blocked
}

// textOf returns the text that a delta adds to.
func (f *Filter) textOf(d *delta.Delta) *text {
	for _, t := range f.texts {
		if t.choice == d.Choice && t.kind == d.Kind && t.tool == d.Tool {
			return t
		}
	}
	if len(f.texts) == maxTexts {
		return f.texts[maxTexts-1]
	}
	t := &text{choice: d.Choice, kind: d.Kind, tool: d.Tool, prev: -1, threads: make([][]thread, len(f.runs)), asked: make([]int64, len(f.set.hooks))}
	f.texts = append(f.texts, t)
	return t
}

// addDelta adds a delta to a text. It returns the rule that forbids the text, if one does.
func (f *Filter) addDelta(t *text, d *delta.Delta) (rule int, found bool) {
	t.recordGrowth(f.event, f.set.hasLiterals())
	t.keepRecent(f.set.hooks, d.Text)
	b := f.join(t, d)
	if t.high = d.High; t.high != 0 {
		b = b[:len(b)-len(replacement)]
	}
	b, rule = f.scan(t, b, t.high != 0)
	t.half = append(t.half[:0], b...)
	if rule < 0 {
		rule = f.patternAtEnd(t, unknownRune)
	}
	t.trim()
	return rule, rule >= 0
}

// replacement is what a delta has in place of half a surrogate pair.
const replacement = "\ufffd"

// join returns the bytes that a delta adds, preceded by the incomplete rune that the text ended
// with.
func (f *Filter) join(t *text, d *delta.Delta) []byte {
	rest := d.Text
	f.joined = append(f.joined[:0], t.half...)
	switch {
	case t.high != 0 && d.Low != 0:
		f.joined = utf8.AppendRune(f.joined, utf16.DecodeRune(t.high, d.Low))
		rest = rest[len(replacement):]
	case t.high != 0:
		f.joined = append(f.joined, replacement...)
	case len(t.half) == 0:
		return rest
	}
	f.joined = append(f.joined, rest...)
	return f.joined
}

// finishChoice ends the texts of a choice, so that they hold no events any longer.
func (f *Filter) finishChoice(choice int) (v Verdict, found bool) {
	for _, t := range f.texts {
		if t.choice != choice {
			continue
		}
		if rule, found := f.finishText(t); found {
			return f.block(rule, t), true
		}
	}
	return Verdict{}, false
}

// finishText returns the rule that forbids a text that ends here. The text may still grow
// afterwards.
func (f *Filter) finishText(t *text) (rule int, found bool) {
	if t.high != 0 {
		t.half, t.high = append(t.half, replacement...), 0
	}
	_, rule = f.scan(t, t.half, true)
	t.half = t.half[:0]
	if rule < 0 {
		rule = f.patternAtEnd(t, -1)
	}
	t.release()
	return rule, rule >= 0
}

// releaseIdle counts for each text that holds events how long it has not grown, and releases the
// events in the end.
func (f *Filter) releaseIdle(deltas []delta.Delta) {
	for _, t := range f.texts {
		if !t.isHolding() || t.lastEvent() == f.event || !addsText(deltas, t.choice) {
			continue
		}
		if t.idleEvents++; t.idleEvents >= maxIdleEvents {
			t.release()
		}
	}
}

// addsText reports whether a delta adds text to the choice.
func addsText(deltas []delta.Delta, choice int) bool {
	for i := range deltas {
		if deltas[i].Choice == choice && len(deltas[i].Text) > 0 {
			return true
		}
	}
	return false
}

// countHeld returns how many of the last events must be held.
func (f *Filter) countHeld() int {
	n := int64(0)
	for _, t := range f.texts {
		if t.isHolding() {
			n = max(n, f.event-t.growths[0].event+1)
		}
	}
	return int(n)
}
