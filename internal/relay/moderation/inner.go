package moderation

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
	"github.com/sluice-gateway/sluice/internal/openai/leaves"
)

// openInner begins the inner text of t before t reads a piece with its first backslash.
func (f *Filter) openInner(t *text) {
	if t.inner != nil || t.level == maxLevel {
		return
	}
	u := &text{choice: t.choice, path: t.path, level: t.level + 1, rule: -1, half: bytes.Clone(t.half), high: t.high, prev: t.prev, runes: t.runes,
		bytes: t.bytes, exact: t.exact, folded: t.folded, depth: t.depth, threads: make([][]thread, len(t.threads))}
	for i := range t.threads {
		u.threads[i] = append(u.threads[i], t.threads[i]...)
	}
	u.growths = append(u.growths, t.growths...)
	t.inner = u
	if t.path.Class != leaves.Tokens { // these hold nothing
		f.texts = append(f.texts, u)
	}
}

// addInner adds a piece to the inner texts of t, which has one. It returns the text that a rule
// forbids and the rule, which is -1 if there is none.
func (f *Filter) addInner(t *text, l *leaves.Leaf) (found *text, rule int) {
	u := t.inner
	u.recordGrowth(f.event)
	piece := *l
	if piece.Text = u.unescape(l); len(piece.Text) == 0 {
		return nil, -1
	}
	return f.grow(u, &piece)
}

// unescape returns a piece of the outer text without its escapes. An escape that is not complete
// waits for the next piece. What is no escape stays as it is.
func (t *text) unescape(l *leaves.Leaf) []byte {
	in := l.Text
	if len(t.escape) == 0 && bytes.IndexByte(in, '\\') < 0 {
		return in
	}
	if len(t.escape) > 0 {
		in = append(t.escape, in...)
		t.escape = nil
	}
	out := make([]byte, 0, len(in))
	for {
		n := bytes.IndexByte(in, '\\')
		if n < 0 {
			return append(out, in...)
		}
		out, in = append(out, in[:n]...), in[n:]
		size := escapeSize(in)
		switch {
		case size < 0:
			t.escape = bytes.Clone(in)
			return out
		case size == 1:
			out = append(out, '\\')
		default:
			r, _, _ := jsonscan.DecodeEscape(in[:size:size])
			out = utf8.AppendRune(out, r)
		}
		in = in[size:]
	}
}

// escapeSize returns the length of the escape at the start of b, or of two escapes if they are a
// surrogate pair. It returns 1 if there is none, and a negative number if more of the text is
// needed.
func escapeSize(b []byte) int {
	if len(b) < 2 {
		return -1
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
	default:
		return 1
	}
	unit, n := hexUnit(b)
	if n != 6 {
		return n
	}
	if !utf16.IsSurrogate(unit) || unit >= 0xdc00 {
		return 6
	}
	if len(b) < 8 && (len(b) == 6 || b[6] == '\\') {
		return -1
	}
	if b[6] != '\\' || b[7] != 'u' {
		return 6
	}
	low, n := hexUnit(b[6:])
	switch {
	case n < 0:
		return -1
	case n == 6 && utf16.DecodeRune(unit, low) != utf8.RuneError:
		return 12
	}
	return 6
}

// hexUnit reads \uXXXX at the start of b. n is 6, 1 if b has something else, and negative if more
// of the text is needed.
func hexUnit(b []byte) (unit rune, n int) {
	for i := 2; i < 6; i++ {
		if i == len(b) {
			return 0, -1
		}
		c := b[i]
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, 1
		}
		unit = unit<<4 | rune(c)
	}
	return unit, 6
}

// judgeInner is judge for the inner texts of a value that stands alone.
func (f *Filter) judgeInner(l *leaves.Leaf) (rule int) {
	piece := *l
	for level := 0; level < maxLevel && bytes.IndexByte(piece.Text, '\\') >= 0; level++ {
		u := text{}
		piece.Text = append(u.unescape(&piece), u.escape...)
		if rule = f.judge(piece.Text); rule >= 0 {
			return rule
		}
	}
	return -1
}
