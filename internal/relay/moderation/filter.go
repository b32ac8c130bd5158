package moderation

import (
	"bytes"
	"context"
	"encoding/base64"
	"slices"

	"github.com/sluice-gateway/sluice/internal/openai/leaves"
)

const (
	// maxIdleEvents is the number of events that add to other texts of the same choice after which
	// a text holds events no longer. When a model has finished thinking, its answer must not be
	// held to the end because its thought ended with the first letter of a literal. A literal that
	// is continued after that is still found, but its beginning has been sent.
	maxIdleEvents = 32
	// maxIdleBrief is maxIdleEvents for a text that is seldom continued.
	maxIdleBrief = 1
)

// Filter checks the events of one stream. It is for one goroutine.
type Filter struct {
	// Model is given to hooks. Empty: none is given.
	Model string

	set    *Set
	reader leaves.Reader
	runs   []*run  // of the machines of set, in the same order
	texts  []*text // that grow
	byPath []*text // all texts, by the ID of their path
	alone  text    // for values that stand alone
	event  int64   // the number of events so far
	joined []byte

	ended []ending
	// removed lists what must be removed from events that were not sent yet.
	removed []removal
	blocked *Verdict // nil: the stream is not blocked
	// err is why a hook gave no answer, in the current call.
	err error
	// whole says that the only event is an answer that is no stream.
	whole bool
	// judged has the hashes of texts that the hooks have judged, when there are hooks.
	judged map[uint64]struct{}
}

// ending says where a rule has ended a choice, or everything (leaves.Root).
type ending struct {
	choice, rule int
	cut          cut
	// told says that Rewrite has told the client of it.
	told bool
}

// cut is the place where a text has to end. The path is nil if nothing of the event may be kept.
type cut struct {
	event int64
	path  *leaves.Path
	// keep is how much of what the event adds to the text may be sent: runes, or bytes.
	keep    int64
	inBytes bool
}

// removal says that an event has values that must be removed: log probabilities of a choice, or
// values that only name something or cannot be read.
type removal struct {
	event  int64
	tokens bool
	choice int
}

// NewFilter returns a filter for one stream.
func (s *Set) NewFilter() *Filter {
	f := &Filter{set: s}
	for _, m := range s.machines {
		f.runs = append(f.runs, newRun(m))
	}
	f.alone = text{prev: -1, rule: -1, threads: make([][]thread, len(f.runs))}
	return f
}

// Skip counts an event that has no data to check, as the end marker. The verdict is Pass or Hold.
func (f *Filter) Skip() Verdict {
	if f.blocked != nil {
		return *f.blocked
	}
	f.event++
	return f.verdict(0)
}

// Check checks the data of the next event. It blocks while a hook is asked, at most for the hook's
// timeout. When ctx has ended, the verdict means nothing.
func (f *Filter) Check(ctx context.Context, data []byte) Verdict {
	if f.blocked != nil {
		return *f.blocked
	}
	f.event++
	ended := len(f.ended)
	if !f.reader.Read(data) {
		f.blocked = &Verdict{Action: Refuse}
		return *f.blocked
	}
	for i := range f.reader.Leaves {
		f.addLeaf(&f.reader.Leaves[i])
	}
	f.endFinished(ctx)
	if !f.whole {
		f.askHooks(ctx, func(*text) bool { return false })
	}
	f.releaseIdle()
	return f.verdict(ended)
}

// Finish says at the end of the stream whether the held events may be sent. It asks the hooks about
// text that they have not seen, about all texts at the same time.
func (f *Filter) Finish(ctx context.Context) Verdict {
	if f.blocked != nil {
		return *f.blocked
	}
	ended := len(f.ended)
	f.endTexts(ctx, func(*text) bool { return true })
	return f.verdict(ended)
}

// AnyEnded reports whether a rule has ended any choice.
func (f *Filter) AnyEnded() bool { return len(f.ended) > 0 }

// HasEnded reports whether a rule has ended the choice.
func (f *Filter) HasEnded(choice int) bool {
	for i := range f.ended {
		if f.ended[i].choice == choice || f.ended[i].choice == leaves.Root {
			return true
		}
	}
	return false
}

