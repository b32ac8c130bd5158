package moderation

import (
	"hash/maphash"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/openai/leaves"
)

// text is one text of an answer, as far as it has come: what stands at one path.
type text struct {
	choice int
	path   *leaves.Path

	half  []byte // the bytes of an incomplete rune at its end
	high  rune   // half of a surrogate pair at its end; 0: none
	prev  rune   // the last rune; -1: none
	runes int64
	bytes int64 // of complete runes

	exact, folded int32      // states of the automatons of the set
	depth         int64      // how many runes at the end may begin a literal
	threads       [][]thread // of each machine
	found         *machine   // the pattern that has matched; nil: a literal has
	start         int64      // where that match began, in bytes
	growths       []growth   // events that may have to be held
	idleEvents    int        // events since then that added to other texts of the choice

	// inner is the same text without JSON's escapes, from the first backslash on. nil: there was
	// none. What the model says can itself be JSON, as the arguments of a tool call are, and a
	// client reads it. level says how often that was done already.
	inner *text
	level int
	// escape has the beginning of an escape that is not complete. It is used in an inner text.
	escape []byte

	recent []byte        // the end of the text, for hooks
	asked  []int64       // for each hook, how many bytes of the text it has been asked about
	total  int64         // bytes of the whole text; recent has the last ones
	hash   *maphash.Hash // of the whole text; nil: it is not needed

	// same is the value that was seen last, of a text that is whole in each event. rule is the rule
	// that forbids it, -1 if none does.
	same []byte
	rule int
}

// growth is an event that has added to a text, with the first rune and the first byte that have
// surely come with the event.
type growth struct{ event, rune, byte int64 }

// maxLevel is how many levels of JSON in JSON are read.
const maxLevel = 2

func (f *Filter) newText(l *leaves.Leaf) *text {
	t := &text{choice: l.Choice, path: l.Path, prev: -1, rule: -1, threads: make([][]thread, len(f.runs)), asked: make([]int64, len(f.set.hooks))}
	if len(f.set.hooks) > 0 && l.Path.Class == leaves.Text {
		t.hash = new(maphash.Hash)
		t.hash.SetSeed(f.set.seed)
	}
	return t
}

// restart makes the text empty.
func (t *text) restart() {
	*t = text{choice: t.choice, path: t.path, prev: -1, rule: -1, threads: t.threads, asked: t.asked, growths: t.growths[:0], half: t.half[:0], same: t.same,
		recent: t.recent[:0]}
	for i := range t.threads {
		t.threads[i] = t.threads[i][:0]
	}
	clear(t.asked)
}

// recordGrowth records that an event adds to the text.
func (t *text) recordGrowth(event int64) {
	t.idleEvents = 0
	if n := len(t.growths); n > 0 && t.growths[n-1].event == event {
		return
	}
	open := int64(len(t.half))
	if t.high != 0 || len(t.escape) > 0 {
		open++
	}
	t.growths = append(t.growths, growth{event, t.runes + open, t.bytes + int64(len(t.half))})
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
func (t *text) trim(literals bool) {
	if !literals || t.depth == 0 && len(t.half) == 0 && t.high == 0 && len(t.escape) == 0 {
		t.release()
		return
	}
	first, n := t.runes-t.depth, 0
	for n+1 < len(t.growths) && t.growths[n+1].rune <= first {
		n++
	}
	t.growths = append(t.growths[:0], t.growths[n:]...)
}

// cut returns where the text has to end after a rule was found. That is before what may be the
// beginning of a literal, or before the match of a pattern.
func (t *text) cut() cut {
	c := cut{path: t.path}
	if len(t.growths) > 0 {
		c.event = t.growths[0].event
	}
	start := t.runes - t.depth
	for _, g := range t.growths {
		switch {
		case t.found != nil && g.byte <= t.start:
			c.event, c.keep, c.inBytes = g.event, t.start-g.byte, true
		case t.found == nil && g.rune <= start:
			c.event, c.keep = g.event, start-g.rune
		}
	}
	if t.level > 0 {
		c.keep = 0 // the two texts do not have the same length
	}
	return c
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

// addPiece adds a piece to a text. It returns the rule that forbids the text, -1 if none does.
func (f *Filter) addPiece(t *text, l *leaves.Leaf) (rule int) {
	b, from := f.join(t, l), t.bytes
	whole := b
	if t.high = l.High; t.high != 0 {
		b = b[:len(b)-len(replacement)]
	}
	b, rule = f.scan(t, b, t.high != 0)
	t.half = append(t.half[:0], b...)
	if rule < 0 {
		rule = f.patternAtEnd(t, unknownRune)
	}
	if rule >= 0 && t.found != nil { // the machine finds the shortest match; a longer one may have begun earlier
		if loc := t.found.whole.FindIndex(whole); loc != nil {
			t.start = min(t.start, from+int64(loc[0]))
		}
	}
	return rule
}

// replacement is what a piece has in place of half a surrogate pair.
const replacement = "\ufffd"

// join returns the bytes that a piece adds, preceded by the incomplete rune that the text ended
// with.
func (f *Filter) join(t *text, l *leaves.Leaf) []byte {
	rest := l.Text
	f.joined = append(f.joined[:0], t.half...)
	switch {
	case t.high != 0 && l.Low != 0:
		f.joined = utf8.AppendRune(f.joined, utf16.DecodeRune(t.high, l.Low))
		rest = rest[len(replacement):]
	case t.high != 0:
		f.joined = append(f.joined, replacement...)
	case len(t.half) == 0:
		return rest
	}
	f.joined = append(f.joined, rest...)
	return f.joined
}

// end returns the rule that forbids a text that ends here. The text may still grow afterwards.
func (f *Filter) end(t *text) (rule int) {
	if t.high != 0 {
		t.half, t.high = append(t.half, replacement...), 0
	}
	_, rule = f.scan(t, t.half, true)
	t.half = t.half[:0]
	if rule < 0 {
		rule = f.patternAtEnd(t, -1)
	}
	return rule
}

// judge returns the rule that forbids a value that stands alone, -1 if there is none.
func (f *Filter) judge(value []byte) (rule int) {
	f.alone.restart()
	_, rule = f.scan(&f.alone, value, true)
	if rule < 0 {
		rule = f.patternAtEnd(&f.alone, -1)
	}
	return rule
}
