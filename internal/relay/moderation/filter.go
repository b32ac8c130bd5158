package moderation

import (
	"context"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/openai/delta"
)

const (
	// patience is after how many events that add to other texts of the same choice a text is held to be over, as far as holding goes: a
	// model that has thought begins to speak, and what it says must not wait to the end because a thought ended with the first letter of a
	// literal. A literal that is continued later than that is found too, but its beginning has been sent.
	patience = 32
	// maxTexts bounds what one stream makes a filter keep: texts beyond it are looked at as one. A text keeps some hundred bytes,
	// a thread for each place that a pattern may have got to, and with hooks twice their window and what they have not been asked about.
	maxTexts = 1024
)

// Filter sees one stream. It is for one goroutine.
type Filter struct {
	// Model is told to hooks; empty: nothing is.
	Model string

	set     *Set
	reader  delta.Reader
	runs    []*run // by machine
	texts   []*text
	event   int64 // how many events were seen
	joined  []byte
	blocked *Verdict // for good
}

// Stream begins a stream.
func (s *Set) Stream() *Filter {
	f := &Filter{set: s}
	for _, m := range s.machines {
		f.runs = append(f.runs, newRun(m))
	}
	return f
}

// See reads the data of the stream's next event, whatever that is, and says what is to be done with it. While a hook is asked it does not
// return, for the hook's timeout at most. When ctx has ended, its client has left and the verdict means nothing.
func (f *Filter) See(ctx context.Context, data []byte) Verdict {
	if f.blocked != nil {
		return *f.blocked
	}
	f.event++
	deltas, _ := f.reader.Read(data)
	for i := range deltas {
		if len(deltas[i].Text) == 0 {
			continue
		}
		t := f.text(&deltas[i])
		if rule, found := f.feed(t, &deltas[i]); found {
			return f.block(rule, t)
		}
	}
	for _, choice := range f.reader.Finished() {
		if v, found := f.finish(choice); found {
			return v
		}
	}
	v := f.ask(ctx, false)
	if v.Action == Block {
		return v
	}
	f.leave(deltas)
	if v.Keep = f.keep(); v.Keep > 0 {
		v.Action = Hold
	}
	return v
}

// End says, when the stream is over, whether what is held may go. It asks hooks about what they have not seen, all texts at the same time.
func (f *Filter) End(ctx context.Context) Verdict {
	if f.blocked != nil {
		return *f.blocked
	}
	for _, t := range f.texts {
		if rule, found := f.close(t); found {
			return f.block(rule, t)
		}
	}
	return f.ask(ctx, true)
}

func (f *Filter) block(rule int, t *text) Verdict {
	f.blocked = &Verdict{Action: Block, Rule: f.set.names[rule], Choice: t.choice}
	f.texts = nil
	return *f.blocked
}

// text is the text that a delta adds to.
func (f *Filter) text(d *delta.Delta) *text {
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

// feed adds to a text and says which rule forbids it, if one does.
func (f *Filter) feed(t *text, d *delta.Delta) (rule int, found bool) {
	t.grew(f.event, f.set.literal())
	t.keepSaid(f.set.hooks, d.Text)
	b := f.join(t, d)
	if t.high = d.High; t.high != 0 {
		b = b[:len(b)-len(replacement)]
	}
	b, rule = f.scan(t, b, t.high != 0)
	t.half = append(t.half[:0], b...)
	if rule < 0 {
		rule = f.ends(t, unknown)
	}
	t.trim()
	return rule, rule >= 0
}

// replacement is what a delta has for half a surrogate pair.
const replacement = "\ufffd"

// join is what a delta adds, behind what the text was left with.
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

// finish ends the texts of a choice: what they held up may go.
func (f *Filter) finish(choice int) (v Verdict, found bool) {
	for _, t := range f.texts {
		if t.choice != choice {
			continue
		}
		if rule, found := f.close(t); found {
			return f.block(rule, t), true
		}
	}
	return Verdict{}, false
}

// close says whether a rule forbids a text that ends here. The text goes on if more comes all the same.
func (f *Filter) close(t *text) (rule int, found bool) {
	if t.high != 0 {
		t.half, t.high = append(t.half, replacement...), 0
	}
	_, rule = f.scan(t, t.half, true)
	t.half = t.half[:0]
	if rule < 0 {
		rule = f.ends(t, -1)
	}
	t.release()
	return rule, rule >= 0
}

// leave counts, for texts that hold events, how long they have not grown.
func (f *Filter) leave(deltas []delta.Delta) {
	for _, t := range f.texts {
		if !t.holds() || t.last() == f.event || !speaks(deltas, t.choice) {
			continue
		}
		if t.away++; t.away >= patience {
			t.release()
		}
	}
}

func speaks(deltas []delta.Delta, choice int) bool {
	for i := range deltas {
		if deltas[i].Choice == choice && len(deltas[i].Text) > 0 {
			return true
		}
	}
	return false
}

// keep is how many of the last events must stay.
func (f *Filter) keep() int {
	n := int64(0)
	for _, t := range f.texts {
		if t.holds() {
			n = max(n, f.event-t.grown[0].event+1)
		}
	}
	return int(n)
}
