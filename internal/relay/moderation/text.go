package moderation

import (
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/openai/delta"
)

// text is one text of a stream, as far as it has come.
type text struct {
	choice int
	kind   delta.Kind
	tool   int

	half  []byte // the bytes of an incomplete rune at its end
	high  rune   // half of a surrogate pair at its end; 0: none
	prev  rune   // the last rune; -1: none
	runes int64
	bytes int64 // of complete runes

	exact, folded int32      // states of the automatons of the set
	depth         int64      // how many runes at the end may begin a literal
	threads       [][]thread // of each machine
	found         *machine   // the pattern that has matched
	start         int64      // where that match began, in bytes
	growths       []growth   // events that may have to be held, if there are literals
	idleEvents    int        // events since then that added to other texts of the choice

	recent []byte  // the end of the text, for hooks
	asked  []int64 // for each hook, how many bytes of the text it has been asked about
	total  int64   // bytes of the whole text; recent has the last ones
}

// growth is an event that has added to a text, and the first rune that may have come with the
// event.
type growth struct{ event, rune int64 }

// recordGrowth records that an event adds to the text.
func (t *text) recordGrowth(event int64, literals bool) {
	t.idleEvents = 0
	if literals && t.lastEvent() != event {
		open := len(t.half)
		if t.high != 0 {
			open++
		}
		t.growths = append(t.growths, growth{event, t.runes + int64(open)})
	}
}

// lastEvent returns the last event that may have to be held, 0 if there is none.
func (t *text) lastEvent() int64 {
	if len(t.growths) == 0 {
		return 0
	}
	return t.growths[len(t.growths)-1].event
}

// isHolding reports whether events must be held until the text goes on.
func (t *text) isHolding() bool { return len(t.growths) > 0 }

// release releases the events that are held for the text.
func (t *text) release() { t.growths = t.growths[:0] }

// trim releases the events that came before the possible beginning of a literal.
func (t *text) trim() {
	if t.depth == 0 && len(t.half) == 0 && t.high == 0 {
		t.release()
		return
	}
	first, n := t.runes-t.depth, 0
	for n+1 < len(t.growths) && t.growths[n+1].rune <= first {
		n++
	}
	t.growths = append(t.growths[:0], t.growths[n:]...)
}

// scan reads the runes of b. An incomplete rune at the end is returned as rest, unless the text
// ends there. rule is the rule that forbids the text, -1 if there is none.
func (f *Filter) scan(t *text, b []byte, end bool) (rest []byte, rule int) {
	for len(b) > 0 {
		r, size := rune(b[0]), 1
		if r >= utf8.RuneSelf {
			if !end && !utf8.FullRune(b) {
				return b, -1
			}
			r, size = utf8.DecodeRune(b)
		}
		if rule = f.addRune(t, r, size); rule >= 0 {
			return nil, rule
		}
		b = b[size:]
	}
	return nil, -1
}

// addRune adds one rune to the text.
func (f *Filter) addRune(t *text, r rune, size int) (rule int) {
	for i, run := range f.runs {
		moved, matched := run.next(t.threads[i], t.prev, r, t.bytes)
		if t.threads[i] = moved; matched {
			t.found, t.start = run.m, run.start
			return run.m.rule
		}
	}
	t.prev = r
	t.runes++
	t.bytes += int64(size)
	return f.stepLiterals(t, r)
}

// stepLiterals steps the automatons of literals. It returns the rule of a literal that ends here,
// or -1.
func (f *Filter) stepLiterals(t *text, r rune) (rule int) {
	rule, t.depth = -1, 0
	if a := &f.set.exact; !a.empty() {
		t.exact = a.step(t.exact, r)
		n := &a.nodes[t.exact]
		rule, t.depth = int(n.rule), int64(n.depth)
	}
	if a := &f.set.folded; !a.empty() {
		t.folded = a.step(t.folded, r)
		n := &a.nodes[t.folded]
		t.depth = max(t.depth, int64(n.depth))
		if n.rule >= 0 && (rule < 0 || int(n.rule) < rule) {
			rule = int(n.rule)
		}
	}
	return rule
}

// patternAtEnd returns the rule of a pattern that has a match ending with the text, or -1.
func (f *Filter) patternAtEnd(t *text, next rune) (rule int) {
	for i, run := range f.runs {
		if run.matchesAtEnd(t.threads[i], t.prev, next, t.bytes) {
			t.found, t.start = run.m, run.start
			return run.m.rule
		}
	}
	return -1
}