// HasTold reports whether Rewrite has returned an event that tells the client that a rule has ended
// the choice.
func (f *Filter) HasTold(choice int) bool {
	e := f.endingOf(choice)
	return e != nil && e.told
}

// Events returns how many events were checked.
func (f *Filter) Events() int64 { return f.event }

// verdict returns what has to be done after a call that found before endings.
func (f *Filter) verdict(before int) Verdict {
	v := Verdict{Err: f.err}
	f.err = nil
	if len(f.ended) > before {
		e := &f.ended[before]
		v.Ended, v.Rule, v.Choice = true, f.set.names[e.rule], max(e.choice, 0)
	}
	if f.blocked != nil {
		v.Action = Block
		*f.blocked = v
		return v
	}
	if v.Keep = f.countHeld(); v.Keep > 0 {
		v.Action = Hold
	}
	return v
}

// addLeaf judges a string of the current event.
func (f *Filter) addLeaf(l *leaves.Leaf) {
	switch l.Path.Class {
	case leaves.Number:
		if _, err := base64.StdEncoding.AppendDecode(nil, l.Text); err == nil {
			return
		}
		f.addComplete(l)
	case leaves.Opaque:
		f.remove(removal{event: f.event})
	case leaves.Meta:
		if f.judgeSame(l) >= 0 {
			f.reader.Full = true // it must be removed from every event
			f.remove(removal{event: f.event})
		}
	case leaves.Tokens:
		f.addTokens(l)
	case leaves.Complete:
		f.addComplete(l)
	case leaves.Text, leaves.Brief:
		f.addText(l)
	}
}

// addText adds to a text that grows.
func (f *Filter) addText(l *leaves.Leaf) {
	if len(l.Text) == 0 || len(f.ended) > 0 && f.HasEnded(l.Choice) {
		return
	}
	t := f.textOf(l)
	t.recordGrowth(f.event)
	t.keepRecent(f.set.hooks, l.Text)
	found, rule := f.grow(t, l)
	if rule >= 0 {
		f.endChoice(t.choice, rule, found.cut())
		return
	}
	literals := f.set.hasLiterals()
	for u := t; u != nil; u = u.inner {
		u.trim(literals)
	}
}

// grow adds a piece to a text and to its inner texts. It returns the text that a rule forbids, and
// the rule, which is -1 if there is none.
func (f *Filter) grow(t *text, l *leaves.Leaf) (found *text, rule int) {
	if bytes.IndexByte(l.Text, '\\') >= 0 {
		f.openInner(t)
	}
	if rule = f.addPiece(t, l); t.inner == nil {
		return t, rule
	}
	// If rules forbid both texts, the inner one may have to end earlier.
	inner, innerRule := f.addInner(t, l)
	if innerRule >= 0 && (rule < 0 || inner.cut().event <= t.cut().event) {
		return inner, innerRule
	}
	return t, rule
}

// addComplete judges a text that is whole in its event.
func (f *Filter) addComplete(l *leaves.Leaf) {
	if !l.Path.IsName && len(f.ended) > 0 && f.HasEnded(l.Choice) {
		return
	}
	if rule := f.judgeAlone(l); rule >= 0 {
		f.endChoice(l.Choice, rule, cut{event: f.event})
		f.dropName(l)
		return
	}
	if len(f.set.hooks) > 0 && !l.Path.IsName {
		t := f.textOf(l)
		t.restart()
		t.recordGrowth(f.event)
		t.keepRecent(f.set.hooks, l.Text)
		t.release()
	}
}

// judgeAlone returns the rule that forbids a leaf that stands alone, with or without its escapes,
// or -1.
func (f *Filter) judgeAlone(l *leaves.Leaf) (rule int) {
	if rule = f.judge(l.Text); rule >= 0 || bytes.IndexByte(l.Text, '\\') < 0 {
		return rule
	}
	return f.judgeInner(l)
}

// dropName makes nothing stay of the current event in a choice that had ended in the event before a
// forbidden name was found.
func (f *Filter) dropName(l *leaves.Leaf) {
	for i := range f.ended {
		if e := &f.ended[i]; (e.choice == l.Choice || e.choice == leaves.Root) && e.cut.event == f.event {
			e.cut.path = nil
		}
	}
}

