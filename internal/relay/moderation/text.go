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

	half  []byte // the bytes of a rune that has not come to its end
	high  rune   // half of a surrogate pair at its end, 0: none
	prev  rune   // the last rune, -1: none
	runes int64
	bytes int64 // of whole runes

	exact, folded int32      // states of the set's automatons
	depth         int64      // how many runes at the end begin a literal
	threads       [][]thread // by machine
	found         *machine   // the pattern that has matched
	start         int64      // where that match began, in bytes
	grown         []growth   // events that may have to stay, while literals are looked for
	away          int        // events of the choice since then that added to others

	said  []byte  // for hooks: the end of the text
	asked []int64 // by hook: how much of the text it has been asked about, in bytes
	total int64   // bytes of the text, those of said last
}

// growth is an event that has added to a text, and the first rune that may have come with it.
type growth struct{ event, rune int64 }

// grew notes that an event adds to the text.
func (t *text) grew(event int64, literals bool) {
	t.away = 0
	if literals && t.last() != event {
		open := len(t.half)
		if t.high != 0 {
			open++
		}
		t.grown = append(t.grown, growth{event, t.runes + int64(open)})
	}
}

// last is the last event that may have to stay.
func (t *text) last() int64 {
	if len(t.grown) == 0 {
		return 0
	}
	return t.grown[len(t.grown)-1].event
}

// holds says whether events must stay until the text goes on.
func (t *text) holds() bool { return len(t.grown) > 0 }

// release lets go what it holds, whatever may come.
func (t *text) release() { t.grown = t.grown[:0] }

// trim forgets events that came before what may begin a literal.
func (t *text) trim() {
	if t.depth == 0 && len(t.half) == 0 && t.high == 0 {
		t.release()
		return
	}
	first, n := t.runes-t.depth, 0
	for n+1 < len(t.grown) && t.grown[n+1].rune <= first {
		n++
	}
	t.grown = append(t.grown[:0], t.grown[n:]...)
}

// scan reads the runes of b, all of them when the text ends there, and gives what is left. rule is that which forbids the text, -1: none
// does.
func (f *Filter) scan(t *text, b []byte, end bool) (rest []byte, rule int) {
	for len(b) > 0 {
		r, size := rune(b[0]), 1
		if r >= utf8.RuneSelf {
			if !end && !utf8.FullRune(b) {
				return b, -1
			}
			r, size = utf8.DecodeRune(b)
		}
		if rule = f.rune(t, r, size); rule >= 0 {
			return nil, rule
		}
		b = b[size:]
	}
	return nil, -1
}

// rune adds one to the text.
func (f *Filter) rune(t *text, r rune, size int) (rule int) {
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
	return f.literal(t, r)
}

func (f *Filter) literal(t *text, r rune) (rule int) {
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

// ends says which pattern has a match that ends with the text, -1: none has.
func (f *Filter) ends(t *text, next rune) (rule int) {
	for i, run := range f.runs {
		if run.ends(t.threads[i], t.prev, next, t.bytes) {
			t.found, t.start = run.m, run.start
			return run.m.rule
		}
	}
	return -1
}
