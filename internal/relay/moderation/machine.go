package moderation

import (
	"regexp"
	"regexp/syntax"
)

// machine matches a pattern as its text comes, rune by rune (Thompson 1968;
// https://swtch.com/~rsc/regexp/regexp2.html). The package regexp starts anew with each call, which
// would read the whole window again for each event. machine runs the program of regexp/syntax, so
// it matches what regexp does.
type machine struct {
	prog   *syntax.Prog
	whole  *regexp.Regexp // the same pattern, for text that is complete
	rule   int
	window int64
	// matchesEmpty says that the pattern can match an empty text.
	matchesEmpty bool
	// firstRunes has the ASCII runes with which a match may begin. It may begin with any other
	// rune.
	firstRunes [128]bool
}

// thread is a state of the program that the text since start has led to.
type thread struct {
	pc    uint32
	start int64 // offset in the text, in bytes
}

// unknownRune stands for the next rune when it has not come yet.
const unknownRune = -2

// newMachine compiles a pattern of the rule with this index.
func newMachine(rule *Rule, pattern *regexp.Regexp, index int) *machine {
	if rule.IgnoreCase {
		pattern = regexp.MustCompile("(?i:" + pattern.String() + ")")
	}
	parsed, err := syntax.Parse(pattern.String(), syntax.Perl)
	if err != nil { // the pattern was compiled by regexp.CompilePOSIX
		parsed, err = syntax.Parse(pattern.String(), syntax.POSIX)
	}
	if err != nil {
		panic("moderation: " + err.Error()) // regexp has parsed it
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		panic("moderation: " + err.Error())
	}
	m := &machine{prog: prog, whole: pattern, rule: index, window: int64(rule.Window)}
	m.findFirstRunes()
	return m
}

// findFirstRunes finds the runes with which a match may begin, with every condition taken for true.
func (m *machine) findFirstRunes() {
	r := newRun(m)
	r.close(uint32(m.prog.Start), 0, ^syntax.EmptyOp(0))
	m.matchesEmpty = r.matched
	for _, th := range r.ready {
		for c := range rune(128) {
			m.firstRunes[c] = m.firstRunes[c] || m.prog.Inst[th.pc].MatchRune(c)
		}
	}
}

// run has the memory for one step of a machine. It keeps no state between two steps.
type run struct {
	m       *machine
	ready   []thread // at instructions that need a rune, the youngest first
	seen    []uint32 // for each instruction, the step that reached it last
	step    uint32
	matched bool
	start   int64 // where the youngest match begins
}

func newRun(m *machine) *run { return &run{m: m, seen: make([]uint32, len(m.prog.Inst)), step: 1} }

// next moves threads over the rune c at the offset pos. prev is the rune before c, -1 at the
// beginning of the text. matched says that a match ends before c.
func (r *run) next(threads []thread, prev, c rune, pos int64) (moved []thread, matched bool) {
	if len(threads) == 0 && c < 128 && !r.m.matchesEmpty && !r.m.firstRunes[c] {
		return threads, false
	}
	r.expand(threads, syntax.EmptyOpContext(prev, c), pos)
	threads = threads[:0]
	for _, th := range r.ready {
		inst := &r.m.prog.Inst[th.pc]
		if matches(inst, c) {
			threads = append(threads, thread{inst.Out, th.start})
		}
	}
	return threads, r.matched
}

func matches(inst *syntax.Inst, c rune) bool {
	switch inst.Op {
	case syntax.InstRune1:
		return inst.Rune[0] == c
	case syntax.InstRuneAny:
		return true
	case syntax.InstRuneAnyNotNL:
		return c != '\n'
	}
	return inst.MatchRune(c)
}

// matchesAtEnd reports whether a match ends at the offset pos, after prev. next is -1 at the end of
// the text, and otherwise unknownRune.
func (r *run) matchesAtEnd(threads []thread, prev, next rune, pos int64) bool {
	if len(threads) == 0 && !r.m.matchesEmpty {
		return false
	}
	flags := syntax.EmptyOpContext(prev, next)
	if next == unknownRune { // only the text so far counts
		flags = 0
		if prev < 0 {
			flags = syntax.EmptyBeginText
		}
		if prev < 0 || prev == '\n' {
			flags |= syntax.EmptyBeginLine
		}
	}
	r.expand(threads, flags, pos)
	return r.matched
}

// expand follows the threads, and a new one that begins at pos, up to instructions that need a
// rune. Of two threads at the same instruction it keeps the younger one, which stays within the
// window longer. Threads come in that order, and keep it.
func (r *run) expand(threads []thread, flags syntax.EmptyOp, pos int64) {
	r.step++
	if r.step == 0 {
		clear(r.seen)
		r.step = 1
	}
	r.ready, r.matched = r.ready[:0], false
	r.close(uint32(r.m.prog.Start), pos, flags)
	for _, th := range threads {
		if pos-th.start <= r.m.window {
			r.close(th.pc, th.start, flags)
		}
	}
}

// close follows one thread up to instructions that need a rune.
func (r *run) close(pc uint32, start int64, flags syntax.EmptyOp) {
	for r.seen[pc] != r.step {
		r.seen[pc] = r.step
		inst := &r.m.prog.Inst[pc]
		switch inst.Op {
		case syntax.InstFail:
			return
		case syntax.InstMatch:
			if !r.matched {
				r.matched, r.start = true, start
			}
			return
		case syntax.InstAlt, syntax.InstAltMatch:
			r.close(inst.Out, start, flags)
			pc = inst.Arg
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(inst.Arg)&^flags != 0 {
				return
			}
			pc = inst.Out
		case syntax.InstCapture, syntax.InstNop:
			pc = inst.Out
		default:
			r.ready = append(r.ready, thread{pc, start})
			return
		}
	}
}