// addTokens adds to log probabilities. They hold no event: what they repeat does. When a rule has
// applied to them, no more of them is sent.
func (f *Filter) addTokens(l *leaves.Leaf) {
	t := f.textOf(l)
	if t.rule < 0 {
		_, t.rule = f.grow(t, l)
		for u := t.inner; u != nil; u = u.inner {
			u.release()
		}
	}
	if t.rule >= 0 {
		f.remove(removal{event: f.event, tokens: true, choice: l.Choice})
	}
}

// judgeSame judges a value that stands alone, and is mostly the same in each event.
func (f *Filter) judgeSame(l *leaves.Leaf) (rule int) {
	t := f.textOf(l)
	if !bytes.Equal(t.same, l.Text) {
		t.same = append(t.same[:0], l.Text...)
		if t.rule = -1; !leaves.IsConstant(l.Text) {
			t.rule = f.judgeAlone(l)
		}
	}
	return t.rule
}

func (f *Filter) remove(r removal) {
	if slices.Contains(f.removed, r) {
		return
	}
	f.removed = append(f.removed, r)
}

func (f *Filter) textOf(l *leaves.Leaf) *text {
	id := l.Path.ID
	for id >= len(f.byPath) {
		f.byPath = append(f.byPath, nil)
	}
	t := f.byPath[id]
	if t == nil {
		t = f.newText(l)
		f.byPath[id] = t
		if class := l.Path.Class; class == leaves.Text || class == leaves.Brief || class == leaves.Complete {
			f.texts = append(f.texts, t)
		}
	}
	return t
}

// endChoice ends a choice, or everything.
func (f *Filter) endChoice(choice, rule int, at cut) {
	if f.HasEnded(choice) {
		return
	}
	f.ended = append(f.ended, ending{choice: choice, rule: rule, cut: at})
	kept := f.texts[:0]
	for _, t := range f.texts {
		if t.choice != choice && choice != leaves.Root {
			kept = append(kept, t)
		}
	}
	clear(f.texts[len(kept):])
	f.texts = kept
	if choice == leaves.Root {
		f.blocked = &Verdict{Action: Block}
	}
}

// endFinished ends the texts of the choices that the event has finished, so that they hold no
// events any longer.
func (f *Filter) endFinished(ctx context.Context) {
	if f.reader.Ends {
		f.endTexts(ctx, func(t *text) bool { return t.choice == leaves.Root })
	}
	for i := range f.reader.Choices {
		if c := &f.reader.Choices[i]; c.Finished {
			f.endTexts(ctx, func(t *text) bool { return t.choice == c.Index })
		}
	}
}

// endTexts ends the texts that are chosen. They may still grow afterwards.
func (f *Filter) endTexts(ctx context.Context, chosen func(*text) bool) {
	for i := 0; i < len(f.texts); i++ {
		t := f.texts[i]
		if !chosen(t) || t.path.Class == leaves.Complete {
			continue
		}
		if len(t.escape) > 0 {
			t.half, t.escape = append(t.half, t.escape...), nil
		}
		if rule := f.end(t); rule >= 0 {
			f.endChoice(t.choice, rule, f.lastCut(t))
			i = -1 // f.texts has changed
			continue
		}
	}
	f.askHooks(ctx, chosen)
	for _, t := range f.texts {
		if chosen(t) {
			t.release()
		}
	}
}

// lastCut is the cut of a text that a rule forbids at its end.
func (f *Filter) lastCut(t *text) cut {
	if len(t.growths) > 0 {
		return t.cut()
	}
	return cut{event: f.event}
}

// releaseIdle counts for each text that holds events how long it has not grown, and releases the
// events in the end.
func (f *Filter) releaseIdle() {
	for _, t := range f.texts {
		if !t.isHolding() || t.lastEvent() == f.event || !f.addsText(t.choice) {
			continue
		}
		limit := maxIdleEvents
		if t.path.Class == leaves.Brief {
			limit = maxIdleBrief
		}
		if t.idleEvents++; t.idleEvents >= limit {
			t.release()
		}
	}
}

func (f *Filter) addsText(choice int) bool {
	for i := range f.reader.Leaves {
		l := &f.reader.Leaves[i]
		if (l.Choice == choice || choice == leaves.Root) && len(l.Text) > 0 && l.Path.Class <= leaves.Brief {
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
